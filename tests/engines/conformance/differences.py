"""Where an assembled image may differ from one that conda and pip installed: every such path, why, and how far."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping

from tests.engines.conformance.images import Node

Tree = Mapping[str, Node]
_INFO = r"opt/env/lib/python[\d.]+/site-packages/[^/]+\.dist-info"
INSTALLED_ONLY = {
    r"opt/env/.*(?:/__pycache__|\.pyc)": "bytecode: by hash in a Docker image, by time in an assembled one",
    rf"{_INFO}/REQUESTED": "pip's note of what was asked for by name",
    r"opt/env/bin/[Aa]ctivate(?:\.\w+)?": "for interactive shells; the image's variables do the same",
    r"opt/env/CACHEDIR\.TAG": "written by the world's stand-in for conda",
    r"usr/share/envkit/(?:system\.txt|passwd|group|drop_setuid\.py)": "what steps of the Dockerfile read",
    r"etc/hosts": "podman's mount point",
}
_RECORD_KEYS = ("name", "version", "build", "build_number", "subdir", "noarch", "depends", "license", "sha256", "size")


def _record(data: bytes) -> object:
    """RECORD without bytecode, without its neighbors that differ, and without hashes of what an installer writes."""
    rows = csv.reader(io.StringIO(data.decode()))
    kept = [row for row in rows if not row[0].endswith((".pyc", ".dist-info/REQUESTED"))]
    return sorted(row[:1] if re.search(r"/bin/|/INSTALLER$", row[0]) else row for row in kept)


def _conda(data: bytes) -> object:
    """A record of conda-meta without the caches, mirrors and links of one installation, and without bytecode."""
    tree = json.loads(data)
    return {key: tree.get(key) for key in _RECORD_KEYS}, sorted(f for f in tree["files"] if not f.endswith(".pyc"))


def _launcher(data: bytes) -> object:
    """Which interpreter runs which function; the words around it change with the installer."""
    text = data.decode()
    return text.splitlines()[0], re.findall(r"^\s*from (\S+) import (\S+)$", text, re.MULTILINE)


def _environment(data: bytes) -> object:
    """pyvenv.cfg without the command that made it, and with as much of a version as a lock holds."""
    rows = dict(line.split(" = ") for line in data.decode().splitlines())
    rows.pop("command", None)
    return rows | {"version": ".".join(rows["version"].split(".")[:2])}


ALIKE: Mapping[str, Callable[[bytes], object]] = {
    rf"{_INFO}/RECORD": _record,
    rf"{_INFO}/INSTALLER": bytes.isspace,  # each tool's own name
    r"opt/env/conda-meta/[^/]+\.json": _conda,
    r"opt/env/bin/(?:greet|tool)": _launcher,
    r"opt/env/.*\.pyc": bytes,  # compiled again by the Dockerfile, the package's own with another time when assembled
    r"opt/env/pyvenv\.cfg": _environment,
}


def unexplained(installed: Tree, assembled: Tree) -> list[str]:
    """Every path that differs for no reason known here, with both sides."""
    found = []
    for path in sorted({*installed, *assembled}):
        ours, theirs = assembled.get(path), installed.get(path)
        if ours == theirs:
            continue
        if ours is None or theirs is None:
            explained = ours is None and any(re.fullmatch(pattern, path) for pattern in INSTALLED_ONLY)
        else:
            explained = _alike(path, installed, assembled)
        if not explained:
            found.append(f"{path}: installed {theirs}, assembled {ours}")
    return found


def _alike(path: str, installed: Tree, assembled: Tree) -> bool:
    ours, theirs = assembled[path], installed[path]
    if (ours.kind, ours.mode, ours.owner) != (theirs.kind, theirs.mode, theirs.owner):
        return False
    if ours.kind == "link":  # an interpreter's short name, or its full one
        return _followed(path, installed) == _followed(path, assembled)
    same = next((same for pattern, same in ALIKE.items() if re.fullmatch(pattern, path)), None)
    return same is not None and same(ours.note) == same(theirs.note)


def _followed(path: str, tree: Tree) -> str:
    """Where a link ends, as far as folders on the way are no links."""
    for _ in range(10):
        node = tree.get(path)
        if node is None or node.kind != "link":
            break
        target = node.content
        path = target.lstrip("/") if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
    return path
