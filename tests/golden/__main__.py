"""`python -m tests.golden --update`: rewrite every kept file; without the flag, say which would change."""

import shutil
import sys

from tests.golden.cases import FOLDER, ROOT, kept
from tests.golden.manual import FOLDER as MANUAL


def main() -> int:
    """Compare or rewrite; exits with 1 when something differs and was not rewritten."""
    update = "--update" in sys.argv[1:]
    wanted = dict(kept())
    changed = [path for path, data in wanted.items() if not path.is_file() or path.read_bytes() != data]
    left_over = [path for at in (FOLDER, MANUAL) for path in at.rglob("*") if path.is_file() and path not in wanted]
    changed += left_over
    for path in sorted(changed):
        print(path.relative_to(ROOT))
    if update:
        shutil.rmtree(FOLDER, ignore_errors=True)
        for path in left_over:
            path.unlink(missing_ok=True)
        for path, data in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
