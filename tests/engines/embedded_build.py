"""One build by the embedded engine: `python -m tests.engines.embedded_build < JSON` prints the manifest's digest."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.model import BuildOptions
from envkit.ground import settings
from envkit.ground.progress import Silent
from envkit.lock.store import read_lock
from envkit.plan.store import read_plan


def main() -> None:
    """Build what the document names, with everything that is kept below its folder."""
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    os.umask(asked.get("umask", 0o022))
    mirrors = settings.load({}, os.environ, folder).mirrors()
    builder = EmbeddedBuilder(state=folder / "state", cache=folder / "cache")
    options = BuildOptions(tags=("small:1",), mirrors=mirrors, output=asked.get("output"))
    plan = replace(read_plan(Path(asked["plan"])), folder=str(folder))
    built = builder.build(plan, read_lock(Path(asked["lock"])), options, Silent())
    print(built.digest)


if __name__ == "__main__":
    main()
