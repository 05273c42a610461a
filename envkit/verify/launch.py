"""S05 and S06: start the image through its entry point, and as a user ID that is not in its /etc/passwd.

The payload itself bypasses the entry point, so it would not notice a broken activation.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from envkit.checks.model import Finding, Verdict
from envkit.ground.errors import EngineError, EnvironmentProblem, TimeLimitError
from envkit.ground.pressure import Pressure
from envkit.plan.planner import ENTRY
from envkit.run.model import RunLimits
from envkit.verify.judge import Judged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envkit.run.model import RunResult

# OpenShift and `docker run --user` use such IDs; this one is far from those that images and packages create.
OTHER_USER = "54321:54321"
_LIMIT_S = 90.0  # for the entry point itself and an import of torch
_PROGRAM = (
    "import json,os,sys; torch = __import__('torch').__version__ if sys.argv[2] == 'torch' else None; "
    "print(json.dumps({'nonce': sys.argv[1], 'prefix': sys.prefix, 'uid': os.getuid(), 'torch': torch}))"
)
_CHECKS = (
    ("S05", "the entry point starts the environment's Python", None, "none"),
    ("S06", "a user ID unknown to the image can import torch", OTHER_USER, "torch"),
)


def launch_checks(
    run: Callable[[Sequence[str], RunLimits], RunResult],
    *,
    entrypoint: Sequence[str],
    prefix: str | None,
    nonce: str,
    pressure: Callable[[], Pressure] = Pressure,
) -> tuple[Judged, ...]:
    """Start Python twice through the entry point. `run` takes the command and its limits; `prefix` is the plan's.

    `pressure` begins a reading of how busy this machine is: a start that does not end in time says nothing about the
    image if other work kept the CPUs.
    """
    return tuple(
        _launched(run, check, entrypoint=entrypoint, prefix=prefix, nonce=nonce, pressure=pressure())
        for check in _CHECKS
    )


def _launched(
    run: Callable[[Sequence[str], RunLimits], RunResult],
    start: tuple[str, str, str | None, str],
    *,
    entrypoint: Sequence[str],
    prefix: str | None,
    nonce: str,
    pressure: Pressure,
) -> Judged:
    check, title, user, what = start
    if prefix is None:
        return skipped_again(check, title, "NOT_PROMISED", "the plan does not say where the environment is")
    # An entry point that envkit did not write may be the program itself, for which `python` is an argument.
    if entrypoint and entrypoint[-1] != ENTRY:
        return skipped_again(check, title, "OWN_ENTRYPOINT", "the image's own entry point takes no command")
    # If Python does not start or does not end, the image is at fault; if the engine is gone, it is not.
    limits = RunLimits(timeout_s=pressure.stretched(_LIMIT_S), user=user)
    try:
        result = run(("python", "-c", _PROGRAM, nonce, what), limits)
    except TimeLimitError as error:
        return launched_again(check, title, {"failure": error.message, "busy": pressure.busy()}, prefix, None)
    except EngineError as error:
        return launched_again(check, title, {"failure": error.message}, prefix, None)
    except EnvironmentProblem as error:
        return failed_again(check, title, error.message, error.hint)
    answer = _answer(result, nonce)
    observed = {
        "exit_code": result.exit_code,
        "told": {key: value for key, value in answer.items() if key != "nonce"},
        "last_line": _last_line(result.stderr),
    }
    return launched_again(check, title, observed, prefix, result.duration_s)


def launched_again(
    check: str, title: str, observed: Mapping[str, Any], prefix: str, duration_s: float | None
) -> Judged:
    """Judge S05 or S06 by what was observed: `exit_code`, `told` and `last_line`, or the `failure` to start.

    `busy` says what kept a start from ending in time, if the machine was busy.
    """
    if "failure" in observed:
        finding = Finding(Verdict.FAIL, str(observed["failure"]), "ENTRYPOINT_BROKEN", (_ADVICE,), {"type": "equals"})
        if observed.get("busy") is not None:
            message = f"{finding.message}; the machine was busy ({observed['busy']})"
            finding = Finding(Verdict.INCONCLUSIVE, message, "TIME_LIMIT", (_QUIET,), {"type": "equals"})
        observation: dict[str, Any] = {"status": "ran", "observed": dict(observed), "controls": []}
        return Judged(id=check, title=title, subject="image", finding=finding, observation=observation)
    finding = _finding(check, observed, prefix)
    controls = [
        {
            "name": name,
            "held": _finding(check, {**observed, "told": planted}, prefix).verdict is not Verdict.PASS,
            "detail": detail,
        }
        for name, planted, detail in (
            ("another_python_is_noticed", {**observed["told"], "prefix": "/planted"}, "sys.prefix of another Python"),
            ("silence_is_noticed", {}, "no answer with this run's nonce"),
        )
    ]
    if not all(control["held"] for control in controls):
        finding = Finding(Verdict.ERROR, "the rule does not notice a planted fault", "CONTROL_FAILED")
    observation = {"status": "ran", "observed": dict(observed), "controls": controls, "duration_s": duration_s}
    return Judged(id=check, title=title, subject="image", finding=finding, observation=observation)


def failed_again(check: str, title: str, message: str, hint: str | None) -> Judged:
    """Return S05 or S06 as an ERROR: the engine became unavailable."""
    finding = Finding(Verdict.ERROR, message, "SURROUNDINGS", (hint,) if hint else ())
    reason = {"code": "SURROUNDINGS", "message": message}
    observation: dict[str, Any] = {"status": "error", "reason": reason, "observed": {"hint": hint}}
    return Judged(id=check, title=title, subject="image", finding=finding, observation=observation)


def skipped_again(check: str, title: str, code: str, message: str) -> Judged:
    """Return S05 or S06 as skipped."""
    finding = Finding(Verdict.SKIP, message, code)
    reason = {"code": code, "message": message}
    return Judged(
        id=check, title=title, subject="image", finding=finding, observation={"status": "skip", "reason": reason}
    )


def _answer(result: RunResult, nonce: str) -> dict[str, Any]:
    """Return Python's answer in its last line, empty if it does not belong to this run."""
    # An entry point may print text of its own before the answer.
    lines = result.stdout.strip().splitlines()
    try:
        tree = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) and tree.get("nonce") == nonce else {}


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return "".join(char for char in lines[-1] if char.isprintable())[:200] if lines else ""


