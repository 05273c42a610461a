"""A simulated GPU: torch's CUDA device is the CPU, and NVIDIA's libraries are built from `driver_standin.c`.

Images get both as files (tests/engines). Here, processes on this machine get them through their environment: Python
runs `sitecustomize` when it starts, which runs `cuda_standin.py` after torch in every process that imports torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.verify.payload import parse_document, payload_archive

DEVICE, DRIVER = (Path(__file__).with_name(name) for name in ("cuda_standin.py", "driver_standin.c"))
LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")
NONCE = "5f0c"
# Multiplies the payload's time limits: a busy machine computes the networks on its CPU.
PATIENCE = 20
SMALLER = f"""
from envkit.checks import c07_repeat as c07
from envkit.checks import c23_training as c23
from envkit.checks import c27_device_memory as c27
from envkit.smoke import mini_train, suite, workloads
c07.GPU_SIZE //= 2
suite.TIME_FACTOR *= {PATIENCE}
workloads.SIZES["large"] = workloads.SIZES["medium"]
mini_train.SIZES["cuda"] = mini_train.SIZES["cpu"]
for sizes in (c23.PARAMETERS, c23.ATTENTION, c23.NETWORK):
    sizes["cuda"] = sizes["cpu"]
c27.SHARE, c27.COPY_BYTES = 0.005, 1 << 26
"""
_RUN = f"""
import sys
sys.path.insert(0, "payload.pyz")
{SMALLER}
from envkit.smoke.__main__ import main
sys.exit(main())
"""
SITE = """
import runpy, sys
from importlib.machinery import PathFinder

class AfterTorch:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name == "torch" else None
        if spec is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), runpy.run_path({device!r}))
        return spec

# Before the finder that it asks, and after those that other start-up modules put first.
sys.meta_path.insert(sys.meta_path.index(PathFinder), AfterTorch())
"""


def build_driver(compiler: str, folder: Path, *, soname: str | None = None) -> Path:
    """Build the driver's library and return its path."""
    library = folder / "driver.so"
    options = ["-shared", "-fPIC", "-nostdlib", "-O1", *([f"-Wl,-soname,{soname}"] if soname else [])]
    subprocess.run([compiler, *options, "-o", str(library), str(DRIVER)], check=True)
    return library


def write_site(folder: Path) -> None:
    """Write the start-up module with which processes see the simulated GPU, if the folder is in their PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(SITE.format(device=str(DEVICE)))


@dataclass(frozen=True, slots=True)
class StandIn:
    """A folder with the payload and the files with which its processes see the simulated GPU."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path) -> StandIn:
        """Write the payload and its files, with NVIDIA's libraries if this machine has a C compiler."""
        (folder / "payload.pyz").write_bytes(payload_archive())
        write_site(folder)
        if compiler := shutil.which("gcc"):
            library = build_driver(compiler, folder)
            for name in LIBRARIES:
                (folder / name).symlink_to(library)
        return cls(folder)

    @property
    def has_driver(self) -> bool:
        """Whether NVIDIA's libraries were built."""
        return (self.folder / LIBRARIES[0]).exists()

    def run(self, *arguments: str, spec: dict[str, Any], **variables: str) -> subprocess.CompletedProcess[bytes]:
        """Run the payload with `arguments` and `variables` such as STANDIN_FAULT."""
        (self.folder / "spec.json").write_text(json.dumps({"nonce": NONCE, **spec}))
        paths = {"PYTHONPATH": str(self.folder), "LD_LIBRARY_PATH": str(self.folder)}
        return subprocess.run(
            [sys.executable, "-c", _RUN, "--spec", "spec.json", *arguments],
            cwd=self.folder, capture_output=True, check=False, env={**os.environ, **paths, **variables},
        )  # fmt: skip

    def document(self, *arguments: str, spec: dict[str, Any], **variables: str) -> dict[str, Any]:
        """Run the payload, which has to succeed, and return its document."""
        ended = self.run(*arguments, spec=spec, **variables)
        assert ended.returncode == 0, ended.stderr.decode()
        return parse_document(ended.stdout, NONCE)
