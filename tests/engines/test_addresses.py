"""Where a registry may lead envkit: real servers on a public, a link-local and a loopback address of an own network."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.address_lab import INNER, METADATA, NAME, PROXY, PUBLIC, REBOUND, SECRET
from tests.engines.certificates import authority
from tests.support.file_images import packed, write_layout
from tests.world.places import UnavailableError

pytestmark = pytest.mark.engine
BEHIND = "behind.example.com"  # a name that only the proxy knows
IMAGE = f"{NAME}/team/train:1"
MANIFEST = "/v2/team/train/manifests/1"


@dataclass(frozen=True)
class Told:
    """What envkit said, and the requests of each server."""

    rc: int
    out: str
    err: str
    met: list[dict[str, str]]

    def lines(self, server: str) -> list[str]:
        return [one["line"] for one in self.met if one["server"] == server]

    @property
    def sent(self) -> str:
        return " ".join(one["authorization"] for one in self.met)


@dataclass(frozen=True)
class Lab:
    """The network, made for each run."""

    folder: Path

    def run(self, *argv: str, answers: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> Told:
        done = subprocess.run(
            ["unshare", "--net", "--mount", sys.executable, "-m", "tests.engines.address_lab", str(self.folder)],
            input=json.dumps({"answers": answers or {}, "argv": argv, "env": env or {}}),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return Told(**json.loads(done.stdout))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    missing = [name for name in ("unshare", "ip", "mount") if shutil.which(name) is None]
    if missing or subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True).returncode:
        raise UnavailableError(f"no network namespace can be made here{': no ' + missing[0] if missing else ''}")
    folder = tmp_path_factory.mktemp("addresses") / "authority"
    authority(folder).sign(f"DNS:{NAME},DNS:{BEHIND},DNS:{REBOUND},IP:{PUBLIC},IP:{METADATA},IP:127.0.0.1")
    (folder / "hosts").write_text(f"127.0.0.1 localhost {REBOUND}\n{PUBLIC} {NAME}\n")
    return Lab(folder)


def wants_login(realm: str) -> dict[str, Any]:
    return {MANIFEST: (401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="it"'}, "")}


@pytest.mark.requirement("R9")
@pytest.mark.parametrize(
    ("realm", "why"),
    [
        (f"http://{METADATA}/latest/meta-data/", "an unencrypted address"),
        (f"https://{METADATA}/latest/meta-data/", "a link-local address"),
        (f"http://127.0.0.1:{INNER}/token", "an unencrypted address"),
        ("https://127.0.0.1/token", "this machine"),
        (f"https://{REBOUND}/token", "this machine"),
        ("https://2130706433/token", "an unusual way"),
    ],
)
def test_a_token_server_inside_is_not_asked(lab: Lab, realm: str, why: str) -> None:
    told = lab.run("inspect", IMAGE, answers=wants_login(realm))
    assert told.rc == 8
    assert why in told.err
    assert not told.lines("metadata")
    assert not told.lines("loopback")
    assert SECRET not in told.sent


@pytest.mark.requirement("R9")
@pytest.mark.parametrize(
    ("location", "why"),
    [
        (f"http://{METADATA}/latest", "an unencrypted address"),
        (f"https://{METADATA}/latest", "a link-local address"),
        ("https://127.0.0.1/v2/", "this machine"),
        (f"https://{REBOUND}{MANIFEST}", "resolves to 127.0.0.1"),
    ],
)
def test_a_redirect_inside_is_not_followed(lab: Lab, location: str, why: str) -> None:
    told = lab.run("inspect", IMAGE, answers={MANIFEST: (307, {"Location": location}, "")})
    assert told.rc == 8
    assert why in told.err
    assert not told.lines("metadata")
    assert not told.lines("loopback")


@pytest.mark.requirement("R9")
def test_an_upload_goes_to_no_place_inside(lab: Lab, tmp_path: Path) -> None:
    location = f"https://{REBOUND}/upload"
    answers = {"POST /v2/team/train/blobs/uploads/": (202, {"Location": location}, "")}
    write_layout(tmp_path / "image", [packed([])], {})
    told = lab.run("push", "--no-tag", f"{NAME}/team/train", "--image", f"oci:{tmp_path / 'image'}", answers=answers)
    assert told.rc == 8
    assert f"{REBOUND} resolves to 127.0.0.1" in told.err
    assert not told.lines("loopback")


@pytest.mark.requirement("R9")
@pytest.mark.parametrize(
    ("image", "why"),
    [
        (f"{METADATA}/team/train:1", "is a link-local address"),
        ("2852039166:443/team/train:1", "unusual way"),
    ],
)
def test_a_name_that_no_image_comes_from(lab: Lab, image: str, why: str) -> None:
    for argv in (("inspect", image), ("lock", "--base", image, "--engine", "embedded")):
        told = lab.run(*argv)
        assert told.rc == 2
        assert why in told.err
        assert not told.met


def test_a_users_own_name_for_this_machine_is_taken(lab: Lab) -> None:
    told = lab.run("inspect", f"{REBOUND}/team/train:1")
    assert told.lines("loopback")


@pytest.mark.requirement("R9")
def test_behind_a_proxy_the_proxy_resolves_names(lab: Lab) -> None:
    """No name of the registry is known here: what the proxy connects to is the proxy's business."""
    proxy = {"HTTPS_PROXY": f"http://127.0.0.1:{PROXY}"}
    told = lab.run("inspect", f"{BEHIND}/team/train:1", env=proxy)
    assert "there is no image" in told.err
    assert told.lines("proxy") == [f"CONNECT {BEHIND}:443"]
    assert told.lines("registry")
    answers = wants_login(f"https://{METADATA}/token")
    told = lab.run("inspect", f"{BEHIND}/team/train:1", env=proxy, answers=answers)
    assert "a link-local address" in told.err
    assert told.lines("proxy") == [f"CONNECT {BEHIND}:443"]
