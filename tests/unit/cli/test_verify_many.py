"""`envkit verify` of several images on this machine: how it shows what it found."""

from pathlib import Path

import pytest

from envkit.cli import options
from envkit.cli.main import run
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
    bar = Bar(capsys)
    monkeypatch.setattr(options, "reporter_for", lambda *_args, **_flags: bar)
    assert run(["verify", "--runner", "host", "./a", "./b"]) == 8
    assert bar.printed == [""]
    assert capsys.readouterr().out.startswith("image")
    assert run(["verify", "--runner", "host", "./a", "./b", "--report", "html=page.html"]) == 8
    assert "envkit verification matrix" in (tmp_path / "page.html").read_text()
    assert run(["verify", "--runner", "host", "./a", "./b", "--report", "junit=x.xml"]) == 2
    assert "--report junit is for one image on one machine" in capsys.readouterr().err
