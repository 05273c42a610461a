"""What a container gets, decided from an image's own words and from what was asked."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EnvironmentProblem, EnvkitError, IntegrityError, UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.progress import Silent
from envkit.ground.settings import load
from envkit.ground.state import RECORDS, LastBuilt, write_built, write_last
from envkit.image.name import ImageName, image_name
from envkit.pipeline import running
from envkit.pipeline.running import TOKEN, Ready, RunRequest, decide, ready
from envkit.run.runners import make
from envkit.run.session import Mount

CALLER = f"{os.getuid()}:{os.getgid()}"
FACTS: dict[str, Any] = {
    "id": "sha256:" + "a" * 64,
    "tags": ("train:1",),
    "labels": {"envkit.shm-mb": "8192", "envkit.cuda": "none"},
    "env": {"HOME": "/tmp/home"},
    "user": "1000:1000",
    "entrypoint": ("/opt/env/bin/tini", "-g", "--"),
    "cmd": ("python",),
    "workdir": "/workspace",
    "ports": (),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def made(
    request: RunRequest,
    *,
    used: tuple[int, ...] = (),
    runner: str = "docker",
    known: bool = True,
    labels: dict[str, str] | None = None,
    **facts: Any,
) -> Ready:
    found = {**FACTS, **facts, "labels": {**FACTS["labels"], **(labels or {})}}
    return decide(
        request, make(runner), found, name=image_name("train:1"), known=known, free=lambda port: port.host not in used
    )


def test_an_image_that_was_built_here(tmp_path: Path) -> None:
    found = made(RunRequest(argv=("python", "train.py")))
    session = found.session
    assert session.mounts == (Mount(source=tmp_path / "project", target="/workspace", read_only=False),)
    assert (session.user, session.shm_mb, session.gpus, session.network, session.env) == (
        CALLER, 8192, None, "default", (),
    )  # fmt: skip
    assert found.lines == (
        f"docker: {tmp_path}/project at /workspace; user {CALLER}; GPUs none; 8192 MiB of shared memory",
    )


def test_a_foreign_image_gets_no_folder_and_with_bubblewrap_no_network() -> None:
    found = made(RunRequest(argv=("true",)), runner="bubblewrap", known=False)
    assert (found.session.mounts, found.session.network) == ((), "none")
    assert "no folder, because the image was not built here (--workspace DIR mounts one)" in found.lines[0]
    assert made(RunRequest(argv=("true",)), runner="bubblewrap").session.network == "host"


def test_proot_has_only_the_machines_network_and_says_what_it_lacks(tmp_path: Path) -> None:
    found = made(RunRequest(argv=("true",)), runner="proot")
    assert (found.session.network, found.session.known) == ("host", True)
    assert found.lines[0].startswith(
        f"proot: {tmp_path}/project at /workspace; user {CALLER}; GPUs none; weak isolation: "
    )
    assert "MiB of shared memory" not in found.lines[0]  # a limit that it cannot keep
    assert made(RunRequest(argv=("true",), network="default"), runner="proot", known=False).session.network == "host"


@pytest.mark.parametrize(("network", "known"), [("none", True), ("none", False), (None, False)])
def test_without_a_network_proot_runs_nothing(network: str | None, known: bool) -> None:
    """An image that was not built here gets the machine's network only where the user says so."""
    with pytest.raises(UsageError, match="proot cannot keep a program off the network") as caught:
        made(RunRequest(argv=("true",), network=network), runner="proot", known=known)
    assert str(caught.value.hint).startswith("--network host shares this machine's network")


