"""Run a check of the payload in this process with the installed torch, and judge its observations."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from envkit.checks.case import Case
from envkit.checks.catalog import judges
from envkit.checks.model import Finding, Verdict
from envkit.verify.judge import judge

NONCE = "0123456789abcdef"


def module(name: str) -> Any:
    """Return a module of the payload, which is not typed."""
    return import_module(f"envkit.smoke.{name}")


def observer(name: str) -> Any:
    """Return the module of a check that runs inside an image."""
    return import_module(f"envkit.checks.{name}.observe")


def context(tier: str = "standard", **spec: Any) -> Any:
    """Return the context of a check."""
    return module("context").Ctx({"nonce": NONCE, **spec}, tier=tier)


def observe(name: str, ctx: Any = None) -> dict[str, dict[str, Any]]:
    """Run a check and return its observations by ID, which have to be plain JSON."""
    observations = list(observer(name).run(ctx or context()))
    json.dumps(observations, allow_nan=False)
    return {item["id"]: item for item in observations}


def finding_of(item: dict[str, Any], spec: dict[str, Any] | None = None) -> Finding:
    """Return the finding on an observation, ignoring the noise of the machine that runs the tests."""
    quiet = {**item, "noise": item["noise"] and {**item["noise"], "gate": "clean"}}
    (judged,) = judge({"env": {}, "checks": [quiet]}, spec or {}, (), judges())
    return judged.finding


def said(item: dict[str, Any], spec: dict[str, Any] | None = None) -> tuple[Verdict, str | None]:
    """Return the verdict and the reason code of `finding_of`."""
    finding = finding_of(item, spec)
    return finding.verdict, finding.reason_code


def ruled(item: dict[str, Any]) -> Finding:
    """Return the rule's finding, ignoring the controls: controls that measure time need a quiet machine."""
    return judges()[item["id"].partition(".")[0]](Case(item, {}, {}))
