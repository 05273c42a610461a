from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from envkit.cli.record_output import keep_trace
from envkit.ground.errors import EnvironmentProblem, PayloadError
from envkit.verify.trace import FORMAT

PACKED = gzip.compress(json.dumps({"traceEvents": []}).encode())
DOCUMENT: dict[str, Any] = {"trace": {"format": FORMAT, "data": base64.b64encode(PACKED).decode()}}


def test_the_trace_is_kept_and_its_place_is_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json.gz"
    assert keep_trace(path, DOCUMENT, 0) == 0
    assert path.read_bytes() == PACKED
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"trace: {path}\n")


def test_without_a_trace_a_good_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="returned no trace"):
        keep_trace(tmp_path / "t.json", None, 0)


def test_a_bad_run_keeps_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keep_trace(tmp_path / "t.json", None, 5) == 5
    assert capsys.readouterr().err == "error: the payload returned no trace\n"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match="the trace cannot be written to"):
        keep_trace(tmp_path / "file" / "t.json", DOCUMENT, 0)
