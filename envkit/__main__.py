"""`python -m envkit` and the `envkit` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from envkit.cli import streams  # noqa: PLC0415 - `import envkit.__main__` stays free of click
    from envkit.cli.main import run  # noqa: PLC0415

    streams.prepare()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
