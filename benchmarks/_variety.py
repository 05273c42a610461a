"""A conda channel with several Pythons and several versions of torch, and two base images, for benchmarks of fleets.

The Pythons are those of this machine, from PATH or pyenv. The rest is the content of the test world's wheels, under
names and versions of conda-forge, so its sizes and kinds are real; only the file with the version differs between
versions. torch is split as on conda-forge: `libtorch` is the same for every Python, and there is a `pytorch` for each.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.world import base, channel, conda_package, image, processes, wheels
from tests.world.conda_package import Metadata

PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.13.0", "2.12.1", "2.11.0", "2.10.0")
NUMPY, MARKUPSAFE = "2.4.6", "3.0.4"
SETUPTOOLS = "80.9.0"  # allowed by all of these versions of torch
_REPOSITORY = Path(__file__).parents[1]
_SHARED = ("lib/", "bin/", "include/", "share/", "test/")  # below torch/, except the library with the Python binding
_BINDING = "libtorch_python.so"


def packed(folder: Path, pythons: Sequence[str], torches: Sequence[str]) -> Path:
    """Write the channel and return the folder to serve, with `conda-forge` in it."""
    root = folder / "channel"
    target, stage = root / channel.CHANNEL, folder / "stage"
    shutil.copytree(channel.packed() / channel.CHANNEL / "noarch", target / "noarch", copy_function=os.link)
    for package in (target / "noarch").glob("setuptools-*.conda"):
        package.unlink()
    (target / "linux-64").mkdir(parents=True)
    tini = next((channel.packed() / channel.CHANNEL / "linux-64").glob("tini-*.conda"))
    os.link(tini, target / "linux-64" / tini.name)
    files = {wheel.name.partition("-")[0]: wheel for wheel in wheels.fetch()}
    for python in pythons:
        _python(python, target, stage)
        for name, version in (("numpy", NUMPY), ("markupsafe", MARKUPSAFE)):
            _fresh(stage, zipfile.ZipFile(files[name]), f"lib/python{python}/site-packages")
            depends = (f"python {python}.*", "__glibc >=2.28,<3.0.a0")
            conda_package.write(Metadata(name, version, f"py{python.replace('.', '')}_0", depends), stage, target)
    _fresh(stage, zipfile.ZipFile(files["setuptools"]), "site-packages")
    conda_package.write(Metadata("setuptools", SETUPTOOLS, "py_0", ("python",), noarch="python"), stage, target)
    with zipfile.ZipFile(files["torch"]) as torch:
        for version in torches:
            _libtorch(torch, version, stage, target)
            for python in pythons:
                _pytorch(torch, version, python, stage, target)
    shutil.rmtree(stage)
    processes.run_rattler("index", str(target))
    return root


def push_bases(registry: str, folder: Path, count: int) -> list[str]:
    """Push `count` Debian roots, each with a layer of its own; return their references."""
    first = base.layer()
    references = []
    for number in range(1, count + 1):
        layer = first if number == 1 else _changed(first.path, folder / f"base{number}.tar.gz", number)
        image.push(registry, f"team/debian{number}", ("12",), [layer], env={"PATH": base.PATH})
        references.append(f"{registry}/team/debian{number}:12")
    return references


def _python(version: str, target: Path, stage: Path) -> None:
    """Pack an interpreter of this machine, with code that it runs itself."""
    code = "import sys, pathlib; from tests.world.python_package import write; write(*map(pathlib.Path, sys.argv[1:]))"
    argv = [_interpreter(version), "-c", code, str(target), str(stage)]
    subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(_REPOSITORY)}, check=True)


def _interpreter(version: str) -> str:
    """Return the interpreter of this version, from PATH or pyenv."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    kept = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *map(str, kept)):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    raise SystemExit(f"there is no Python {version} on this machine")


def _libtorch(torch: zipfile.ZipFile, version: str, stage: Path, target: Path) -> None:
    names = [name for name in torch.namelist() if _is_shared(name)]
    _fresh(stage, torch, "", names, cut="torch/")
    (stage / "share" / "libtorch-version").write_text(f"{version}\n")
    conda_package.write(Metadata("libtorch", version, "cpu_generic_h0_0", ("__glibc >=2.28,<3.0.a0",)), stage, target)


def _pytorch(torch: zipfile.ZipFile, version: str, python: str, stage: Path, target: Path) -> None:
    site = f"lib/python{python}/site-packages"
    own = [name for name in torch.namelist() if not _is_shared(name) and ".dist-info/" not in name]
    _fresh(stage, torch, site, own)
    module = stage / site / "torch" / "version.py"
    module.write_text(module.read_text().replace(wheels.TORCH, version))
    tag = f"py{python.replace('.', '')}"
    depends = (
        f"python {python}.*", f"libtorch {version}", "numpy", "filelock", "typing_extensions", "sympy", "networkx",
        "jinja2", "fsspec", "markupsafe", "setuptools",
    )  # fmt: skip
    conda_package.write(Metadata("pytorch", version, f"cpu_generic_{tag}_0", depends), stage, target)


def _is_shared(name: str) -> bool:
    rest = name.removeprefix("torch/")
    return rest != name and rest.startswith(_SHARED) and not rest.endswith((_BINDING, ".py"))


def _fresh(stage: Path, archive: zipfile.ZipFile, below: str, names: list[str] | None = None, cut: str = "") -> None:
    """Empty the stage and extract files of a wheel into it."""
    shutil.rmtree(stage, ignore_errors=True)
    for name in archive.namelist() if names is None else names:
        if name.endswith("/"):
            continue
        target = stage / below / name.removeprefix(cut)
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        if target.suffix == ".so" or target.parent.name == "bin":
            target.chmod(0o755)


def _changed(layer: Path, target: Path, number: int) -> image.Layer:
    """Return the same root with one more file, so that it is a different layer."""
    plain = target.with_suffix("")
    with gzip.open(layer) as source, plain.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    text = json.dumps({"team": "vision", "base": number}).encode()
    with tarfile.open(plain, "a") as tar:
        member = tarfile.TarInfo("./etc/team.json")
        member.size, member.mtime = len(text), 1735689600
        tar.addfile(member, io.BytesIO(text))
    made = image.compress(plain, target)
    plain.unlink()
    return made
