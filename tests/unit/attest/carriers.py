"""Images in files that carry what envkit's images carry, made without an engine."""

from collections.abc import Mapping
from pathlib import Path

from envkit.lock.model import Lock
from envkit.lock.store import digest_of, to_text
from envkit.plan.model import BuildPlan
from tests.support.file_images import Packed, entry, packed, write_layout
from tests.support.locks import locked_wheels
from tests.support.plans import shipped_plan

SITE = "opt/env/lib/python3.11/site-packages"
STATUS = b"""\
Package: base-files
Status: install ok installed
Version: 12.4
Description: two
 lines: of text

Package: gone
Status: deinstall ok config-files
Version: 1
"""


def plan() -> BuildPlan:
    return shipped_plan("cu126", template="wheels")


def lock() -> Lock:
    return locked_wheels(plan())


def files(content: Mapping[str, bytes]) -> Packed:
    """A layer of files."""
    return packed([(entry(name), data) for name, data in content.items()])


def base() -> Packed:
    """The lowest layer: dpkg's list, and a distribution that is there before the lock's."""
    return files({"var/lib/dpkg/status": STATUS, f"{SITE}/torch-2.7.1.dist-info/METADATA": b""})


def own(found: Lock | None = None) -> Packed:
    """The layer that envkit puts on top."""
    text = to_text(found or lock()).encode()
    return files({"usr/share/envkit/envkit.lock": text, "usr/share/envkit/plan.json": plan().canonical()})


def labels() -> dict[str, str]:
    return {"envkit.plan": plan().digest, "envkit.lock": digest_of(lock())}


def layout(folder: Path, *layers: Packed, named: Mapping[str, str] | None = None, env: tuple[str, ...] = ()) -> str:
    """The reference of an image of these layers; its labels are those of the lock unless others are named."""
    found = labels() if named is None else dict(named)
    config = {"Labels": found, "Env": list(env), "User": "1000:1000", "Entrypoint": ["/e"], "WorkingDir": "/w"}
    write_layout(folder, layers, config)
    return f"oci:{folder}"
