"""Compare popular claims about training speed with measured records.

python -m benchmarks.claims                  the committed records
python -m benchmarks.claims RECORD...        your own, written by `envkit verify -o RECORD`
python -m benchmarks.claims --write          write the tables of docs/claims.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks._report import tell
from benchmarks.claims.page import PAGE, committed, page, text
from envkit.ground.errors import EnvkitError
from envkit.verify.again import read_record


def main(arguments: list[str] | None = None) -> int:
    """Print or write the tables; return 2 if a file is not a record."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", nargs="*", type=Path, metavar="RECORD")
    parser.add_argument("--write", action="store_true", help="write docs/claims.md from the committed records")
    given = parser.parse_args(arguments)
    if given.write and given.records:
        parser.error("--write uses only the committed records: put yours into benchmarks/results")
    try:
        records = {str(path): read_record(path) for path in given.records} or committed()
    except EnvkitError as error:
        print(
            f"{parser.prog}: {error.message}",
            *([f"hint: {error.hint}"] if error.hint else []),
            sep="\n",
            file=sys.stderr,
        )
        return error.exit_code
    if given.write:
        PAGE.write_text(page(records), encoding="utf-8")
    else:
        tell(text(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
