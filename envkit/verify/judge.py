"""Turn the payload's document into one finding per check. Pure: the same document and spec give the same findings."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from envkit.checks.case import Case
from envkit.checks.catalog import machine_codes
from envkit.checks.model import Finding, Verdict
from envkit.checks.observed import MalformedError, at_its_limit, timed, unjudged
from envkit.knowledge import codes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from envkit.checks.case import Judge
    from envkit.checks.catalog import CheckEntry
    from envkit.checks.model import Env, Observation, Spec

# Rules on times and rates, which are not reliable on a busy machine.
_TIMED_RULES = ("min_frac_of_limit", "min_ratio", "max_ratio", "not_worse_than_baseline")
# What a rule raises on an observation with missing fields, other types or a division by zero.
_UNTRUSTED = (MalformedError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


NOT_OBSERVED = Finding(Verdict.ERROR, "the payload reported nothing for this check", "NOT_OBSERVED")
"""The finding for a selected check of which a complete document has no observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One check and its verdict. `observation` is None if there is none."""

    id: str
    title: str
    subject: str
    finding: Finding
    observation: Observation | None = None

    @property
    def gates(self) -> bool:
        """Whether the verdict counts; a finding that only informs has `rule["gates"]` False."""
        return self.finding.rule.get("gates", True) is not False

    @property
    def blames(self) -> str | None:
        """What failed, 'image' or 'machine'; None if nothing that counts failed."""
        if self.finding.verdict is not Verdict.FAIL or not self.gates:
            return None
        return "machine" if self.finding.reason_code in machine_codes() else "image"

    @property
    def ran(self) -> bool:
        """Whether the check ran, with any result."""
        return self.observation is not None and self.observation.get("status") == "ran"


def judge(
    document: Mapping[str, Any] | None,
    spec: Spec,
    selected: Sequence[CheckEntry],
    rules: Mapping[str, Judge],
    *,
    absent: Finding = NOT_OBSERVED,
    trust_timing: bool = True,
    missing: Collection[str] = (),
) -> tuple[Judged, ...]:
    """Judge every observation, and every selected check that has none.

    `document` is None if the payload returned none. `absent` is the finding for checks without an observation. The
    order is that of `selected`, and within a check that of the document; observations of other checks come last.
    Without `trust_timing`, rules on times and rates only inform. `missing` are the guarantees that the runner could not
    give (`envkit.run.model.GUARANTEES`); rules find them in their `env`.
    """
    env: Env = {**(document["env"] if document is not None else {}), "missing": tuple(missing)}
    titles = {entry.id: entry.title for entry in selected}
    by_check: dict[str, list[Judged]] = {entry.id: [] for entry in selected}
    for observation in document["checks"] if document is not None else ():
        check = check_of(observation["id"])
        item = _judged(observation, titles.get(check, check), spec, env, rules)
        by_check.setdefault(check, []).append(item if trust_timing else _informing(item))
    judged: list[Judged] = []
    for check, items in by_check.items():
        judged.extend(items or [Judged(id=check, title=titles[check], subject="image", finding=absent)])
    return tuple(judged)


def not_selected(entries: Iterable[CheckEntry], selected: Sequence[CheckEntry]) -> tuple[Judged, ...]:
    """Return the checks of the tier that the caller left out, so that the record lists what was not checked."""
    chosen = {entry.id for entry in selected}
    finding = Finding(Verdict.SKIP, "left out by --only or --skip", "NOT_SELECTED")
    return tuple(
        Judged(id=entry.id, title=entry.title, subject="image", finding=finding)
        for entry in entries
        if entry.id not in chosen
    )


def check_of(observation_id: str) -> str:
    """Return the check that an observation belongs to: `C05` for `C05.fp32`."""
    return observation_id.partition(".")[0]


def _judged(observation: Observation, title: str, spec: Spec, env: Env, rules: Mapping[str, Judge]) -> Judged:
    rule = rules.get(check_of(observation["id"]))
    finding = unjudged(observation)
    if rule is None:
        finding = Finding(Verdict.ERROR, f"there is no rule for {observation['id']}", "NO_RULE")
    elif finding is None:
        finding = _applied(rule, observation, spec, env)
    elif finding.reason_code == "CONTROL_FAILED" and _busy(observation):
        finding = _unclear(finding, _applied(rule, observation, spec, env))
    finding = _with_meaning(finding)
    if finding.reason_code in machine_codes() and finding.verdict in (Verdict.FAIL, Verdict.ERROR):
        # A fault of the machine counts even if the rule only informs about the image, or if it stopped the check.
        finding = replace(finding, verdict=Verdict.FAIL, rule={**finding.rule, "gates": True})
    return Judged(
        id=observation["id"], title=title, subject=observation["subject"], finding=finding, observation=observation
    )


_NVML_ERROR = re.compile(r"\bNVML error (\d{1,3})\b")
_NO_LIBRARY = ("Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",)


def _with_meaning(finding: Finding) -> Finding:
    """Explain the errors of NVML, which the payload only numbers, because their table is not sent into the image."""
    if finding.verdict is not Verdict.SKIP:
        return finding
    known = {match[0]: codes.table("nvml").by_number(int(match[1])) for match in _NVML_ERROR.finditer(finding.message)}
    message, advice = finding.message, finding.advice
    for text, code in known.items():
        if code is not None:
            message = message.replace(text, f"{text} ({code.text}): {code.means}".rstrip("."))
            # A reading that a GPU lacks needs no advice; NVML that does not start does.
            advice = code.rows[0].fix if finding.reason_code == "NO_NVML" else advice
    if finding.reason_code == "NO_NVML" and not known:
        advice = _NO_LIBRARY
    return replace(finding, message=message, advice=advice)


def _informing(item: Judged) -> Judged:
    """Return the finding, changed to only inform if its rule is on times or rates."""
    finding = item.finding
    if finding.rule.get("type") not in _TIMED_RULES or not _on_a_clock(item.observation or {}) or not item.gates:
        return item
    message = f"{finding.message}; informs only: timing is unreliable on this machine (self-test failed)"
    return replace(item, finding=replace(finding, message=message, rule={**finding.rule, "gates": False}))


def _on_a_clock(observation: Observation) -> bool:
    return observation.get("samples") is not None or observation.get("noise") is not None


def _applied(rule: Judge, observation: Observation, spec: Spec, env: Env) -> Finding:
    """Return the rule's finding. An observation from a container may lack any field: then its finding is an ERROR."""
    try:
        finding = rule(Case(observation, spec, env))
    except _UNTRUSTED as error:
        return Finding(Verdict.ERROR, f"malformed observation: {error}", "MALFORMED_OBSERVATION")
    if _on_a_clock(observation) and finding.rule.get("type") in _TIMED_RULES:
        finding = timed(finding, observation)
    finding = at_its_limit(finding, observation)
    if finding.verdict is not Verdict.PASS and not finding.reason_code:
        return Finding(Verdict.ERROR, f"a verdict without a reason: {finding.message}", "NO_REASON", rule=finding.rule)
    return finding


def _busy(observation: Observation) -> bool:
    """Whether the observation has a noise reading that was not clean."""
    noise = observation.get("noise")
    return isinstance(noise, dict) and noise.get("gate") != "clean"


def _unclear(failed: Finding, applied: Finding) -> Finding:
    """Return INCONCLUSIVE for a control that failed on a busy machine: a timed control needs a quiet one as well.

    What a rule that reads no clock found stays: other work on the machine changes times, not results.
    """
    if applied.verdict in (Verdict.FAIL, Verdict.WARN) and applied.rule.get("type") not in (*_TIMED_RULES, "informs"):
        return applied
    message = f"{failed.message}; the machine was busy"
    return replace(
        applied,
        verdict=Verdict.INCONCLUSIVE,
        reason_code="NOISY",
        message=message,
        advice=("Run it again while nothing else uses this machine.",),
    )
