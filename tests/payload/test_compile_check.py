"""torch.compile, run for real, and without a compiler, with an empty one, with one that hangs."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from envkit.verify.model import Verdict
from tests.support.payloads import context, finding_of, module, observe, said

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install envkit[bench]")


def compiled(promise: str | None, limit_s: float = 75.0) -> dict[str, Any]:
    ctx = context(features={"compile": promise})
    check = module("checks.c18_compile")
    before, check.LIMIT_S = check.LIMIT_S, limit_s
    try:
        return observe("c18_compile", ctx)["C18.inductor"]
    finally:
        check.LIMIT_S = before


def test_torch_compile_generates_kernels_here_or_says_why_not() -> None:
    item = compiled("required")
    spec = {"features": {"compile": "required"}}
    if item["observed"]["error"] is None:
        assert said(item, spec) == (Verdict.PASS, None)
        assert item["observed"]["kernels"]
    else:
        assert finding_of(item, spec).reason_code in ("NO_COMPILER", "NO_PYTHON_HEADERS", "COMPILE_TIME_LIMIT")


def test_an_image_without_a_compiler_fails_where_compiling_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setenv("CXX", "no-such-compiler")
    item = compiled("required")
    assert item["observed"]["compilers"] == {}
    assert said(item, {"features": {"compile": "required"}}) == (Verdict.FAIL, "NO_COMPILER")
    assert said(item, {"features": {"compile": "optional"}}) == (Verdict.WARN, "NO_COMPILER")
    assert finding_of(item, {"features": {"compile": "required"}}).rule["gates"] is True


def test_a_compiler_variable_that_is_empty_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    finding = finding_of(compiled("required"), {"features": {"compile": "required"}})
    assert finding.verdict is Verdict.FAIL
    assert finding.reason_code in ("COMPILER_VARIABLE_EMPTY", "NO_COMPILER")


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