def _finding(check: str, observed: Mapping[str, Any], prefix: str) -> Finding:
    rule = {"type": "equals", "prefix": prefix}
    answer, plain = observed["told"], check == "S05"
    if observed["exit_code"] != 0 or not answer:
        tail = observed["last_line"] or "nothing on stderr"
        code = "ENTRYPOINT_BROKEN" if plain else "OTHER_USER_FAILS"
        message = f"python ended with exit code {observed['exit_code']}: {tail}"
        return Finding(Verdict.FAIL, message, code, (_ADVICE if plain else _USER_ADVICE,), rule)
    if answer.get("prefix") != prefix:
        message = f"python has the prefix {str(answer.get('prefix'))[:80]}, not {prefix}"
        return Finding(Verdict.FAIL, message, "OTHER_PYTHON", (_ADVICE,), rule)
    torch = "" if plain else f", torch {str(answer.get('torch'))[:40]}"
    return Finding(Verdict.PASS, f"python in {prefix}{torch}, as uid {str(answer.get('uid'))[:10]}", rule=rule)


_QUIET = "Run it again while nothing else uses this machine."
_ADVICE = "Start it by hand: docker run --rm IMAGE python -c 'import sys; print(sys.prefix)'"
_USER_ADVICE = "Make the environment readable for everyone: chmod -R a+rX in the build, or umask 022."
