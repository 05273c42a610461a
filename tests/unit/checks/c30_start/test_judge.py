from __future__ import annotations

from typing import Any

import pytest

from tests.support.verdicts import ERROR, FAIL, PASS, SKIP, WARN, found


def step(word: str, problem: str | None = None, detail: str = "", **more: Any) -> dict[str, Any]:
    return {
        "word": word,
        "role": "command",
        "kind": "program",
        "path": word,
        "problem": problem,
        "detail": detail,
        **more,
    }


def started(*steps: dict[str, Any], volumes: tuple[str, ...] = ()) -> Any:
    words = ["/start.sh", "x"]
    spec = {"start": {"entrypoint": words[:1], "command": words[1:], "workdir": "/", "volumes": list(volumes)}}
    observed = {"entrypoint": words[:1], "command": words[1:], "workdir": "/", "steps": list(steps)}
    return found("C30.start", observed, spec)


def test_what_is_there_is_listed() -> None:
    finding = started(step("/usr/bin/tini"), step("python", path="/opt/env/bin/python"))
    assert (finding.verdict, finding.message) == (PASS, "found: /usr/bin/tini, python")


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        ("missing", "START_MISSING"),
        ("folder", "START_MISSING"),
        ("not executable", "START_NOT_EXECUTABLE"),
        ("not readable", "START_NOT_EXECUTABLE"),
        ("interpreter missing", "START_INTERPRETER_MISSING"),
        ("no interpreter", "START_NO_INTERPRETER"),
        ("line ends", "START_LINE_ENDS"),
        ("other architecture", "START_OTHER_ARCHITECTURE"),
    ],
)
def test_each_problem_fails_with_its_own_code(problem: str, code: str) -> None:
    finding = started(step("/start.sh", problem, "a detail", role="entry point"), step("python"))
    assert (finding.verdict, finding.reason_code) == (FAIL, code)
    assert finding.message.startswith("the entry point's program /start.sh ")
    assert finding.message.endswith(": a detail")


def test_what_is_below_a_volume_may_come_later() -> None:
    missing = step("train.py", "missing", kind="script", path="/srv/code/train.py")
    assert started(missing).verdict is FAIL
    assert started(missing, volumes=("/srv/code",)).verdict is WARN
    assert started(missing, volumes=("/srv/cod",)).verdict is FAIL
    closed = step("train.py", "not readable", kind="script", path="/srv/code/train.py")
    assert started(closed, volumes=("/srv/code",)).verdict is FAIL


def test_what_only_a_run_could_tell_is_said_and_nothing_known_is_no_pass() -> None:
    open_end = step("$APP", "undecided", "only the shell can expand it", path=None)
    finding = started(step("/bin/sh"), open_end)
    assert finding.verdict is PASS
    assert finding.message == "found: /bin/sh; not decided: $APP (only the shell can expand it)"
    assert started(open_end).verdict is SKIP


@pytest.mark.parametrize("steps", [[], ["/start.sh"], [step("/start.sh", "odd")], "no list"])
def test_malformed_steps(steps: Any) -> None:
    spec = {"start": {"entrypoint": ["/start.sh"], "command": [], "workdir": "/"}}
    finding = found("C30.start", {"entrypoint": ["/start.sh"], "command": [], "steps": steps}, spec)
    assert (finding.verdict, finding.reason_code) == (ERROR, "MALFORMED_OBSERVATION")


def test_an_answer_about_other_words_is_malformed() -> None:
    spec = {"start": {"entrypoint": ["/start.sh"], "command": [], "workdir": "/"}}
    observed = {"entrypoint": ["/bin/true"], "command": [], "steps": [step("/bin/true")]}
    assert found("C30.start", observed, spec).verdict is ERROR
