"""`python -m tests.space quick|rest|all`: exit with 1 and one line where a part's tests would fill the disk."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests import scratch
from tests.groups import PARTS
from tests.world.places import cache

GIB = 1 << 30
# In GiB, on an empty world. The quick tests never had more than 12 on the disk at once. The others had 31 in their file
# system (`tests.scratch`) while Docker built a CUDA image of 6 GB, and 25 with the smaller one of today beside some of
# them: no whole run has shown that 27 are enough.
NEEDED = {"quick": 12, "rest": 27, "all": 27}


def lacking(part: str, folder: Path) -> str | None:
    """Why the tests of a part cannot run with this folder's disk; None where they can."""
    free = shutil.disk_usage(folder).free
    if folder.stat().st_dev == cache().stat().st_dev:
        free += scratch.taken()
    if free >= NEEDED[part] * GIB:
        return None
    return f"the tests need {NEEDED[part]} GiB of disk, and {folder} has {free / GIB:.1f} GiB free"


def main(part: str) -> int:
    """Look at the disks of the temporary folder and of the test world."""
    found = next(filter(None, (lacking(part, folder) for folder in (Path(tempfile.gettempdir()), cache()))), None)
    if found is None:
        return 0
    print(f"test: {found} (TMPDIR and ENVKIT_WORLD name other folders)", file=sys.stderr)
    return 1


if __name__ == "__main__":
    if sys.argv[1:] not in [[part] for part in PARTS]:
        sys.exit(f"usage: python -m tests.space {'|'.join(PARTS)}")
    sys.exit(main(sys.argv[1]))
