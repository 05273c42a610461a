"""Empty wheels for packages that are already chosen, so that uv solves for their versions but does not add them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envkit.lock.model import CondaPackage

# conda-forge packages whose distribution has another name.
_DISTRIBUTIONS = {"pytorch": "torch", "matplotlib-base": "matplotlib", "msgpack-python": "msgpack"}


def distribution_of(name: str) -> str:
    """Return the distribution name of a conda package, assuming that it is a Python package."""
    return canonicalize_name(_DISTRIBUTIONS.get(name, name))


def of_conda(packages: Iterable[CondaPackage]) -> dict[str, str]:
    """Return distribution name -> version of the Python packages among conda packages."""
    return {
        distribution_of(package.name): package.version
        for package in packages
        if any(depend.split(" ", 1)[0] in ("python", "python_abi") for depend in package.depends)
    }


def write(folder: Path, chosen: Mapping[str, str]) -> dict[str, str]:
    """Write an empty wheel for each package whose version is valid in Python (PEP 440); return these packages."""
    written: dict[str, str] = {}
    for name, version in sorted(chosen.items()):
        try:
            normal = str(Version(version))
        except InvalidVersion:
            continue
        stem = f"{name.replace('-', '_')}-{normal}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {normal}\n")
            archive.writestr(
                f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{stem}.dist-info/RECORD", "")
        written[name] = normal
    return written
