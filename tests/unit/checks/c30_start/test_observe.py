"""The way from an image's words to its program, in a folder of files."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

observe: Any = import_module("envkit.checks.c30_start.observe")
SCRIPT = b"#!/bin/sh\nexec true\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with scripts, and `bin`, which is the PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    files: dict[str, tuple[bytes, int]] = {
        "good.sh": (SCRIPT, 0o755),
        "closed.sh": (SCRIPT, 0o644),
        "windows.sh": (SCRIPT.replace(b"\n", b"\r\n"), 0o755),
        "bare.sh": (b"exec true\n", 0o755),
        "no-line.sh": (b"#!\n", 0o755),
        "lost.sh": (b"#!/opt/gone/python3.9\n", 0o755),
        "env-lost.sh": (b"#!/usr/bin/env -S no-such-python -u\n", 0o755),
        "env.sh": (b"#!/usr/bin/env prog\n", 0o755),
        "other.bin": (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x08\x00" + bytes(44), 0o755),
        "train.py": (b"", 0o644),
        "bin/prog": (SCRIPT, 0o755),
        "bin/data": (SCRIPT, 0o644),
    }
    for name, (data, mode) in files.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(mode)
    for name in ("tini", "env", "bash", "sh", "gosu"):
        (programs / name).symlink_to("/bin/true")
    (programs / "python3").symlink_to(sys.executable)
    (tmp_path / "dangling").symlink_to("/gone")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    return tmp_path


def walked(folder: Path, *words: str, entry: int = 0) -> list[dict[str, Any]]:
    walk = observe.Walk(f"{folder / 'bin'}:/nowhere", entry)
    return list(walk.steps(list(words), str(folder)))


def problems(folder: Path, *words: str) -> list[tuple[str, str | None]]:
    return [(step["word"], step["problem"]) for step in walked(folder, *words)]


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("./good.sh", None),
        ("prog", None),
        ("./env.sh", None),
        ("/gone/start.sh", "missing"),
        ("gone", "missing"),
        ("good.sh", "missing"),  # it is not on the PATH
        ("", "missing"),
        ("./dangling", "missing"),
        ("./bin", "folder"),
        ("./closed.sh", "not executable"),
        ("data", "not executable"),
        ("./windows.sh", "line ends"),
        ("./bare.sh", "no interpreter"),
        ("./no-line.sh", "no interpreter"),
        ("./lost.sh", "interpreter missing"),
        ("./env-lost.sh", "interpreter missing"),
        ("./other.bin", "other architecture"),
    ],
)
def test_a_program(folder: Path, word: str, problem: str | None) -> None:
    assert problems(folder, word) == [(word, problem)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tini", "-g", "--", "prog", "gone"], [("tini", None), ("prog", None)]),
        (["tini", "-p", "TERM", "gone"], [("tini", None), ("gone", "missing")]),
        (["env", "-i", "-u", "A", "B=c", "gone"], [("env", None), ("gone", "missing")]),
        (["gosu", "app:app", "gone"], [("gosu", None), ("gone", "missing")]),
        (["bash", "-e", "gone.sh", "prog"], [("bash", None), ("gone.sh", "missing")]),
        (["bash", "closed.sh"], [("bash", None), ("closed.sh", None)]),  # a shell only reads it
        (["sh", "windows.sh"], [("sh", None), ("windows.sh", "line ends")]),
        (["bash", "-o", "pipefail", "good.sh"], [("bash", None), ("good.sh", None)]),
        (["bash"], [("bash", None)]),
        (["python3", "train.py"], [("python3", None), ("train.py", None)]),
        (["python3", "-u", "-W", "ignore", "gone.py"], [("python3", None), ("gone.py", "missing")]),
        (["python3", "package"], [("python3", None), ("package", None)]),
        (["python3", "-c", "gone"], [("python3", None)]),
        (["python3", "-m", "json.tool"], [("python3", None), ("json.tool", None)]),
        (["python3", "-m", "package"], [("python3", None), ("package", None)]),
        (["python3", "-mno_such_module"], [("python3", None), ("no_such_module", "missing")]),
        (["prog", "gone.py"], [("prog", None)]),
    ],
)
def test_what_a_program_starts_in_turn(folder: Path, words: list[str], expected: list[tuple[str, str | None]]) -> None:
    assert problems(folder, *words) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("prog --flag", [("prog", None)]),
        ("exec gone", [("gone", "missing")]),
        ("A=1 B=2 exec gone", [("gone", "missing")]),
        ("cd bin && ./prog", [("./prog", None)]),
        ("cd bin && ./good.sh", [("./good.sh", "missing")]),
        ("cd gone && prog", [("gone", "missing")]),
        ("mkdir -p gone && cd gone && prog", [("cd gone", "undecided")]),
        ("echo hello; gone > log 2>&1 &", [("gone", "missing")]),
        ("python3 gone.py --lr 1", [("python3", None), ("gone.py", "missing")]),
        ("python3 $FILE", [("python3", None)]),
        ("$APP", [("$APP", "undecided")]),
        ("gone || prog", [("(gone || prog", "undecided")]),
        ("if [ -f x ]; then gone; fi", [("if", "undecided")]),
        ("export PATH=/new:$PATH && gone", [("export", "undecided")]),
        ("PATH=/new gone", [("PATH=/new", "undecided")]),
        (". ./good.sh && gone", [("./good.sh", None), (". ./good.sh", "undecided")]),
        ("source gone.sh; prog", [("gone.sh", "missing")]),
        ("an 'open quote", [("(an 'open quote", "undecided")]),
        ("", []),
    ],
)
def test_a_shell_form(folder: Path, line: str, expected: list[tuple[str, str | None]]) -> None:
    assert problems(folder, "sh", "-c", line) == [("sh", None), *expected]


def test_the_entry_script_of_envkit_starts_its_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "ENTRY", str(folder / "good.sh"))
    steps = walked(folder, "tini", "-g", "--", "bash", str(folder / "good.sh"), "gone", entry=5)
    assert [(step["word"], step["role"]) for step in steps[2:]] == [
        (str(folder / "good.sh"), "entry point"),
        ("gone", "command"),
    ]
    assert steps[-1]["problem"] == "missing"


def test_a_file_in_the_working_folder_is_pointed_at(folder: Path) -> None:
    assert walked(folder, "good.sh")[0]["detail"] == "it is in the working folder: write ./good.sh"


def test_words_without_end_are_followed_only_so_far(folder: Path) -> None:
    assert len(walked(folder, *["env"] * 500)) == observe.STEPS_MAX


def test_the_controls_hold(folder: Path) -> None:
    controls = observe._controls(str(folder / "bin"))
    assert [control["name"] for control in controls if not control["held"]] == []
    assert shutil.which("sh")
