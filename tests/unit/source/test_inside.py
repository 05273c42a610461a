"""The script that runs in the sandbox: a rewritten wheel depends on its files alone."""

import ast
import random
import sys
import zipfile
from pathlib import Path

from envkit.source import inside

FILES = {
    "fastsum/__init__.py": b"x = 1\n",
    "fastsum/run.sh": b"#!/bin/sh\n",
    "fastsum-1.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: fastsum\nVersion: 1.2\n",
}


def _wheel(path: Path, *, seed: int, year: int, level: int) -> Path:
    """A wheel whose order, dates, rows and compression differ from those of another one."""
    names = sorted(FILES)
    random.Random(seed).shuffle(names)
    record = "".join(f"{name},,\n" for name in names).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name in [*names, "fastsum-1.2.dist-info/RECORD"]:
            entry = zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0))
            mode = 0o100744 if name.endswith(".sh") else 0o100640 if year > 2010 else 0o100600
            entry.external_attr, entry.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, FILES.get(name, record), compresslevel=level)
    return path


def test_two_wheels_with_the_same_files_become_the_same_bytes(tmp_path: Path) -> None:
    one = inside.rewritten(_wheel(tmp_path / "a.whl", seed=1, year=2001, level=1))
    other = inside.rewritten(_wheel(tmp_path / "b.whl", seed=4, year=2020, level=9))
    assert one == other


def test_programs_stay_programs_and_the_rest_does_not_become_one(tmp_path: Path) -> None:
    path = tmp_path / "made.whl"
    path.write_bytes(inside.rewritten(_wheel(tmp_path / "a.whl", seed=1, year=2001, level=1)))
    with zipfile.ZipFile(path) as archive:
        modes = {one.filename: one.external_attr >> 16 & 0o777 for one in archive.infolist()}
    assert modes.pop("fastsum/run.sh") == 0o755
    assert set(modes.values()) == {0o644}


def test_it_needs_nothing_but_a_python_3_8() -> None:
    tree = ast.parse(Path(inside.__file__).read_text(), feature_version=(3, 8))
    imported = {one.names[0].name for one in ast.walk(tree) if isinstance(one, ast.Import)}
    assert imported - {"torch"} <= sys.stdlib_module_names
