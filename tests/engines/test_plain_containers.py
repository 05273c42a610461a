"""Containers as `docker run` makes them by default: what runs an image there, and what is said where nothing can."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.run import remedies
from tests.support.another_user import site_packages
from tests.support.containers import build_image
from tests.world.places import REPOSITORY, UnavailableError
from tests.world.world import World

pytestmark = [pytest.mark.engine, pytest.mark.long]
PLAIN, PREPARED = "envkit-tests-plain", "envkit-tests-prepared"
_PYTHON = (3, 11)  # of the base
_DEFINITION = 'schema: envkit.image/1\ntitle: CPU\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
_READ_ONLY = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
_CACHE = ("--tmpfs", "/cache:mode=1777", "--env", "XDG_CACHE_HOME=/cache")
_RUN = """
import json, os, sys
from envkit.run.model import RunLimits
from envkit.run.runners import make
from envkit.ground.progress import Silent
from envkit.image.name import image_name
runner = make(sys.argv[1])
reason = runner.probe()
out = {"reason": reason, "missing": list(runner.isolation.missing), "runs": []}
for user in sys.argv[2:] if reason is None else ():
    ident = runner.inspect(image_name("oci:/image"))["id"]
    script = "id -u; cat /proc/self/status; touch /etc/x && echo changed"
    limits = RunLimits(timeout_s=60, user=user)
    done = runner.run(image_name(ident), ["sh", "-c", script], {}, gpus=None, limits=limits, reporter=Silent())
    lines = done.stdout.decode().splitlines()
    told = {"uid": lines[0], "changed": "changed" in lines, "error": done.stderr.decode()}
    told["outside"] = next(line for line in lines if line.startswith("Uid:")).split()[1]
    out["runs"].append(told)
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def contained(
    place: World, file_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a command in a container that has this checkout, and the image of the conformance suite as /image."""
    place.require("docker", "registry", "base")
    assert place.base is not None
    if sys.version_info[:2] != _PYTHON:
        raise UnavailableError("this Python's packages are not those of the base's Python 3.11")
    folder = tmp_path_factory.mktemp("plain")
    build_image(place.base, PLAIN, ("python3",), folder)
    build_image(PLAIN, PREPARED, ("proot", "bubblewrap"), folder)
    origin = Path(os.environ["XDG_CACHE_HOME"]) / "envkit" / "images" / file_image.removeprefix("sha256:")
    layout = origin.read_text().removeprefix("oci:").partition("@")[0]

    def run(image: str, flags: tuple[str, ...], *command: str) -> "subprocess.CompletedProcess[str]":
        argv = ["docker", "run", "--rm", "--network", "none", *flags]
        for host, path in ((REPOSITORY, "/repo"), (site_packages(), "/site"), (layout, "/image")):
            argv += ["--volume", f"{host}:{path}:ro"]
        argv += ["--env", "PYTHONPATH=/repo:/site", "--env", "PYTHONDONTWRITEBYTECODE=1", image, *command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)

    return run


def ran(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """What `_RUN` printed."""
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--user", "1000:1000"),
        ("--user", "12345", "--memory", "1g"),
        ("--cap-drop", "ALL", "--user", "1000"),
        (*_READ_ONLY, "--user", "1000", "--tmpfs", "/tmp:rw,exec,mode=1777"),
    ],
    ids=["root", "user", "no-account", "no-power-user", "pod"],
)
def test_proot_runs_an_image(
    contained: Callable[..., "subprocess.CompletedProcess[str]"], flags: tuple[str, ...]
) -> None:
    found = ran(contained(PREPARED, flags, "python3", "-c", _RUN, "proot", "0:0", "1234:1234"))
    assert found["reason"] is None
    assert [told["uid"] for told in found["runs"]] == ["0", "1234"]
    for told in found["runs"]:
        assert told["outside"] != "0"
        assert told["changed"] is ("read-only-root" in found["missing"])
    assert {"network", "processes", "shared-memory"} <= set(found["missing"])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--cap-drop", "ALL"), "root cannot change to another user here"),
        ((*_READ_ONLY, *_CACHE, "--user", "1000"), "/tmp cannot be written"),
        ((*_READ_ONLY, "--user", "1000", "--tmpfs", "/tmp"), "/tmp is mounted noexec"),
    ],
    ids=["no-power", "read-only-tmp", "noexec-tmp"],
)
def test_where_proot_cannot_run_it_says_why(
    contained: Callable[..., "subprocess.CompletedProcess[str]"], flags: tuple[str, ...], reason: str
) -> None:
    found = ran(contained(PREPARED, flags, "python3", "-c", _RUN, "proot", "0:0"))
    assert reason in str(found["reason"])


BUILD = (
    "sh",
    "-c",
    f"printf '%s' '{_DEFINITION}' > /tmp/i.yaml; exec python3 -m envkit build /tmp/i.yaml \"$@\"",
    "sh",
)


def test_a_build_is_refused_before_anything_is_fetched(
    contained: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    done = contained(PLAIN, (), *BUILD, "--engine", "embedded")
    assert done.returncode == 9, done.stderr
    told = " ".join(done.stderr.split())
    assert "bubblewrap: bubblewrap is not installed, so a built image cannot be verified here" in told
    assert "proot: proot is not installed" in told
    assert "hint: apt-get install proot or: docker run --security-opt seccomp=unconfined" in told
    assert "lock:" not in told
    # The hint's own way out gets as far as the network, which this container lacks.
    other = contained(PLAIN, (), *BUILD, "--engine", "embedded", "--no-verify")
    assert "cannot be verified here" not in other.stderr


def test_a_verification_is_refused_before_anything_is_fetched(
    contained: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    image = "registry:registry.example.com/team/train:1"
    for command in (("verify", image), ("compare", image, image)):
        done = contained(PLAIN, (), "python3", "-m", "envkit", *command)
        assert done.returncode == 9, done.stderr
        assert "bubblewrap is not installed" in done.stderr
        assert "registry.example.com: " not in done.stderr


def test_an_image_that_nothing_vouches_for_needs_proot_by_name(
    contained: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    refused = contained(PREPARED, (), "python3", "-m", "envkit", "verify", "oci:/image")
    assert refused.returncode == 9
    assert "this image was not built here (--runner proot uses it anyway)" in " ".join(refused.stderr.split())
    named = contained(PREPARED, (), "python3", "-m", "envkit", "verify", "oci:/image", "--runner", "proot")
    assert named.returncode != 9
    assert named.stderr.count("warning: proot isolates weakly") == 1
    assert "weak isolation (without network, processes, shared-memory" in " ".join(named.stdout.split())


def test_the_flags_that_are_named_give_namespaces(
    contained: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    flags = tuple(remedies.DOCKER.split()[2:])
    for user in ((), ("--user", "1000")):
        found = ran(contained(PREPARED, (*flags, *user), "python3", "-c", _RUN, "bubblewrap", "0:0"))
        assert found["reason"] is None
        assert ran(contained(PREPARED, user, "python3", "-c", _RUN, "bubblewrap", "0:0"))["reason"] is not None
