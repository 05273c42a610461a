"""Many images by one command, as people type it: against a real registry, with images of a few files."""

import contextlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envkit.engines.builder import EngineBuilder
from envkit.engines.model import BaseImage, BuildOptions, BuiltImage, Engine
from envkit.fleet import existing_images
from envkit.fleet.names import hash_tag
from envkit.ground.process import pids
from envkit.image.name import parse_reference
from envkit.lock.store import digest_of
from envkit.pipeline.publish import Publication
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.faults import Proxy, proxy_before
from tests.engines.oci_images import registry
from tests.engines.small_channel import PYTHONS, TORCHES, Channel, channel
from tests.engines.test_registry_output import held
from tests.support.heard import Heard
from tests.support.locks import lock_for
from tests.support.pids import all_end
from tests.support.plans import shipped_plan
from tests.world import image
from tests.world.world import World

pytestmark = pytest.mark.engine
ENVKIT = (sys.executable, "-m", "envkit")
DEFINITION = """schema: envkit.image/1
title: Small
companions: [numpy]
request: {os: debian12, python: "3.11", cpu: true}
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str
    document: dict[str, Any]

    @property
    def statuses(self) -> dict[str, str]:
        return {one["name"]: one["status"] for one in self.document["images"]}


@dataclass(frozen=True)
class Fleet:
    """A folder of its own for one test, with the module's channel and registry."""

    folder: Path
    env: dict[str, str]
    host: str

    def matrix(self, **axes: list[str]) -> Path:
        path = self.folder / "matrix.yaml"
        path.write_text(json.dumps({"schema": "envkit.matrix/1", "image": "./small.yaml", "axes": axes}))
        return path

    def argv(self, *flags: str) -> list[str]:
        fixed = ["--engine", "embedded", "-o", "fleet.json", "--progress", "plain"]
        return [*ENVKIT, "build", *fixed, *flags]

    def build(self, *flags: str, no_verify: bool = True) -> Ended:
        (self.folder / "fleet.json").unlink(missing_ok=True)
        argv = self.argv(*flags, *(["--no-verify"] if no_verify else []))
        done = subprocess.run(
            argv, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=200
        )
        return self.ended(done.returncode, done.stdout, done.stderr)

    def ended(self, code: int, out: str, err: str) -> Ended:
        made = self.folder / "fleet.json"
        return Ended(code, out, err, json.loads(made.read_text()) if made.exists() else {})

    @contextmanager
    def held_back(self, served: Channel, *flags: str) -> Iterator[subprocess.Popen[str]]:
        """A command whose workers wait for an archive that the channel does not give out yet."""
        served.open.clear()
        with subprocess.Popen(
            self.argv(*flags, "--no-verify"), cwd=self.folder, env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                assert served.asked_for_archive.wait(60)
                yield process
            finally:
                served.open.set()
                process.kill()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Channel]:
    with channel(tmp_path_factory.mktemp("channel")) as found:
        yield found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder) as found:
        for number in (1, 2):
            push_base(found, folder, number)
        yield found


@pytest.fixture
def fleet(served: Channel, host: str, tmp_path: Path) -> Fleet:
    served.asked.clear()
    served.asked_for_archive.clear()
    (tmp_path / "small.yaml").write_text(DEFINITION)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")}
    own = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    return Fleet(tmp_path, {**kept, **own, "ENVKIT_CONDA_CHANNEL_ALIAS": served.address}, host)


def push_base(host: str, folder: Path, number: int) -> None:
    """A root with a shell's name in it, and a file that no other base has."""
    tar = folder / f"base{number}.tar"
    with tarfile.open(tar, "w") as archive:
        for name, data in (("bin/bash", b"\x7fELF"), ("etc/base", str(number).encode())):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    layer = image.compress(tar, folder / f"base{number}.tar.gz")
    image.push(host, f"team/base{number}", ("1",), [layer], env={"PATH": "/bin"})


def workers_of(pid: int) -> list[int]:
    workers = []
    for own in pids():
        with contextlib.suppress(OSError):
            parent = Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()[1]
            if b"envkit.fleet.worker" in Path(f"/proc/{own}/cmdline").read_bytes() and int(parent) == pid:
                workers.append(own)
    return sorted(workers)


