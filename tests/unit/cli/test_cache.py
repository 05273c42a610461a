"""`envkit cache` and `envkit cache prune`."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest

from envkit.cli.cache import keep_within
from envkit.cli.main import run
from envkit.ground.progress import Silent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    return tmp_path / "c" / "envkit"


def _download(cache: Path, name: str, size: int, days: float) -> Path:
    path = cache / "downloads" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - days * 86400,) * 2)
    return path


def test_what_is_kept_is_shown(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _download(cache, "a", 2_000_000, 3.1)
    _download(cache, "b", 500_000, 0.1)
    assert run(["cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["what", "entries", "size", "last", "used", "first", "used"]
    assert lines[1] == "downloads  2        2.5 MB  2 hours ago  3 days ago  downloaded packages"
    assert lines[2].startswith("all        2        2.5 MB")
    assert str(cache) in lines[2]


def test_an_empty_cache_is_no_fault(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache"]) == 0
    assert run(["cache", "prune"]) == 0
    assert "removed 0 entries, freed 0 B" in capsys.readouterr().out
    assert not cache.exists()


def test_programs_read_json(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _download(cache, "a", 1000, 50)
    assert run(["cache", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["schema"], tree["bytes"], tree["cache"]) == ("envkit.cache/1", 1000, str(cache))
    assert tree["kinds"]["downloads"]["entries"] == 1
    assert tree["kinds"]["layers"] == {"entries": 0, "bytes": 0}
    assert run(["cache", "prune", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["schema"], tree["freed"], tree["held"], tree["in_use"]) == ("envkit.cache-prune/1", 1000, 0, [])
    assert [(one["kind"], one["bytes"]) for one in tree["removed"]] == [("downloads", 1000)]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], {"b", "c"}),
        (["--older-than", "1"], {"c"}),
        (["--keep", "1kB"], {"c"}),
        (["--keep", "2kB", "--older-than", "1"], {"c"}),
        (["--keep", "1GB"], {"a", "b", "c"}),
        (["--all"], set()),
    ],
)
def test_what_goes(cache: Path, options: list[str], left: set[str]) -> None:
    for name, days in (("a", 31), ("b", 2), ("c", 0)):
        _download(cache, name, 1000, days)
    assert run(["cache", "prune", *options]) == 0
    assert {one.name for one in (cache / "downloads").iterdir()} == left


def test_rules_that_contradict_are_refused(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "prune", "--all", "--keep", "1GB"]) == 2
    assert "--all contradicts --keep and --older-than" in capsys.readouterr().err
    assert not cache.exists()


def test_nothing_is_removed_for_a_size_without_a_unit(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = _download(cache, "a", 1000, 50)
    assert run(["cache", "prune", "--keep", "20"]) == 2
    assert capsys.readouterr().err == ("error: --keep: '20' has no unit\n\nhint: write 20GB, 20MB, or 20B for bytes\n")
    assert kept.exists()


@pytest.mark.parametrize(
    ("terminal", "size", "options", "typed", "gone"),
    [
        (True, 2_000_000_000, [], "n\n", False),
        (True, 2_000_000_000, [], "y\n", True),
        (True, 2_000_000_000, ["--yes"], "", True),
        (True, 900_000_000, [], "", True),
        (False, 2_000_000_000, [], "", True),
    ],
)
def test_a_terminal_is_asked_before_a_gigabyte_goes(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool,
    size: int,
    options: list[str],
    typed: str,
    gone: bool,
) -> None:
    kept = _download(cache, "a", 0, 50)
    os.truncate(kept, size)  # a hole: it takes no room
    os.utime(kept, (time.time() - 50 * 86400,) * 2)
    answers = io.TextIOWrapper(io.BytesIO(typed.encode()))
    monkeypatch.setattr(answers, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdin", answers)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert run(["cache", "prune", "--all", *options]) == 0
    assert kept.exists() is not gone


def test_the_setting_keeps_the_cache_within_its_size(cache: Path) -> None:
    for name, days in (("a", 3), ("b", 2), ("c", 0)):
        _download(cache, name, 1000, days)
    keep_within("2kB", Silent())
    assert {one.name for one in (cache / "downloads").iterdir()} == {"b", "c"}
