"""`python -m envkit` and the `envkit` command."""

from __future__ import annotations

import sys

from envkit.ground import signals
from envkit.ground.errors import InterruptedRun


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        # Before the imports: Ctrl-C during them ends with a message, not a traceback.
        signals.raise_on(*signals.ENDING)
        from envkit.cli import stdio  # noqa: PLC0415 - `import envkit.__main__` stays free of click
        from envkit.cli.main import run  # noqa: PLC0415

        stdio.prepare()
        code = run(sys.argv[1:])
        # From here on nothing can be cleaned up or told: a signal ends the process as if it had no handler.
        signals.restore_default(*signals.ENDING)
    except InterruptedRun as error:
        sys.stderr.write(f"error: {error.message}\n")
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
