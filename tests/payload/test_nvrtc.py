"""NVRTC of the real package, which needs no GPU: it compiles, and without its built-in functions it says so."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.c02_libraries import observe

nvrtc_path: Any = observe.nvrtc_path
pytestmark = pytest.mark.long  # the package has 24 MB
PACKAGE = "nvidia-cuda-nvrtc-cu12==12.6.77"
ASK = """
import sys
from envkit.checks.c02_libraries.observe import nvrtc_error
print(nvrtc_error(*map(eval, sys.argv[1:])))
"""


def compiled(library: Path, source: bytes = observe.SOURCE) -> str:
    """Compile in a process of its own, because a library that is loaded once stays."""
    argv = [sys.executable, "-c", ASK, repr(str(library)), repr(source)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("nvrtc")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(root), PACKAGE],
        check=True,
    )
    (wheel,) = root.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root / "lib/python3.12/site-packages")
    return root


def test_the_package_is_found_and_compiles_until_its_built_in_functions_are_gone(environment: Path) -> None:
    found = nvrtc_path({}, str(environment))
    assert found is not None
    library = Path(found)
    assert library.name == "libnvrtc.so.12"
    assert (
        nvrtc_path({"libnvrtc.so.13": ["/opt/env/lib/libnvrtc.so.13"]}, str(environment))
        == "/opt/env/lib/libnvrtc.so.13"
    )
    assert compiled(library) == "None"
    assert "error" in compiled(library, b"not a kernel")
    (builtins,) = library.parent.glob("libnvrtc-builtins.so.*")
    builtins.unlink()
    assert "failed to open libnvrtc-builtins.so.12.6" in compiled(library)
