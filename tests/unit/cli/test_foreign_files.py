"""Files that are no files, by the command that reads them: each is refused at once, with its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.cli.main import run


def two_gigabytes(path: Path) -> None:
    path.touch()
    os.truncate(path, 2 << 30)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


COMMANDS = {
    "definition": ["render", "./compose.yaml", "--only", "plan"],
    "plan": ["build", "--plan", "compose.yaml"],
    "lock": ["render", "--locked", "compose.yaml", "--only", "plan"],
    "facts": ["resolve", "--cpu", "--facts", "compose.yaml"],
    "matrix": ["build", "--matrix", "compose.yaml"],
    "record": ["doctor", "--record", "compose.yaml"],
    "record to judge": ["verify", "--judge", "compose.yaml"],
    "file": ["doctor", "--file", "compose.yaml"],
    "validate": ["validate", "compose.yaml"],
    "two locks": ["diff", "compose.yaml", "compose.yaml"],
}


LARGE = COMMANDS.keys() - {"validate", "two locks"}  # these read only the beginning of a file that is not their own


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.requirement("R61")
@pytest.mark.parametrize(
    ("name", "make", "what"),
    [
        *((name, os.mkfifo, "is a pipe") for name in COMMANDS),
        *((name, device, "is a device") for name in COMMANDS),
        *((name, two_gigabytes, "larger than") for name in sorted(LARGE)),
    ],
)
def test_what_is_no_file_is_refused_at_once(
    name: str, make: Callable[[Path], None], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(Path("compose.yaml"))
    assert run(COMMANDS[name]) == 2
    told = "".join(capsys.readouterr())
    assert "compose.yaml" in told
    assert what in told


@pytest.mark.requirement("R61")
@pytest.mark.parametrize("make", [os.mkfifo, device], ids=["pipe", "device"])
@pytest.mark.parametrize(
    "words", [["doctor", "--log", "it"], ["cover", "--hosts", "it"], ["resolve", "--for-host", "it"]]
)
def test_a_stream_is_a_file_or_a_pipe_of_the_shell(
    words: list[str], make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make(Path("it"))
    assert run(words) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_a_pipe_of_the_shell_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("log").write_text("RuntimeError: No CUDA GPUs are available\n")
    with Path("log").open("rb") as file:
        assert run(["doctor", "--log", f"/dev/fd/{file.fileno()}"]) == 0
    assert "No CUDA" in capsys.readouterr().out
