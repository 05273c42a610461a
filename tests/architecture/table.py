"""Print in how many places each concept is: `python -m tests.architecture.table [--goldens] [FOLDER]`.

FOLDER is the package, by default this one; an older one tells what a change was worth, and `-` what it has not in that
form. Every figure is measured: in the syntax trees, by making a layer of one wheel (this package only), and with
`--goldens` in a copy of the repository to which one GPU product is added.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import envkit
from envkit.assemble.layer import File, Tree
from envkit.assemble.layer_plan import groups
from envkit.assemble.layer_pool import Progress, make_layers
from envkit.assemble.wheel import Scheme
from envkit.assemble.wheels import Wheels
from envkit.engines.layer_cache import LayerCache
from envkit.ground import cache
from envkit.ground.progress import Silent
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Wheel
from envkit.registry.transport import Transport
from tests.architecture import doors, measures
from tests.support.wheels import wheel_entries, write_wheel

ROOT = Path(envkit.__file__).parent
Row = tuple[str, int, Sequence[str]]
"""What is counted, how many there are, and their names where a reader may want to know them."""


def rows(folder: Path) -> list[Row]:
    """Return what the syntax trees of a package tell."""
    package = measures.modules(folder)
    kinds = [kind for kind in vars(cache).values() if isinstance(kind, cache.Kind)]
    listing = measures.cache_paths(package, {kind.folder for kind in kinds}) - doors.NAMESAKES
    layers = {
        taker for kind in ("LAYERS", "UNPACKED") for taker in measures.takers(package, "envkit.ground.cache", kind)
    }
    counts = [
        ("modules that parse an image's name", measures.name_parsers(package)),
        ("modules that raise a list of errors without Faults", measures.fault_lists(package)),
        ("modules that tag verified images", measures.takers(package, "envkit.registry.tagging", "move_tag")),
        ("implementations: does a build run on this GPU", measures.gpu_rules(package)),
        ("implementations: what a PCIe lane carries", measures.lane_tables(package)),
        ("modules that write layers into the cache", layers & measures.writers(package)),
        ("modules that show sizes", set(filter(measures.has_envkit, measures.size_formatters(package)))),
        ("modules that align columns", measures.column_padders(package)),
        ("modules that write tables in Markdown", measures.markdown_tables(package)),
        ("packages that name the cache's folders", {name.split(".")[1] for name in listing}),
    ]
    files = [path for path in folder.rglob("*.py") if not re.match(r"c\d\d_", path.parent.name)]
    return [
        *((what, len(found), sorted(name.removeprefix("envkit.") for name in found)) for what, found in counts),
        ("declarations per option, at most", max(measures.option_declarations(package).values(), default=0), ()),
        ("files outside folders of checks", len(files), ()),
        ("classes", sum(isinstance(node, ast.ClassDef) for one in package for node in measures.nodes(one.tree)), ()),
        ("lines", sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py")), ()),
    ]


def wheel_row() -> Row:
    """Make a layer of one wheel, and return the files whose functions get its row, its path, its tree or its files."""
    seen: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/"):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(map(_is_wheel, (frame.f_locals.get(name) for name in names))):
                seen.add(Path(code.co_filename).relative_to(ROOT).as_posix())

    with tempfile.TemporaryDirectory() as folder, Transport() as transport:
        path = write_wheel(Path(folder), wheel_entries({"alpha/a.py": b"A = 1"}, name="alpha"), name="alpha")
        data, url = path.read_bytes(), f"https://wheels.example.com/{path.name}"
        sha256 = hashlib.sha256(data).hexdigest()
        row = Wheel(name="alpha", version="1.0", file=path.name, url=url, sha256=sha256, size=len(data), source="pypi")
        kind = Wheels(
            Path(folder, "cache"), own=path.parent, indexes=IndexLocations(), transport=transport, reporter=Silent(),
            scheme=Scheme(python="3.11"), compression="gzip", offline=True,
        )  # fmt: skip
        threading.setprofile(look)
        sys.setprofile(look)
        try:
            make_layers(
                kind, groups([row], 40), cache=LayerCache(Path(folder, "cache")), progress=Progress(Silent()),
                reporter=Silent(),
            )  # fmt: skip
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return "files to follow one wheel into a layer", len(seen), sorted(seen)


def _is_wheel(value: object) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_wheel, value))
    return isinstance(value, Wheel | Tree | File) or (isinstance(value, Path) and value.suffix == ".whl")


def goldens_row() -> Row:
    """Add a GPU product in a copy of the repository, and return the goldens that change."""
    with tempfile.TemporaryDirectory() as folder:
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT.parent, capture_output=True, check=True).stdout
        for name in filter(None, files.decode().split("\0")):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT.parent / name, target, follow_symlinks=False)
        table = Path(folder, "envkit/facts/data/gpu_arch.yaml")
        table.write_text(table.read_text().replace("products: [", "products: [Planted 5880X, ", 1))
        env = {**os.environ, "PYTHONPATH": folder}
        subprocess.run(
            [sys.executable, "-m", "envkit.facts.snapshot"], cwd=folder, env=env, capture_output=True, check=True
        )
        done = subprocess.run(
            [sys.executable, "-m", "tests.golden"], cwd=folder, env=env, capture_output=True, check=False
        )
    changed = done.stdout.decode().splitlines()
    if done.returncode != bool(changed):
        raise RuntimeError(done.stderr.decode())
    return "golden files changed by one GPU product", len(changed), changed


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    folders = [Path(text) for text in arguments if not text.startswith("-")]
    found = rows(folders[0] if folders else ROOT)
    found += [] if folders else [wheel_row()]
    found += [goldens_row()] if "--goldens" in arguments else []
    for what, count, names in found:
        print(f"{what:<52}{count or '-':>7}  {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}".rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
