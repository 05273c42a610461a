"""S05 and S06: the image as people start it, through its entry point, and as a user it has never heard of.

The payload itself goes round the entry point, so a broken activation would not be noticed there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from envkit.errors import EngineError, SurroundingsError, TimeLimitError
from envkit.plan.planner import ENTRY
from envkit.run.model import RunLimits
from envkit.verify.judge import Judged
from envkit.verify.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envkit.run.model import RunResult

OTHER_USER = "54321:54321"
_LIMIT_S = 90.0
_TELL = (
    "import json,os,sys; torch = __import__('torch').__version__ if sys.argv[2] == 'torch' else None; "
    "print(json.dumps({'nonce': sys.argv[1], 'prefix': sys.prefix, 'uid': os.getuid(), 'torch': torch}))"
)
_CHECKS = (
    ("S05", "the entry point starts the environment's Python", None, "none"),
    ("S06", "a user unknown to the image can import torch", OTHER_USER, "torch"),
)


def launch_checks(
    run: Callable[[Sequence[str], RunLimits], RunResult], *, entrypoint: Sequence[str], prefix: str | None, nonce: str
) -> tuple[Judged, ...]:
    """Start Python twice through the entry point; `run` takes the command and its limits, `prefix` is promised."""
    return tuple(
        _launched(run, check, title, user, what, entrypoint=entrypoint, prefix=prefix, nonce=nonce)
        for check, title, user, what in _CHECKS
    )


def _launched(
    run: Callable[[Sequence[str], RunLimits], RunResult],
    check: str,
    title: str,
    user: str | None,
    what: str,
    *,
    entrypoint: Sequence[str],
    prefix: str | None,
    nonce: str,
) -> Judged:
    if prefix is None:
        finding = Finding(Verdict.SKIP, "no place of the environment is promised", "NOT_PROMISED")
        return Judged(id=check, title=title, subject="image", finding=finding)
    if entrypoint and entrypoint[-1] != ENTRY:
        finding = Finding(Verdict.SKIP, "the image's own entry point takes no command", "OWN_ENTRYPOINT")
        return Judged(id=check, title=title, subject="image", finding=finding)
    try:
        result = run(("python", "-c", _TELL, nonce, what), RunLimits(timeout_s=_LIMIT_S, user=user))
    except (EngineError, TimeLimitError) as error:
        finding = Finding(Verdict.FAIL, error.message, "ENTRYPOINT_BROKEN", (_ADVICE,), {"type": "equals"})
        return Judged(id=check, title=title, subject="image", finding=finding)
    except SurroundingsError as error:
        finding = Finding(Verdict.ERROR, error.message, "SURROUNDINGS", (error.hint,) if error.hint else ())
        return Judged(id=check, title=title, subject="image", finding=finding)
    told = _told(result, nonce)
    finding = _finding(result, told, prefix, what)
    controls = [
        {"name": name, "held": _finding(result, planted, prefix, what).verdict is not Verdict.PASS, "detail": detail}
        for name, planted, detail in (
            ("another_python_is_noticed", {**told, "prefix": "/planted"}, "sys.prefix of another Python"),
            ("silence_is_noticed", {}, "no answer with this run's nonce"),
        )
    ]
    if not all(control["held"] for control in controls):
        finding = Finding(Verdict.ERROR, "the rule passes a planted fault", "CONTROL_FAILED")
    observed = {"exit_code": result.exit_code, "told": {key: value for key, value in told.items() if key != "nonce"}}
    observation = {"status": "ran", "observed": observed, "controls": controls, "duration_s": result.duration_s}
    return Judged(id=check, title=title, subject="image", finding=finding, observation=observation)


def _told(result: RunResult, nonce: str) -> dict[str, Any]:
    """What Python said in its last line; nothing where that is not an answer to this run."""
    lines = result.stdout.strip().splitlines()
    try:
        tree = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) and tree.get("nonce") == nonce else {}


def _finding(result: RunResult, told: dict[str, Any], prefix: str, what: str) -> Finding:
    rule = {"type": "equals", "prefix": prefix}
    if result.exit_code != 0 or not told:
        last = result.stderr.decode("utf-8", "replace").strip().splitlines()
        tail = "".join(char for char in last[-1] if char.isprintable())[:200] if last else "nothing on stderr"
        code = "ENTRYPOINT_BROKEN" if what == "none" else "OTHER_USER_FAILS"
        message = f"python ended with exit code {result.exit_code}: {tail}"
        return Finding(Verdict.FAIL, message, code, (_ADVICE if what == "none" else _USER_ADVICE,), rule)
    if told.get("prefix") != prefix:
        message = f"python is the one of {str(told.get('prefix'))[:80]}, not of {prefix}"
        return Finding(Verdict.FAIL, message, "OTHER_PYTHON", (_ADVICE,), rule)
    said = f"python of {prefix}" + (f", torch {str(told.get('torch'))[:40]}" if what == "torch" else "")
    return Finding(Verdict.PASS, f"{said}, as uid {str(told.get('uid'))[:10]}", rule=rule)


_ADVICE = "Start it by hand: docker run --rm IMAGE python -c 'import sys; print(sys.prefix)'"
_USER_ADVICE = "Make the environment readable for everyone: chmod -R a+rX in the build, or umask 022."
