"""`envkit verify` of several images on this machine: how it shows what it found."""

from pathlib import Path
from typing import Any

import pytest

from envkit.cli.verify_many import verify_many
from envkit.ground.progress import Silent


class Bar(Silent):
    """A reporter that draws until it is closed, and looks at what was printed then."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.printed: list[str] = []

    def close(self) -> None:
        self.printed.append(self._capsys.readouterr().out)


def test_the_bar_goes_before_the_matrix_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    asked: dict[str, Any] = {"runner": "host"}
    bar = Bar(capsys)
    assert verify_many(["./a", "./b"], asked, bar, scheduler=None, workers=None, document=None) == 8
    assert bar.printed == [""]
    assert capsys.readouterr().out.startswith("image")
