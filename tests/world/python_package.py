"""The conda package `python`: the running interpreter, made relocatable, with its shared libraries."""

import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from tests.world import apt, conda_package
from tests.world.conda_package import PLACEHOLDER, Metadata
from tests.world.places import UnavailableError

VERSION = platform.python_version()
SHORT = f"{sys.version_info.major}.{sys.version_info.minor}"
BUILD_TAG = f"py{sys.version_info.major}{sys.version_info.minor}"
_IMAGE_GLIBC = (2, 36)  # that of Debian 12, in whose image this interpreter has to run
_LEFT_OUT = (
    "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "site-packages", "dist-packages",
    "config-*", "EXTERNALLY-MANAGED", "sitecustomize.py", "_tkinter*.so", "nis*.so", "_dbm*.so", "_gdbm*.so",
    "_test*.so", "_ctypes_test*.so", "_xx*.so", "xx*.so",
)  # fmt: skip
_OF_GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl))\.so")


def write(channel: Path, stage: Path) -> Path:
    """Pack the running interpreter; raises UnavailableError if it could not run in a Debian 12 image."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) > _IMAGE_GLIBC:
        raise UnavailableError(f"the running Python needs {name} {version}, newer than the 2.36 of Debian 12")
    shutil.rmtree(stage, ignore_errors=True)
    library = stage / "lib" / f"python{SHORT}"
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    (library / "site-packages").mkdir()
    (library / "site-packages" / "README.txt").write_text("Packages are installed here.\n")
    (stage / "bin").mkdir()
    binary = stage / "bin" / f"python{SHORT}"
    shutil.copy(_interpreter(), binary)
    for alias in ("python3", "python"):
        (stage / "bin" / alias).symlink_to(binary.name)
    modules = list(library.glob("lib-dynload/*.so"))
    _copy_libraries([_interpreter(), *Path(sysconfig.get_path("stdlib")).glob("lib-dynload/*.so")], modules, stage)
    _relocate(binary, "$ORIGIN/../lib")
    for module in modules:
        _relocate(module, "$ORIGIN/../..")
    _make_prefix_free(library)
    conda_package.compile_modules(stage)
    depends = ("__glibc >=2.36,<3.0.a0",)
    metadata = Metadata("python", VERSION, "h0_0", depends, license="Python-2.0")
    return conda_package.write(metadata, stage, channel)


def _interpreter() -> Path:
    """Return the interpreter's binary, which a virtual environment links to."""
    return (Path(sysconfig.get_config_var("BINDIR")) / f"python{SHORT}").resolve()


def _copy_libraries(originals: Iterable[Path], modules: Iterable[Path], stage: Path) -> None:
    """Copy the shared libraries of the interpreter and the kept extension modules, except glibc's."""
    kept = {module.name for module in modules} | {_interpreter().name}
    wanted: dict[str, Path] = {}
    for original in originals:
        if original.name not in kept:
            continue
        done = subprocess.run(["ldd", str(original)], capture_output=True, text=True, check=False)
        for soname, path in re.findall(r"^\s*(\S+) => (/\S+)", done.stdout, re.MULTILINE):
            if not _OF_GLIBC.match(soname):
                wanted[soname] = Path(path)
    for soname, path in wanted.items():
        copied = stage / "lib" / soname
        shutil.copy(path.resolve(), copied)
        copied.chmod(0o755)
        _relocate(copied, "$ORIGIN")


def _relocate(binary: Path, run_path: str) -> None:
    patchelf = apt.require("patchelf", "patchelf")
    subprocess.run([patchelf, "--set-rpath", run_path, str(binary)], check=True, capture_output=True)


def _make_prefix_free(library: Path) -> None:
    """Replace the build's prefix, and undo the layout that Debian patches into its Python."""
    for data in library.glob("_sysconfigdata*.py"):
        text = data.read_text()
        data.write_text(re.sub(rf"(?<![\w.-]){re.escape(sys.base_prefix)}(?=[/' ])", PLACEHOLDER, text))
    if '"dist-packages"' in (library / "site.py").read_text():
        # The module is frozen into the binary, so editing its file would have no effect: link its folder instead.
        (library / "dist-packages").symlink_to("site-packages")
    schemes = library / "sysconfig.py"
    schemes = schemes if schemes.exists() else library / "sysconfig" / "__init__.py"  # a package from 3.13 on
    schemes.write_text(schemes.read_text().replace("'prefix': prefix_scheme", "'prefix': 'posix_prefix'"))
