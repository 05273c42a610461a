"""A commit of a repository, fetched by git from a real server on loopback."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError, EnvironmentProblem
from envkit.ground.progress import Silent
from envkit.source import fetch
from envkit.source.fetch import Archive
from envkit.source.look import look
from tests.support.git_server import Repository, served
from tests.support.sources import FASTSUM


def _fetch(found: Repository, folder: Path, commit: str | None = None) -> Archive:
    return fetch.commit("fastsum", found.url, commit or found.commit, folder, Silent(), ca_bundle=None)


def test_a_commit_becomes_the_same_tar_each_time(tmp_path: Path) -> None:
    with served(tmp_path / "server", FASTSUM) as found:
        one, other = (_fetch(found, tmp_path / name) for name in ("one", "other"))
    assert one.sha256 == other.sha256
    assert look(one.path, "fastsum", commit=True).requires == ("setuptools",)


def test_a_commit_that_the_server_lacks_is_an_error_with_the_next_command(tmp_path: Path) -> None:
    with (
        served(tmp_path / "server", FASTSUM) as found,
        pytest.raises(EngineError, match="git cannot fetch") as caught,
    ):
        _fetch(found, tmp_path, "0" * 40)
    assert caught.value.hint == f"git ls-remote {found.url}"


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with (
        served(tmp_path / "other", FASTSUM) as other,
        served(tmp_path / "server", FASTSUM, moved=other.url.removesuffix("/project")) as found,
        pytest.raises(EngineError),
    ):
        _fetch(found, tmp_path)
    assert other.asked == []


@pytest.mark.requirement("R61")
@pytest.mark.parametrize(
    "files",
    [
        {"zeros": "\0" * (6 << 20)},
        {f"{number}/zeros": "\0" * (1 << 20) for number in range(6)},
        {"noise": "".join(map(chr, random.Random(1).choices(range(32, 127), k=4 << 20)))},
        {"big": "x" * (3 << 19), "other": "y" * (3 << 19)},
        {f"{'d' * 150}/{'e' * 120}/{number}": "" for number in range(1600)},
    ],
    ids=["one file", "equal files", "a large pack", "two files", "many files"],
)
def test_a_commit_without_end_is_stopped_while_it_is_written(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_LIMITED", (*fetch._LIMITED[:3], str((2 << 20) // 512)))
    sizes: list[int] = []
    remove = shutil.rmtree

    def measured(folder: Path, **more: Any) -> None:
        sizes.extend(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        remove(folder, **more)

    with served(tmp_path / "server", files) as found:
        monkeypatch.setattr(shutil, "rmtree", measured)
        with pytest.raises(EngineError, match="has more than 1 GiB at this commit"):
            _fetch(found, tmp_path / "out")
    assert max(sizes, default=0) <= 2 << 20
    assert not (tmp_path / "out").exists()


def test_settings_of_the_caller_do_not_steer_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    with served(tmp_path / "server", FASTSUM) as found:
        assert _fetch(found, tmp_path).commit == found.commit


def test_without_git_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="git is not installed") as caught:
        fetch.commit("fastsum", "https://git.example.com/x", "0" * 40, tmp_path, Silent(), ca_bundle=None)
    assert caught.value.hint == "apt-get install git"