@pytest.mark.long
def test_eight_images_share_what_they_have_in_common(fleet: Fleet, served: Channel) -> None:
    with proxy_before(fleet.host) as proxy:
        proxied, bases = proxy.address, [f"{fleet.host}/team/base{number}:1" for number in (1, 2)]
        path = fleet.matrix(python=[*PYTHONS], torch=[*TORCHES], base=bases)
        done = fleet.build("--matrix", str(path), "--output", f"registry:{proxied}/all", "--jobs", "4")
        assert done.code == 0, done.err
        images = done.document["images"]
        assert set(done.statuses.values()) == {"built"}
        assert len(images) == len({one["digest"] for one in images}) == 8
        # Requests that differ in the base alone are solved once, and each base is looked up once.
        assert done.err.count("note: lock: solve ") == 4
        assert done.err.count("note: lock: look up 127.") == 2
        # Every archive came once, whoever needed it, and every blob went once.
        assert served.archives()
        assert set(served.archives().values()) == {1}
        sent = [seen.line.split("digest=")[1] for seen in proxy.seen if "digest=" in seen.line and "PUT" in seen.line]
        assert len(sent) == len(set(sent)) > 20
        assert_tags(proxied, images)
        assert_present(fleet, proxy, path)
    assert "note: 4 parallel builds (--jobs)\n" in done.err
    assert "8 built, in " in done.err
    assert done.out.splitlines()[0].split() == ["image", "outcome", "seconds", "where,", "or", "why", "not"]


def assert_tags(host: str, images: list[dict[str, Any]]) -> None:
    """Each image has its own name and the hash of its plan and lock."""
    for one in images:
        assert held(f"{host}/all:{one['name']}") == one["digest"]
        assert one["name"].startswith("small-python3.1")
        assert one["place"] == f"{host}/all@{one['digest']}"


def assert_present(fleet: Fleet, proxy: Proxy, path: Path) -> None:
    """What has its hash in the registry is not built again, also where no cache is left."""
    proxy.seen.clear()
    for name in ("cache", "state"):
        (fleet.folder / name).rename(fleet.folder / f"old-{name}")
    again = fleet.build("--matrix", str(path), "--output", f"registry:{proxy.address}/all")
    assert (again.code, set(again.statuses.values())) == (0, {"present"})
    assert not [seen.line for seen in proxy.seen if seen.line.startswith(("POST", "PATCH", "PUT"))]


def test_a_layout_that_is_there_is_not_built_again(fleet: Fleet) -> None:
    (fleet.folder / "images").mkdir()
    (fleet.folder / "images" / "one.yaml").write_text(DEFINITION)
    (fleet.folder / "images" / "two.yml").write_text(DEFINITION.replace("Small", "Other"))
    flags = ["--all", "--base", "none", "--output", "oci:out", "--torch", TORCHES[0]]
    done = fleet.build(*flags)
    assert (done.code, done.statuses) == (0, {"one": "built", "two": "built"}), done.err
    assert "note: 2 images of ./images\n" in done.err
    assert [one["place"] for one in done.document["images"]] == ["oci:out/one", "oci:out/two"]
    (fleet.folder / "out" / "two" / "index.json").unlink()
    again = fleet.build(*flags)
    assert (again.code, again.statuses) == (0, {"one": "present", "two": "built"}), again.err
    rebuilt = fleet.build(*flags, "--no-cache")
    assert (rebuilt.code, rebuilt.statuses) == (0, {"one": "built", "two": "built"}), rebuilt.err
    digests = [one["digest"] for one in done.document["images"]]
    assert [one["digest"] for one in rebuilt.document["images"]] == digests


def test_equal_plans_are_one_image_and_impossible_ones_are_told(fleet: Fleet) -> None:
    path = fleet.matrix(torch=[TORCHES[0], "2.13.*", "1.0.*"], base=["none"])
    refused = fleet.build("--matrix", str(path))
    assert (refused.code, refused.document) == (3, {})
    assert 'error: small-torch1.0-basenone is impossible: no build matches --torch "1.0.*"' in refused.err
    assert "hint: --skip-impossible builds the other 1\n" in refused.err
    done = fleet.build("--matrix", str(path), "--skip-impossible")
    assert (done.code, done.statuses) == (0, {"small-torch2.13.0-basenone": "built"}), done.err
    assert done.document["images"][0]["also"] == ["small-torch2.13-basenone"]
    assert [one["name"] for one in done.document["impossible"]] == ["small-torch1.0-basenone"]
    assert done.document["images"][0]["place"].startswith(f"oci:{fleet.folder}/state/envkit/images/")


