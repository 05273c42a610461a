"""conda-meta/*.json without what tells of one installation: its caches, its mirror, how its file system links.

What conda, mamba and SBOM scanners read (name, version, build, channel, digests, files) stays.
"""

from __future__ import annotations

import json
from typing import Any

from envkit.ground.errors import EngineError
from envkit.lock.model import CondaPackage

_OF_ONE_INSTALLATION = ("extracted_package_dir", "package_tarball_full_path", "link")


def read(data: bytes, package: CondaPackage) -> dict[str, Any]:
    """The record that the installer wrote.

    Raises:
        EngineError: it is not that of the package.
    """
    try:
        tree = json.loads(data)
        rows = [str(row["_path"]) for row in tree["paths_data"]["paths"]]
        fits = (tree["name"], tree["version"], tree["build"]) == (package.name, package.version, package.build)
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"py-rattler left no record of {package.name} that can be read", hint="pip install -U py-rattler"
        ) from error
    if not fits or len(set(rows)) != len(rows):
        raise EngineError(
            f"the archive of {package.name} {package.version} {package.build} holds "
            f"{tree['name']} {tree['version']} {tree['build']}",
            hint="envkit lock writes the lock anew",
        )
    return dict(tree)


def paths(record: dict[str, Any]) -> tuple[str, ...]:
    """The paths that the installer left, sorted."""
    return tuple(sorted(row["_path"] for row in record["paths_data"]["paths"]))


def normalised(record: dict[str, Any], package: CondaPackage) -> bytes:
    """The record's file for the image: the same bytes wherever it was installed.

    Address, channel and dependencies are the lock's; the archive's own dependencies can be older than the channel's.
    """
    kept = {key: value for key, value in record.items() if key not in _OF_ONE_INSTALLATION}
    data = {**record["paths_data"], "paths": sorted(record["paths_data"]["paths"], key=lambda row: row["_path"])}
    kept |= {
        "url": package.url,
        "fn": package.url.rpartition("/")[2],
        "channel": package.url.rsplit("/", 2)[0],
        "sha256": package.sha256,
        "size": package.size,
        "depends": list(package.depends),
        "requested_specs": [],
        "files": sorted(record.get("files", [])),
        "paths_data": data,
    }
    return json.dumps(kept, sort_keys=True, indent=2).encode() + b"\n"
