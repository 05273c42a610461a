"""What folders of LD_LIBRARY_PATH have: stubs, other drivers, other copies of CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from envkit.doctor.host.libraries import of_folders
from envkit.doctor.model import Severity
from tests.unit.doctor.machine import machine

TOOLKIT = "/usr/local/cuda-12.4/targets/x86_64-linux/lib"


@pytest.mark.parametrize(
    ("files", "path", "told"),
    [
        ((f"{TOOLKIT}/stubs/libcuda.so",), f"{TOOLKIT}/stubs", ["cuda-stubs"]),
        ((f"{TOOLKIT}/stubs/libcuda.so",), f"{TOOLKIT}/stubs/", ["cuda-stubs"]),
        ((f"{TOOLKIT}/stubs/libnvidia-ml.so.1",), f"/a::{TOOLKIT}/stubs:{TOOLKIT}/stubs", ["cuda-stubs"]),
        ((f"{TOOLKIT}/stubs/libcublas.so",), f"{TOOLKIT}/stubs", ["cuda-stubs"]),
        ((f"{TOOLKIT}/libcudart.so.12", f"{TOOLKIT}/libcublas.so.12.4.5.8"), TOOLKIT, ["ld-library-path"]),
        (("/opt/conda/lib/libnvrtc.so.12", "/opt/conda/lib/libz.so"), "/opt/conda/lib", ["ld-library-path"]),
        (("/usr/local/cuda/compat/libcuda.so.550.54.15",), "/usr/local/cuda/compat", ["cuda-compat"]),
        (("/opt/old/libcuda.so.1", "/opt/old/libcudart.so.11.0"), "/opt/old", ["driver-copy", "ld-library-path"]),
        (("/usr/lib/x86_64-linux-gnu/libcuda.so.1",), "/usr/lib/x86_64-linux-gnu", []),
        (("/usr/local/nvidia/lib64/libcuda.so.1",), "/usr/local/nvidia/lib64", []),
        (("/usr/lib/wsl/lib/libcuda.so.1",), "/usr/lib/wsl/lib", []),
        (("/opt/mine/libcudamatch.so",), "/opt/mine", []),
        ((), "/nowhere:", []),
    ],
)
def test_what_is_in_the_folders_decides(tmp_path: Path, files: tuple[str, ...], path: str, told: list[str]) -> None:
    found = list(of_folders(machine(tmp_path, dict.fromkeys(files, "")), path))
    assert [one.id for one in found] == told


def test_a_stub_is_an_error_and_the_libraries_of_a_folder_are_named(tmp_path: Path) -> None:
    files = dict.fromkeys(["/cuda/stubs/libcuda.so", *(f"/cuda/lib{name}.so.12" for name in ("cublas", "cudart"))], "")
    stub, copies = of_folders(machine(tmp_path, files), "/cuda:/cuda/stubs")
    assert (stub.severity, stub.evidence[0].text) == (Severity.ERROR, "/cuda/stubs")
    assert copies.evidence[0].text == "/cuda: libcublas, libcudart"
