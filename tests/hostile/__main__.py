"""`python -m tests.hostile [WORD] [-v]`: every case, and the table of counts, times and memory."""

import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.hostile import judge
from tests.hostile.load import archives, texts
from tests.hostile.model import Outcome
from tests.hostile.serve import Server


def main() -> int:
    """Run the cases; 1 if one of them is not as it should be."""
    words = [word for word in sys.argv[1:] if word != "-v"]
    cases = [case for case in (*texts(), *archives()) if all(word in case.id for word in words)]
    table: defaultdict[str, list[tuple[bool, Outcome]]] = defaultdict(list)
    wrong = 0
    root = Path(tempfile.mkdtemp(prefix="hostile-"))
    with Server() as server:
        for case in cases:
            folder = root / case.id
            outcome = server.outcome(case, folder)
            shutil.rmtree(folder, ignore_errors=True)
            faults = judge.faults(case, outcome)
            table[case.group].append((case.exit != 0, outcome))
            if faults or "-v" in sys.argv:
                print(f"{case.id}: exit {outcome.exit}, {outcome.cpu:.2f} s, {outcome.memory / 1e6:.0f} MB")
                print("".join(f"  ! {fault}\n" for fault in faults), end="")
                shown = outcome.stderr if case.exit or outcome.exit else outcome.stdout
                print("".join(f"  | {line[:300]}\n" for line in shown.splitlines()[-8:]))
            wrong += bool(faults)
    shutil.rmtree(root, ignore_errors=True)
    print(f"{'group':16} {'refused':>8} {'accepted':>9} {'seconds':>8} {'MB':>6}")
    for group, rows in table.items():
        _line(group, rows)
    _line("all", [row for rows in table.values() for row in rows])
    print(f"{wrong} of {len(cases)} cases are not as they should be")
    return int(bool(wrong))


def _line(group: str, rows: list[tuple[bool, Outcome]]) -> None:
    refused = sum(hostile for hostile, _ in rows)
    seconds = max((outcome.cpu for _, outcome in rows), default=0)
    memory = max((outcome.memory for _, outcome in rows), default=0)
    print(f"{group:16} {refused:8} {len(rows) - refused:9} {seconds:8.2f} {memory / 1e6:6.0f}")


if __name__ == "__main__":
    sys.exit(main())
