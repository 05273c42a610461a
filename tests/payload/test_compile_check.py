"""torch.compile, run for real, and without a compiler, with an empty one, with one that hangs."""

from __future__ import annotations

import shutil
import stat
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.model import Verdict
from tests.support.payloads import context, finding_of, module, observe, observer, said

pytestmark = pytest.mark.long
HEADERS = Path(sysconfig.get_path("include")) / "Python.h"
torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")


def compiled(promise: str | None, limit_s: float = 75.0) -> dict[str, Any]:
    ctx = context(features={"compile": promise})
    check = observer("c18_compile")
    before, check.LIMIT_S = check.LIMIT_S, limit_s
    try:
        return observe("c18_compile", ctx)["C18.inductor"]
    finally:
        check.LIMIT_S = before


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here: apt-get install g++")
@pytest.mark.skipif(not HEADERS.exists(), reason="no Python headers here: apt-get install python3-dev")
def test_torch_compile_generates_kernels() -> None:
    item = compiled("required", limit_s=600.0)
    assert said(item, {"features": {"compile": "required"}}) == (Verdict.PASS, None)
    assert item["observed"]["kernels"]


def test_an_image_without_a_compiler_fails_where_compiling_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setenv("CXX", "no-such-compiler")
    item = compiled("required")
    assert item["observed"]["compilers"] == {}
    assert said(item, {"features": {"compile": "required"}}) == (Verdict.FAIL, "NO_COMPILER")
    assert said(item, {"features": {"compile": "optional"}}) == (Verdict.WARN, "NO_COMPILER")
    assert finding_of(item, {"features": {"compile": "required"}}).rule["gates"] is True


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here: apt-get install g++")
def test_a_compiler_variable_that_is_empty_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    finding = finding_of(compiled("required"), {"features": {"compile": "required"}})
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "COMPILER_VARIABLE_EMPTY")


def test_a_compiler_that_never_answers_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "g++"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(slow))
    item = compiled("required", limit_s=6.0)
    assert said(item, {"features": {"compile": "required"}}) == (Verdict.INCONCLUSIVE, "COMPILE_TIME_LIMIT")


def test_an_image_that_is_not_to_compile_is_not_asked() -> None:
    with pytest.raises(module("observation").Skip, match="does not compile"):
        compiled("absent")
