"""Run rattler in a process of its own: `with_rattler.py index CHANNEL | install CHANNEL PREFIX CACHE TARGET`.

Its threads can crash the interpreter while it is finalized, so this process exits without finalizing.
"""

import asyncio
import os
import sys
import traceback
from pathlib import Path

import rattler
from rattler.index import index_fs


async def index(channel: Path) -> None:
    """Write the repodata of a channel folder."""
    await index_fs(channel, write_zst=True, write_shards=False, force=True)


async def install(channel: Path, prefix: Path, packages: Path, target: str) -> None:
    """Install python and pip from a channel folder into `prefix`, relocated to `target`."""
    detected = rattler.VirtualPackage.detect()
    records = await rattler.solve([channel.as_uri()], ["python", "pip"], virtual_packages=detected)
    await rattler.install(
        records,
        prefix,
        cache_dir=packages,
        show_progress=False,
        execute_link_scripts=False,
        alternative_target_prefix=target,
    )


def main(verb: str, *arguments: str) -> int:
    """Run one command and return its exit code."""
    try:
        if verb == "index":
            asyncio.run(index(Path(arguments[0])))
        else:
            channel, prefix, packages, target = arguments
            asyncio.run(install(Path(channel), Path(prefix), Path(packages), target))
    except Exception:  # noqa: BLE001 - os._exit below would not print it
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
