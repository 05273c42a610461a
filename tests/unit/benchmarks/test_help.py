"""`python -m benchmarks.NAME --help` says what is measured and measures nothing."""

import sys

import pytest

import benchmarks


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_the_docstring(word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "benchmarks.watch", word])
    with pytest.raises(SystemExit) as ended:
        benchmarks._help()
    assert ended.value.code == 0
    assert "python -m benchmarks.watch [seconds of each run]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "-m", "benchmarks.watch", "10"],
        ["python", "-m", "benchmarks.gpu_session", "--help"],  # which declares its options
        ["python", "-m", "pytest", "--help"],
        ["python", "benchmarks/watch.py", "--help"],
    ],
)
def test_other_calls_go_on(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", argv)
    benchmarks._help()
