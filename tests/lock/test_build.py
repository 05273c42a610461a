"""`envkit build` solves its own lock; where that is not possible it says what else there is."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.engines.model import Builder
from envkit.ground import settings
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.progress import Reporter, Silent
from envkit.lock.model import LockedBase
from envkit.pipeline.locking import LockRequest, lock_for_build
from tests.lock.commands import CPU, envkit, serve_images
from tests.lock.served import Site
from tests.support.heard import Heard


class Engine:
    """As much of a builder as a lock asks for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def locked_base(self, *_: object) -> LockedBase:
        return LockedBase(kind="none", reference="none")


def solve(env: dict[str, str], talk: Reporter, engine: str = "docker") -> object:
    builder: Builder = Engine(engine)  # type: ignore[assignment]
    found = settings.load({}, env, Path("/nonexistent"))
    return lock_for_build(LockRequest(plan=CPU, settings=found), builder, talk)


def test_the_lock_of_a_build_is_solved_in_steps_of_its_own(site: Site) -> None:
    talk = Heard()
    lock = solve(serve_images(site), talk)
    assert getattr(lock, "plan", None) == CPU.digest
    assert [step.partition(":")[0] for step in talk.steps] == ["lock", "lock"]


def test_where_no_source_answers_there_is_a_way_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentProblem, match="the lock cannot be solved: no answer from http://127") as caught:
        solve({"ENVKIT_CONDA_CHANNEL_ALIAS": "http://127.0.0.1:9"}, Silent())
    assert caught.value.exit_code == 9
    assert "envkit build --no-lock" in (caught.value.hint or "")


def test_an_engine_that_needs_a_lock_is_not_offered_to_go_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentProblem) as caught:
        solve({"ENVKIT_CONDA_CHANNEL_ALIAS": "http://127.0.0.1:9"}, Silent(), "embedded")
    assert "--no-lock" not in (caught.value.hint or "")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_the_time_limit_covers_the_lock_and_names_the_phase(silent: str, tmp_path: Path) -> None:
    env = {"ENVKIT_CONDA_CHANNEL_ALIAS": silent, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = envkit(tmp_path, "build", "cpu", "--engine", "embedded", "--base", "none", "--timeout", "2", env=env)
    assert done.returncode == 124, done.stderr
    assert "error: the time limit of 2 s was reached at: lock: solve " in done.stderr
    assert "hint: raise --timeout SECONDS" in done.stderr
    assert "Traceback" not in done.stderr
