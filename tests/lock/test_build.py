"""`envkit build` solves its own lock; where that is not possible it says what else there is."""

from pathlib import Path

import pytest

from envkit import settings
from envkit.build.model import Builder, BuildOptions
from envkit.cli import locking
from envkit.errors import SurroundingsError
from envkit.lock.model import LockedBase
from envkit.progress import Silent
from tests.lock.commands import CPU, serve_images
from tests.lock.served import Site


class Engine:
    """As much of a builder as a lock asks for."""

    def locked_base(self, *_: object) -> LockedBase:
        return LockedBase(kind="none", reference="none")


class Steps(Silent):
    """A reporter that keeps the steps."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def step(self, text: str) -> None:
        self.heard.append(text)


def solve(env: dict[str, str], talk: Silent) -> object:
    builder: Builder = Engine()  # type: ignore[assignment]
    found = settings.load({}, env, Path("/nonexistent"))
    return locking.solve(CPU, builder, BuildOptions(mirrors=found.mirrors()), talk, settings=found, facts_file=None)


def test_the_lock_of_a_build_is_solved_in_steps_of_its_own(site: Site) -> None:
    talk = Steps()
    lock = solve(serve_images(site), talk)
    assert getattr(lock, "plan", None) == CPU.digest
    assert [step.partition(":")[0] for step in talk.heard] == ["lock", "lock"]


def test_where_no_source_answers_there_is_a_way_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SurroundingsError, match="the lock cannot be solved: no answer from http://127") as caught:
        solve({"ENVKIT_CONDA_CHANNEL_ALIAS": "http://127.0.0.1:9"}, Silent())
    assert caught.value.exit_code == 9
    assert "envkit build --no-lock" in (caught.value.hint or "")
