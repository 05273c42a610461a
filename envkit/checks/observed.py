"""Code that all judges share: typed readers of untrusted observations, and verdicts that need no rule."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envkit.checks.model import Finding, Verdict
from envkit.ground import versions
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.model import Observation


# Source: get_cuda_check_suffix and c10_cuda_check_implementation in c10/cuda of torch 1.13 to 2.13.
_ADVICE_OF_TORCH = (
    "CUDA kernel errors might be asynchronously reported",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Device-side assertion tracking was not enabled",
    "Search for `cuda",
)


# What libraries write to standard error after the exception: messages of c10's and Python's logging, warnings, and
# frames of C++. None of it is the cause.
_AFTERWARDS = re.compile(
    r"\[?[IWE]\d{4} \d\d:\d\d:\d\d"  # [W1126 15:25:36.596110387 ProcessGroupNCCL.cpp:1575] Warning: ...
    r"|\S+:\d+: \w*Warning: |warnings\.warn\("
    r"|frame #\d+: |Exception raised from |<omitting python frames>"
    r"|Exception ignored in: "
)
_RANK = re.compile(r"\[rank\d+\]: ?")  # torch prefixes the lines of a traceback with it, from 2.3 on


class MalformedError(Exception):
    """A field that a rule needs is missing from an observation or has another type."""


def number(observed: Mapping[str, Any], key: str) -> float:
    """Return the finite number at ``key``; raises MalformedError otherwise."""
    value = observed.get(key)
    # In Python, True is an integer: a check that reports true instead of a number is malformed.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MalformedError(f"{key} is {value!r}, not a number")
    return float(value)


def optional_number(observed: Mapping[str, Any], key: str) -> float | None:
    """Return the finite number at ``key``, None if it is absent or null; raises MalformedError for anything else."""
    return None if observed.get(key) is None else number(observed, key)


def text(observed: Mapping[str, Any], key: str) -> str:
    """Return the string at ``key``; raises MalformedError otherwise."""
    value = observed.get(key)
    if not isinstance(value, str):
        raise MalformedError(f"{key} is {value!r}, not a string")
    return value


def flag(observed: Mapping[str, Any], key: str) -> bool:
    """Return the boolean at ``key``; raises MalformedError otherwise."""
    value = observed.get(key)
    if not isinstance(value, bool):
        raise MalformedError(f"{key} is {value!r}, not true or false")
    return value


def mapping(observed: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object at ``key``; raises MalformedError otherwise."""
    value = observed.get(key)
    if not isinstance(value, dict):
        raise MalformedError(f"{key} is not an object")
    return value


def strings(observed: Mapping[str, Any], key: str) -> list[str]:
    """Return the list of strings at ``key``; raises MalformedError otherwise."""
    value = observed.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise MalformedError(f"{key} is not a list of strings")
    return value


def objects(observed: Mapping[str, Any], key: str, what: str = "objects") -> list[Mapping[str, Any]]:
    """Return the list of objects at ``key``; raises MalformedError otherwise, with `what` the objects are."""
    value = observed.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise MalformedError(f"{key} is not a list of {what}")
    return value


