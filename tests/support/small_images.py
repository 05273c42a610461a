"""Images of a few packages with known digests, assembled without a network, equal on every machine.

The deflate streams in the wheels do not depend on a compressor. Layers of conda packages depend on zlib and py-rattler,
so their digests are known only for the versions below.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from envkit.assemble.assemble import AssemblyContext, assemble
from envkit.engines.layer_cache import LayerCache
from envkit.engines.log import BuildLog
from envkit.ground.settings import Mirrors
from envkit.image import spec
from envkit.image.deflate import squeeze
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import CondaPackage, LockedBase, Wheel
from envkit.registry.transport import Transport
from tests.support.conda_archives import PYTHON, STUFF, TOOL, Content, Recipe, write_archive
from tests.support.heard import Heard
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan
from tests.support.wheels import Raw, raw_zip, wheel_entries

ZLIB, RATTLER = "74977db61d853fba", "0.28.0"
_RUNTIME = spec.Runtime(env=(("PATH", "/opt/env/bin"),), user="1000:1000", workdir="/work", entrypoint=(), cmd=("sh",))


@dataclass(frozen=True)
class Digests:
    """The digests of an image: its manifest's, and its configuration's, which has the layers' diff IDs."""

    manifest: str
    id: str


def noise(name: str, size: int) -> bytes:
    """Return bytes that cannot be compressed."""
    return hashlib.shake_256(name.encode()).digest(size)


def zlib_here() -> str:
    """Return a short hash of this machine's zlib output, which identifies its version."""
    data = b"".join(b"%d %d\n" % (number, number * number % 977) for number in range(20000))
    packer = zlib.compressobj(4, zlib.DEFLATED, -15)
    return hashlib.sha256(packer.compress(data) + packer.flush()).hexdigest()[:16]


def rattler_here() -> str:
    """Return the version of py-rattler."""
    return importlib.metadata.version("py-rattler")


def wheels(folder: Path) -> tuple[Wheel, ...]:
    """Write three wheels: a large one, one with every kind of data, and an uncompressed one. Two share a path."""
    folder.mkdir(parents=True)
    large = {"large/__init__.py": b"", "large/lib.so": noise("large", 5 << 20), "large/zeros.bin": bytes(300_000)}
    rich = {
        "rich/__init__.py": b"import sys\n" * 4000,
        "rich/deep/er/ünïcode " + "long" * 40 + ".txt": b"text",
        "rich/empty.txt": b"",
        "rich-1.0.data/scripts/go": b"#!python\nprint()\n",
        "rich-1.0.data/scripts/plain": b"#!/bin/sh\n",
        "rich-1.0.data/data/share/rich/a.txt": b"data",
        "rich-1.0.data/headers/rich.h": b"#pragma once\n",
        "rich-1.0.data/purelib/pure.py": b"pure = 1\n",
        "rich-1.0.dist-info/entry_points.txt": b"[console_scripts]\nrich = rich:main\nother = rich.deep:run\n",
        "shared/data.txt": b"of rich",
    }
    stored = {"stored/a.bin": noise("stored", 200_000), "stored/b.py": b"b = 2\n", "shared/data.txt": b"of stored"}
    rows = [
        (
            "large",
            [_unpacked(entry) for entry in wheel_entries(large, name="large", executable=frozenset({"large/lib.so"}))],
        ),
        ("rich", [Raw(name="rich/folder/"), *map(_unpacked, wheel_entries(rich, name="rich"))]),
        ("stored", wheel_entries(stored, name="stored", deflated=False)),
    ]
    return tuple(_wheel(folder, name, raw_zip(entries)) for name, entries in rows)


def conda_packages(folder: Path) -> tuple[CondaPackage, ...]:
    """Write the archives of some conda packages, each named by its SHA-256."""
    folder.mkdir(parents=True)
    big = Recipe("big", [Content("lib/big.so", noise("big", 4 << 20) + bytes(1 << 20), mode=0o755),
                         Content("share/closed", b"of big")])  # fmt: skip
    packages = []
    for recipe in (PYTHON, TOOL, STUFF, big):
        made = write_archive(folder / "channel", recipe)
        (folder / made.package.sha256).hardlink_to(made.archive)
        packages.append(made.package)
    return tuple(sorted(packages, key=lambda package: package.name))


def digests(folder: Path, *, conda: bool, with_wheels: bool) -> Digests:
    """Assemble the packages' layers without a base, and return the digests of an image with a fixed configuration."""
    plan = shipped_plan("cu126", template="miniconda" if conda else "wheels")
    lock = replace(
        lock_for(plan),
        python="3.11",
        wheels=wheels(folder / "wheels") if with_wheels else (),
        conda=conda_packages(folder / "downloads") if conda else (),
        base=LockedBase(kind="none", reference="none"),
    )
    with BuildLog(None, Heard()) as log, Transport() as transport:
        context = AssemblyContext(
            cache=LayerCache(folder), indexes=IndexLocations(), mirrors=Mirrors(),
            transport=transport, log=log, reporter=Heard(), wheel_dir=folder / "wheels" if with_wheels else None,
            offline=True,
        )  # fmt: skip
        layers = assemble(plan, lock, context).image.layers[:-1]  # the last has the plan, which changes with the facts
    image = spec.image(spec.Base(name=""), layers, _RUNTIME, {}, "linux-64")
    return Digests(image.digest, image.id)


def _unpacked(entry: Raw) -> Raw:
    return replace(entry, packed=squeeze(entry.data))


def _wheel(folder: Path, name: str, data: bytes) -> Wheel:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    path.write_bytes(data)
    return Wheel(
        name=name, version="1.0", file=path.name, url=f"https://wheels.example.com/{path.name}",
        sha256=hashlib.sha256(data).hexdigest(), size=len(data), source="pypi",
    )  # fmt: skip
