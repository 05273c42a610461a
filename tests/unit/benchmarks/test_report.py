import os
import sys

import pytest

from benchmarks._report import tell


def test_a_reader_that_went_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        tell("a line")
        tell("another")  # goes nowhere, as does what is left in the buffer at the end


def test_a_reader_that_stays_reads_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    tell("a line")
    assert capsys.readouterr().out == "a line\n"
