from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

compiling: Any = import_module("envkit.smoke.compiling")


def test_only_kernels_count(tmp_path: Path) -> None:
    folder = tmp_path / "ab"
    folder.mkdir()
    for name in ("x.cpp", "y.cpp", "z.so", "lock.txt", "w.py"):
        (folder / name).touch()
    assert compiling.kernels(tmp_path) == {".cpp": 2, ".so": 1}
    assert compiling.kernels(tmp_path / "absent") == {}