def version_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a version reported by an image; raises MalformedError if it is not a version."""
    try:
        return versions.key(version)
    except UsageError as error:
        raise MalformedError(error.message) from error


def last_line(error: str) -> str:
    """Return the line of a traceback that says what happened, or an empty string.

    torch appends the same lines of advice to every CUDA error, and libraries log and warn when the process ends; these
    lines are skipped, unless there are no others.
    """
    lines = [line for text in error.splitlines() if (line := _RANK.sub("", text.strip(), count=1).strip())]
    causes = [line for line in lines if not line.startswith(_ADVICE_OF_TORCH) and not _AFTERWARDS.match(line)]
    return (causes or lines or [""])[-1]


def unjudged(observation: Observation) -> Finding | None:
    """Return the finding for an observation that no rule may judge, or None if the rule decides.

    A check that could not run is ERROR, or INCONCLUSIVE if it reached its time limit on a busy machine. One that does
    not apply is SKIP. One whose negative control did not fail is ERROR whatever its numbers say: a check that cannot
    fail verifies nothing.
    """
    reason = observation.get("reason") or {}
    code, message = str(reason.get("code") or "UNKNOWN"), str(reason.get("message") or "no reason given")
    status = observation.get("status")
    if status == "skip":
        return Finding(Verdict.SKIP, message, code)
    if status == "error":
        return at_its_limit(Finding(Verdict.ERROR, message, code), observation)
    if status != "ran":
        return Finding(Verdict.ERROR, f"unknown status {status!r}", "MALFORMED_OBSERVATION")
    controls = observation.get("controls")
    if not isinstance(controls, list) or not controls:
        return Finding(Verdict.ERROR, "the check has no negative control", "CONTROL_MISSING")
    broken = [item for item in controls if not isinstance(item, dict) or item.get("held") is not True]
    if broken:
        names = ", ".join(str(item.get("name")) if isinstance(item, dict) else "?" for item in broken)
        return Finding(Verdict.ERROR, f"negative control did not fail: {names}", "CONTROL_FAILED")
    return None


def timed(finding: Finding, observation: Observation) -> Finding:
    """Return ``finding`` if the noise gate was clean, else the same finding as INCONCLUSIVE.

    Only for verdicts that depend on a time or a bandwidth. SKIP and ERROR stay as they are, and so does a PASS that
    other work on the machine cannot have caused.
    """
    gate = _gate(observation)
    # A floor that is reached on a busy machine is also reached on a quiet one.
    passed_anyway = finding.verdict is Verdict.PASS and _noise_only_lowers(finding, observation)
    if gate == "clean" or passed_anyway or finding.verdict in (Verdict.SKIP, Verdict.ERROR):
        return finding
    return _inconclusive(finding, gate, "NOISY")


def at_its_limit(finding: Finding, observation: Observation) -> Finding:
    """Return ``finding`` as INCONCLUSIVE if the check reached a time limit on a busy machine, else unchanged.

    Limits stretch with the pressure on the CPUs. Where even that was too little, only a quiet machine can tell whether
    something hangs.
    """
    ended = finding.reason_code in _LIMITS or (observation.get("observed") or {}).get("outcome") == "timeout"
    gate = _gate(observation)
    if not ended or finding.verdict not in (Verdict.FAIL, Verdict.ERROR) or gate is None or gate == "clean":
        return finding
    code = "SUITE_STOPPED" if finding.reason_code == "SUITE_STOPPED" else "TIME_LIMIT"
    return _inconclusive(finding, gate, code)


_LIMITS = ("TIME_LIMIT", "GPU_HANGS", "SUITE_STOPPED")


def _inconclusive(finding: Finding, gate: str | None, code: str) -> Finding:
    message = f"{finding.message}; the machine was busy ({gate or 'no noise reading'})"
    advice = ("Run it again while nothing else uses this machine.",)
    return replace(finding, verdict=Verdict.INCONCLUSIVE, reason_code=code, message=message, advice=advice)


def _noise_only_lowers(finding: Finding, observation: Observation) -> bool:
    """Whether other work on the machine can only lower the measured value, so that a floor reached is reached.

    It always lowers a rate. It can raise a ratio by slowing down the side that is divided by, unless the GPU itself
    times both sides alternately.
    """
    samples = observation.get("samples")
    on_gpu = isinstance(samples, dict) and samples.get("clock") == "cuda_event"
    kind = finding.rule.get("type")
    return kind == "min_frac_of_limit" or (kind == "min_ratio" and on_gpu)


def _gate(observation: Observation) -> str | None:
    noise = observation.get("noise")
    return noise.get("gate") if isinstance(noise, dict) else None


def promises(spec: Mapping[str, Any]) -> bool:
    """Whether the spec promises the versions of torch and Python. Without them a PASS says nothing about the image."""
    return spec.get("torch") is not None and spec.get("python") is not None
