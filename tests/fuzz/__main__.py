"""`python -m tests.fuzz SECONDS [TARGET...]`: coverage-guided fuzzing by atheris, each target in a process of its own.

What was learned is kept in .fuzz/TARGET for the next run; an input that breaks a target goes to tests/fuzz/failures,
where test_fuzz.py tries it in every later run.
"""

import re
import subprocess
import sys
from pathlib import Path

NAMES = ("wheel", "oci", "payload", "template", "dockerfile", "project", "ring")
_HERE = Path(__file__).parent
_KEPT = _HERE.parents[1] / ".fuzz"


def main() -> int:
    """Fuzz the targets one after another; 1 if one of them broke."""
    seconds, *names = sys.argv[1:] or ["60"]
    broken = 0
    for name in names or NAMES:
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.one", name, seconds], stderr=subprocess.PIPE, text=True, check=False
        )
        runs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        edges = re.findall(r"cov: (\d+)", done.stderr)
        print(
            f"{name}: {runs[-1] if runs else 0} executions, {edges[-1] if edges else 0} edges, exit {done.returncode}",
            flush=True,
        )
        if done.returncode:
            broken += 1
            print(done.stderr[-4000:], file=sys.stderr)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