@pytest.mark.long
@pytest.mark.requirement("R59")
def test_one_image_fails_and_the_others_are_built_then_resume_does_that_one(fleet: Fleet) -> None:
    late = f"{fleet.host}/team/late{os.getpid()}:1"
    path = fleet.matrix(base=[f"{fleet.host}/team/base1:1", late, f"{fleet.host}/team/base2:1"])
    flags = ["--matrix", str(path), "--output", f"registry:{fleet.host}/resumed"]
    done = fleet.build(*flags)
    name = f"small-baselate{os.getpid()}_1"
    assert (done.code, done.statuses) == (
        8,
        {"small-basebase1_1": "built", name: "failed", "small-basebase2_1": "built"},
    ), done.err
    failure = next(one["failure"] for one in done.document["images"] if one["name"] == name)
    assert failure["message"] == f"there is no image {late}"
    assert f"{name}: there is no image {late}\n  hint: check the image's name and tag, or --base IMAGE\n" in done.err
    copy(f"{fleet.host}/team/base2:1", late)
    again = fleet.build(*flags, "--resume")
    assert (again.code, again.statuses[name]) == (0, "built"), again.err
    assert "note: 2 of 3 images were finished in the last run\n" in again.err
    assert f"{name}: begin" in again.err
    assert "small-basebase1_1: begin" not in again.err
    nothing = fleet.build(*flags, "--resume", "--label", "com.example.run=2")
    assert "note: no finished images from an earlier run with these images and flags; building all\n" in nothing.err


def copy(source: str, target: str) -> None:
    """Give an image of the registry a name in another repository."""
    held_as, goal = parse_reference(source), parse_reference(target)
    with Transport() as transport:
        found = Registry(goal.registry, transport, {})
        manifest = found.manifest(held_as)
        assert manifest is not None
        tree = json.loads(manifest.data)
        for row in (*tree["layers"], tree["config"]):
            assert found.start_upload(goal.repository, row["digest"], held_as.repository) is None
        found.put_manifest(goal, manifest.data, manifest.media_type)


@pytest.mark.long
@pytest.mark.requirement("R59")
def test_ctrl_c_ends_all_children_and_leaves_what_resume_continues(fleet: Fleet, served: Channel) -> None:
    path = fleet.matrix(python=[*PYTHONS], torch=[*TORCHES], base=["none"])
    flags = ["--matrix", str(path), "--output", f"registry:{fleet.host}/stopped", "--jobs", "2"]
    with fleet.held_back(served, *flags) as process:
        workers = workers_of(process.pid)
        assert len(workers) == 2
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    stopped = fleet.ended(process.returncode, out, err)
    assert stopped.code == 130, err
    assert all_end(workers, within_s=10)
    assert set(stopped.statuses.values()) == {"stopped"}
    assert "error: ended by SIGINT\n  0 of 4 images are done\n" in err
    assert "hint: run the same command with --resume to continue" in err
    done = fleet.build(*flags, "--resume")
    assert (done.code, set(done.statuses.values())) == (0, {"built"}), done.err


def test_a_worker_that_is_killed_fails_its_own_image_alone(fleet: Fleet, served: Channel) -> None:
    path = fleet.matrix(python=[*PYTHONS], base=["none"])
    with fleet.held_back(served, "--matrix", str(path), "--jobs", "1") as process:
        (worker,) = workers_of(process.pid)
        os.kill(worker, signal.SIGKILL)
        served.open.set()
        out, err = process.communicate(timeout=60)
    done = fleet.ended(process.returncode, out, err)
    assert (done.code, sorted(done.statuses.values())) == (9, ["built", "failed"]), err
    assert "the worker process ended by signal 9 (SIGKILL)\n  hint: lower --jobs to use less memory\n" in err


