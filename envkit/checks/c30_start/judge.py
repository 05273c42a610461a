"""C30: can the image start what its entry point and command name?"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from envkit.checks.observed import MalformedError, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_UNDECIDED = "undecided"
_KEYS = ("kind", "word", "path", "role")
# problem -> (what is wrong, reason code, advice)
_PROBLEMS = {
    "missing": (
        "does not exist in the image",
        "START_MISSING",
        "Copy it into the image (copy: in the definition), or correct entrypoint and cmd.",
    ),
    "folder": ("is a folder", "START_MISSING", "Name the program in entrypoint or cmd, not its folder."),
    "not executable": (
        "is not executable",
        "START_NOT_EXECUTABLE",
        "Make it executable: chmod a+rx FILE, and build again.",
    ),
    "not readable": ("cannot be read by the image's user", "START_NOT_EXECUTABLE", "Make it readable: chmod a+r FILE."),
    "interpreter missing": (
        "needs an interpreter that the image lacks",
        "START_INTERPRETER_MISSING",
        "Correct the first line of the script, or install its interpreter.",
    ),
    "no interpreter": (
        "is no program",
        "START_NO_INTERPRETER",
        "Begin the script with #!/bin/sh, or start it by its interpreter: [sh, FILE].",
    ),
    "line ends": (
        "has the line ends of Windows",
        "START_LINE_ENDS",
        "Convert it: sed -i 's/\\r$//' FILE, and keep it so: *.sh text eol=lf in .gitattributes.",
    ),
    "other architecture": (
        "is a program for another architecture",
        "START_OTHER_ARCHITECTURE",
        "Copy the program that was built for the image's platform.",
    ),
}


def judge(case: Case) -> Finding:
    """Judge C30.start: each program and file on the way has to exist and be executable."""
    case.rule("equals", problems=0)
    words = [*case.strings("entrypoint"), *case.strings("command")]
    steps = case.objects("steps")
    if not steps:
        raise MalformedError("steps is not a list of objects")
    promised = case.spec.get("start") or {}
    if words != [*promised.get("entrypoint", ()), *promised.get("command", ())]:
        raise MalformedError(f"the words are {words!r:.200}, not those of the image")
    problem = next((step for step in steps if step.get("problem") not in (None, _UNDECIDED)), None)
    if problem is not None:
        return _wrong(case, problem, [str(volume) for volume in promised.get("volumes") or ()])
    known = [text(step, "word") for step in steps if step.get("problem") is None]
    message = f"found: {', '.join(f'{word:.60}' for word in known)}" if known else "nothing that can be looked up"
    rest = next((step for step in steps if step.get("problem") == _UNDECIDED), None)
    if rest is not None:
        message += f"; not decided: {text(rest, 'word'):.80} ({text(rest, 'detail')})"
    return case.passed(message) if known else case.skip("START_UNDECIDED", message)


def _wrong(case: Case, step: Mapping[str, Any], volumes: list[str]) -> Finding:
    kind, word, path, role = (text(step, key) if step.get(key) is not None else "" for key in _KEYS)
    problem, detail = text(step, "problem"), text(step, "detail")
    if problem not in _PROBLEMS:
        raise MalformedError(f"problem is {problem!r:.80}")
    what, code, advice = _PROBLEMS[problem]
    called = f"the {role}'s {kind} {word:.120}"
    if path and path != word:
        called += f" ({path:.160})"
    message = f"{called} {what}{f': {detail:.160}' if detail else ''}"
    if problem == "missing" and path and any(PurePosixPath(path).is_relative_to(volume) for volume in volumes):
        return case.warn(code, f"{message}; it is below a volume, which may bring it", advice)
    return case.fail(code, message, advice)
