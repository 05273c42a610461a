"""Judge one observation like those of a run, including its controls and the noise gate."""

from __future__ import annotations

from typing import Any

from envkit.checks.catalog import CheckEntry, judges
from envkit.checks.model import Finding, Verdict
from envkit.verify.judge import check_of, judge
from tests.support.judging import document, observation

CLEAN = {"gate": "clean"}
NOISY = {"gate": "CPU pressure 0.40 above 0.10"}
PASS, WARN, FAIL, SKIP = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.SKIP
INCONCLUSIVE, ERROR = Verdict.INCONCLUSIVE, Verdict.ERROR


def found(
    check_id: str,
    observed: dict[str, Any],
    spec: dict[str, Any] | None = None,
    *,
    missing: tuple[str, ...] = (),
    **changed: Any,
) -> Finding:
    """Return the finding on an observation from a runner without the guarantees in `missing`."""
    check = check_of(check_id)
    tree = document(observation(check_id, observed=observed, **changed))
    (judged,) = judge(tree, spec or {}, [CheckEntry(check, check, "quick", 1.0, "host")], judges(), missing=missing)
    finding = judged.finding
    if finding.verdict in (WARN, FAIL):
        assert finding.advice, finding.message
        assert finding.reason_code is not None
        assert finding.reason_code == finding.reason_code.upper()
    assert finding.rule or finding.verdict in (SKIP, ERROR)
    return finding


def said(
    check_id: str, observed: dict[str, Any], spec: dict[str, Any] | None = None, **changed: Any
) -> tuple[str, Any]:
    """Return the verdict and the reason code."""
    finding = found(check_id, observed, spec, **changed)
    return finding.verdict, finding.reason_code