def test_several_data_folders(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    request = RunRequest(workspace="none", data=(str(tmp_path / "a"), f"{tmp_path / 'b'}:/b"), argv=("true",))
    assert [(one.target, one.read_only) for one in made(request).session.mounts] == [("/data/a", True), ("/b", True)]


def test_two_folders_at_one_place(tmp_path: Path) -> None:
    request = RunRequest(data=(f"{tmp_path}:/workspace",), argv=("true",))
    with pytest.raises(UsageError, match="two folders are mounted at /workspace"):
        made(request)


def test_an_image_without_a_home_gets_one() -> None:
    assert made(RunRequest(argv=("true",)), env={}).session.env == (("HOME", "/tmp"),)


@pytest.mark.parametrize(
    ("label", "shm"), [("", 1024), ("64", 64), ("-1", 1024), ("9" * 30, 1024), ("99999999", 1 << 20), ("0", 1)]
)
def test_shared_memory_that_a_label_names_has_limits(label: str, shm: int) -> None:
    assert made(RunRequest(argv=("true",)), labels={"envkit.shm-mb": label}).session.shm_mb == shm


def test_ports_of_the_image_and_of_its_features() -> None:
    tensorboard = {"envkit.features": "tensorboard"}
    found = made(RunRequest(argv=("true",)), ports=("80/tcp",), labels=tensorboard)
    assert [one.container for one in found.session.ports] == [80, 6006]
    assert made(RunRequest(argv=("true",), ports=("none",)), ports=("80/tcp",)).session.ports == ()
    assert [str(one) for one in made(RunRequest(argv=("a",), ports=("81:80",)), ports=("80/tcp",)).session.ports] == [
        "127.0.0.1:81:80"
    ]


def test_a_port_of_the_image_that_is_in_use_is_left_out_unless_it_was_typed() -> None:
    assert made(RunRequest(argv=("true",)), used=(80,), ports=("80/tcp",)).session.ports == ()
    with pytest.raises(EnvironmentProblem, match=r"port 80 of 127\.0\.0\.1 is in use") as caught:
        made(RunRequest(argv=("true",), ports=("80",)), used=(80,))
    assert caught.value.exit_code == 9


def test_a_server_whose_port_is_in_use_is_not_started() -> None:
    with pytest.raises(EnvironmentProblem, match="port 8888 of"):
        made(RunRequest(), used=(8888,), cmd=("jupyter", "lab"), ports=("8888/tcp",))


def test_jupyter_gets_a_token_that_no_list_of_processes_shows() -> None:
    found = made(
        RunRequest(ports=("8899:8888",)),
        cmd=("jupyter", "lab", "--ip=0.0.0.0"),
        labels={"envkit.features": "jupyter"},
    )
    token = dict(found.session.env)[TOKEN]
    assert len(token) == 32
    assert found.lines[1] == f"jupyter: http://127.0.0.1:8899/lab?token={token}"
    assert found.secrets == (TOKEN,)


def test_jupyter_with_the_machines_network_listens_on_loopback() -> None:
    found = made(RunRequest(ports=("none",)), runner="bubblewrap", cmd=("jupyter", "lab", "--ip=0.0.0.0"))
    assert found.session.argv == ("jupyter", "lab", "--ip=127.0.0.1")


def test_an_ssh_server_with_the_callers_key(tmp_path: Path) -> None:
    key = tmp_path / "id.pub"
    key.write_text("ssh-ed25519 AAAA me@here\n")
    found = made(RunRequest(ssh_key=key, ports=("2200:2222",)), labels={"envkit.features": "ssh jupyter"})
    assert found.session.argv[-1] == "ssh-ed25519 AAAA me@here"
    assert found.session.user is None
    assert found.lines[1] == f"ssh: ssh -p 2200 envkit@127.0.0.1   (key {key})"


@pytest.mark.parametrize(
    ("request_", "facts", "said", "code"),
    [
        (RunRequest(), {"cmd": (), "entrypoint": ()}, "the image has no default command, and none is given", 2),
        (RunRequest(argv=("a",), workspace="/nowhere"), {}, "--workspace '/nowhere' does not exist", 2),
        (RunRequest(argv=("a",), env=("1A=2",)), {}, "--env '1A=2' is not NAME=VALUE", 2),
        (RunRequest(argv=("a",), env=("=2",)), {}, "--env '=2' is not NAME=VALUE", 2),
        (RunRequest(argv=("a",), env=("NOT_SET_HERE",)), {}, "--env NOT_SET_HERE: the variable is not set here", 2),
        (RunRequest(argv=("a",), user="me"), {}, "--user 'me' is not UID:GID", 2),
        (RunRequest(argv=("a",), network="none", ports=("80",)), {}, "--port: this container has no network", 2),
        (
            RunRequest(argv=("a",), network="host", ports=("80:81",)),
            {},
            "ports cannot be mapped with the host network",
            2,
        ),
        (RunRequest(ssh_key=Path("k.pub")), {}, "--ssh needs an image with the feature ssh", 2),
    ],
)
def test_what_is_refused(request_: RunRequest, facts: dict[str, Any], said: str, code: int) -> None:
    with pytest.raises(EnvkitError) as caught:
        made(request_, **facts)
    assert said in caught.value.message
    assert caught.value.exit_code == code
    assert caught.value.hint


class Bubblewrap:
    """A bubblewrap that has one image, whatever its name."""

    name = "bubblewrap"

    def inspect(self, image: ImageName) -> dict[str, Any]:
        assert image.typed == IMAGE
        return FACTS


IMAGE = "oci:build/train"


class TestKnown:
    """An image is known if it was built here or is attested; it gets the folder and bubblewrap's host network."""

    @pytest.fixture(autouse=True)
    def state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setattr(running, "runner_of", lambda image, *_, **__: (Bubblewrap(), image))
        return tmp_path / "state" / "envkit"

    def known(self, tmp_path: Path, **more: Any) -> bool:
        image = more.pop("image", IMAGE)
        request = RunRequest(image=image and image_name(image), argv=("true",))
        session = ready(request, load({}, {}, tmp_path), Silent(), **more).session
        assert bool(session.mounts) == (session.network == "host")
        return bool(session.mounts)

    @pytest.mark.parametrize("verdict", ["PASS", "WARN", "FAIL", "ERROR", "INCONCLUSIVE", "NOT_VERIFIED"])
    def test_a_verification_makes_nothing_trusted(self, verdict: str, state: Path, tmp_path: Path) -> None:
        (state / RECORDS).mkdir(parents=True)
        tree = {"subject": {"id": FACTS["id"], "image": IMAGE}, "summary": {"verdict": verdict, "exit_code": 0}}
        (state / RECORDS / "1.json").write_text(json.dumps(tree))
        assert not self.known(tmp_path)

    def test_an_image_that_was_built_here_is(self, state: Path, tmp_path: Path) -> None:
        write_built(state, (FACTS["id"],))
        assert self.known(tmp_path)

    @pytest.mark.parametrize("image", [None, IMAGE])
    def test_another_image_where_one_was_built_is_not(self, image: str | None, state: Path, tmp_path: Path) -> None:
        other = "sha256:" + "b" * 64
        write_built(state, (other,))
        write_last(state, LastBuilt(image=IMAGE, tags=(), plan=other, engine="embedded", built="2026-01-01T00:00:00Z"))
        assert not self.known(tmp_path, image=image)

    def test_labels_of_an_image_that_was_built_here_are_not_enough(
        self, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_built(state, ("sha256:" + "b" * 64,))
        labels = {f"{LABEL_PREFIX}.plan": "sha256:" + "b" * 64, f"{LABEL_PREFIX}.features": "jupyter"}
        monkeypatch.setitem(FACTS, "labels", labels)
        assert not self.known(tmp_path)

    def test_an_attested_image_is(self, tmp_path: Path) -> None:
        assert self.known(tmp_path, attested=FACTS["id"])

    def test_an_image_other_than_the_attested_one_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(IntegrityError, match="and the attested image is sha256:bbb"):
            self.known(tmp_path, attested="sha256:" + "b" * 64)


@pytest.mark.parametrize(
    ("env", "gpus", "note"),
    [
        (("CUDA_VISIBLE_DEVICES=-1",), "all", "note: CUDA_VISIBLE_DEVICES=-1 hides every GPU from CUDA."),
        (("CUDA_LAUNCH_BLOCKING=1",), "all", "note: CUDA_LAUNCH_BLOCKING=1 makes every kernel launch synchronous"),
        (("CUDA_VISIBLE_DEVICES=0",), "all", None),
    ],
)
def test_a_variable_that_hides_gpus_or_slows_is_noted(
    env: tuple[str, ...], gpus: str, note: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.pipeline.running.gpus_here", lambda requested, _: requested)
    notes = [line for line in made(RunRequest(env=env, gpus=gpus)).lines if line.startswith("note: ")]
    assert (notes == []) is (note is None)
    assert note is None or notes[0].startswith(note)