def test_workers_end_when_the_command_is_killed(fleet: Fleet, served: Channel) -> None:
    path = fleet.matrix(python=[*PYTHONS], base=["none"])
    with fleet.held_back(served, "--matrix", str(path), "--jobs", "2") as process:
        workers = workers_of(process.pid)
        process.kill()
        process.communicate()
        assert workers
        assert all_end(workers, within_s=10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_verify_of_several_images(fleet: Fleet, number: signal.Signals) -> None:
    pythons = [fleet.folder / name for name in ("one", "two")]
    for path in pythons:
        path.write_text('#!/bin/sh\ntouch "$0.began"\nexec sleep 600\n')
        path.chmod(0o755)
    began = [path.with_name(f"{path.name}.began") for path in pythons]
    argv = [*ENVKIT, "verify", *map(str, pythons), "--runner", "host", "--progress", "plain"]
    with subprocess.Popen(argv, cwd=fleet.folder, env=fleet.env, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not began[0].exists():
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 128 + number, err
    assert f"error: ended by {number.name}" in err
    assert not began[1].exists()


@pytest.mark.long
def test_what_is_not_proved_is_not_there(fleet: Fleet) -> None:
    path = fleet.matrix(base=["none"])
    flags = ("--matrix", str(path), "--output", "oci:out")
    first, second = (fleet.build(*flags, no_verify=False) for _ in range(2))
    assert [*first.statuses.values()] == [*second.statuses.values()] == ["unproved"], second.err
    assert first.code == second.code != 0
    assert (fleet.build(*flags).code, [*fleet.build(*flags).statuses.values()]) == (0, ["present"])


def test_what_is_not_proved_gets_no_tag(fleet: Fleet) -> None:
    path = fleet.matrix(base=["none"])
    done = fleet.build("--matrix", str(path), "--output", f"registry:{fleet.host}/unproved", no_verify=False)
    (one,) = done.document["images"]
    assert (one["status"], one["exit_code"], one["verification"]["verdict"]) == ("unproved", done.code, "ERROR"), (
        done.err
    )
    assert done.code != 0
    assert one["failure"]["message"] == f"the image is not verified: ERROR, exit code {done.code}"
    assert one["failure"]["hint"].startswith("envkit verify oci:")
    assert one["failure"]["details"]
    assert held(f"{fleet.host}/unproved:{one['name']}") is None
    assert held(one["place"]) == one["digest"]


def image_of(ident: str) -> BuiltImage:
    base = BaseImage(reference="x", digest=None, origin="local", name="x")
    return BuiltImage(
        id=ident, tags=(), engine="docker", size=1, base=base, plan_digest="sha256:0", labels=(), duration_s=0,
        log_file=None,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_an_engine_has_the_image_already(
    engine: Engine, build: Callable[..., str], place: World, tmp_path: Path
) -> None:
    plan, name = shipped_plan("cpu"), f"envkit/cpu-{secrets.token_hex(4)}"
    lock = lock_for(plan)
    own_tag, wanted = hash_tag(plan.digest, digest_of(lock)), BuildOptions(tags=(f"{name}:a",))
    made = build(f"LABEL envkit.plan={plan.digest} envkit.lock={digest_of(lock)}")
    builder = EngineBuilder(engine, state=tmp_path)

    def found() -> existing_images.ExistingImage | None:
        return existing_images.find(builder, plan, lock, options=wanted, own_tag=own_tag, state=tmp_path)

    try:
        assert found() is None
        engine.tag(made, f"{name}:{own_tag}")
        assert found() == existing_images.ExistingImage(digest=None, place=made)
        publication = Publication(builder, wanted, own_tag=own_tag, state=tmp_path)
        publication.again(made, None)
        named = engine.local(f"{name}:a")
        assert named is not None
        assert named.id == made
        subprocess.run([place.docker_client or "docker", "rmi", f"{name}:{own_tag}"], capture_output=True, check=True)
        assert publication.begin() == wanted  # the engine gives the name that says what is in it after the verification
        assert found() is None
        publication.end(image_of(made), Heard())
        assert found() == existing_images.ExistingImage(digest=None, place=made)
    finally:
        tags = [f"{name}:{own_tag}", f"{name}:a"]
        subprocess.run([place.docker_client or "docker", "rmi", *tags], capture_output=True, check=False)
