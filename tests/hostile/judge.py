"""What holds for every case, and is not said in its row."""

import fnmatch
import re

from tests.hostile.model import Case, Outcome

SECONDS = 5.0  # of processor time
MEMORY = 500_000_000  # bytes
LINES = 40
# The exit codes of envkit/ground/errors.py; 0 and 1 (a bug) are none of a refusal.
REFUSALS = frozenset({2, 3, 4, 5, 6, 7, 8, 9, 10, 124})
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# What a build leaves: a log that says what it did, and locks of its cache.
_KEPT = ("home/.local/state/envkit/logs/*.log",)


def faults(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong with the outcome of a case; empty when nothing is."""
    out, err = outcome.stdout, outcome.stderr
    found = []
    if outcome.exit != case.exit:
        found.append(f"exit code {outcome.exit}, not {case.exit}")
    if "Traceback (most recent call last)" in err or "this is a bug in envkit" in err:
        found.append("a traceback")
    if outcome.cpu > SECONDS:
        found.append(f"{outcome.cpu:.1f} s of processor time")
    if outcome.memory > MEMORY:
        found.append(f"{outcome.memory / 1e6:.0f} MB")
    if hidden := _HIDDEN.search(out + err):
        found.append(f"U+{ord(hidden[0]):04X} reaches the terminal")
    found += [f"the secret {word!r} in what is said" for word in case.secret if word in out + err]
    found += [f"stdout lacks {word!r}" for word in case.gives if word not in out]
    found += [f"stderr lacks {word!r}" for word in case.says if word not in err]
    if case.exit != 0:
        found += _refusal(case, outcome)
    return found


def _refusal(case: Case, outcome: Outcome) -> list[str]:
    err = outcome.stderr
    found = []
    if case.exit not in REFUSALS:
        found.append(f"{case.exit} is no exit code of a refusal")
    if "error: " not in err:
        found.append("no line begins with error:")
    if "\nhint: " not in err:
        found.append("no next step (hint:)")
    if case.place and case.place not in err:
        found.append(f"no place: {case.place} is not named")
    if err.count("\n") > LINES:
        found.append(f"{err.count(chr(10))} lines")
    allowed = (*_KEPT, *case.writes)
    written = [name for name in outcome.new if not any(fnmatch.fnmatch(name, pattern) for pattern in allowed)]
    if written:
        found.append(f"written: {', '.join(written[:5])}")
    return found
