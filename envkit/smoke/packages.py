"""The packages that are installed beside this Python, by their own metadata: their modules and their libraries."""

import csv
import json
import os
import pathlib
import platform
import re
import sys
from importlib import machinery, metadata

from . import elf, libraries
from .hostfacts import read_text

# Folders that many wheels install by mistake. They are no part of the package's interface.
NOT_THE_PACKAGE = frozenset(
    (
        "benchmark",
        "benchmarks",
        "conftest",
        "demo",
        "demos",
        "doc",
        "docs",
        "example",
        "examples",
        "samples",
        "scripts",
        "setup",
        "test",
        "tests",
    )
)
MODULES_MAX = 12  # of one package; a few have hundreds of modules without a common package
LIBRARIES_MAX = 4000  # shared objects of one package
_SHARED_OBJECT = re.compile(r"\.so(\.[0-9]+)*$")
# libcudart.so.12, without the libraries that a wheel contains under a name of its own: libcudart.3eda8113.so.13.
_CUDA = re.compile(
    r"(lib(?:cudart|cublas|cublasLt|cudnn\w*|nccl|nvrtc|cufftw?|curand|cusolver(?:Mg)?|cusparse|cupti|nvJitLink))"
    r"\.so\.([0-9][0-9.]*)"
)
_EXTRA = re.compile(r"\bextra\s*==")
_LISTED = re.compile(r"^\s*(?:include\s+)?(/\S+)", re.MULTILINE)


def normal(name):
    """Return the normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Package:
    """One installed package: ``files`` are paths relative to ``root``."""

    def __init__(self, name, version, root, read, *, requires=(), site=()):
        self.name, self.version, self.root, self.requires = name, version, root, requires
        self._site = site  # folders below root that have the modules; () for root itself
        self._read = read
        self._files = None
        self._needs = None

    @property
    def files(self):
        """Return the paths of the package's files, empty if its metadata do not list them."""
        if self._files is None:
            self._files = self._read()
        return self._files

    def modules(self):
        """Return the dotted names of the package's top-level modules; the one with the package's own name comes first.

        A namespace package such as ``google`` belongs to many distributions, so the first module below it that is this
        package's own counts: ``google.cloud.storage``.
        """
        names = modules_of([_below(name, self._site) for name in self.files])
        public = [
            name for name in names if not name.startswith("_") and "._" not in name and name not in NOT_THE_PACKAGE
        ]
        return sorted(public or names, key=lambda name: (normal(name) != normal(self.name), name))

    def needs(self):
        """Return ``{path: sonames}`` of the package's shared objects, by their paths relative to its root."""
        if self._needs is None:
            paths = [name for name in self.files if _SHARED_OBJECT.search(name)][:LIBRARIES_MAX]
            self._needs = {path: elf.needed(f"{self.root}/{path}") for path in paths}
        return self._needs


def modules_of(files):
    """Return the importable top-level modules among the files of a package, sorted."""
    regular, plain, nested = set(), set(), set()
    for path in files:
        parts = path.split("/")
        stem = _stem(parts[-1])
        if stem is None or not all(part.isidentifier() for part in parts[:-1]):
            continue
        if stem == "__init__":
            regular.add(tuple(parts[:-1]))
        elif len(parts) == 1:
            plain.add(stem)
        else:
            nested.add((*parts[:-1], stem))
    top = [parts for parts in regular if not any(parts[:length] in regular for length in range(1, len(parts)))]
    names = {".".join(parts) for parts in top if parts} | plain
    if not names:
        # Only modules in folders without __init__: the shallowest ones.
        depth = min((len(parts) for parts in nested), default=0)
        names = {".".join(parts) for parts in nested if len(parts) == depth}
    return sorted(names)


def _stem(name):
    """Return the module of a file name (``_C`` of ``_C.cpython-312-x86_64-linux-gnu.so``), None if it is no module."""
    for suffix in machinery.all_suffixes():
        if name.endswith(suffix):
            stem = name[: -len(suffix)]
            return stem if stem.isidentifier() else None
    return None


def installed():
    """Return ``{normalized name: Package}`` of all Python distributions; the first one on sys.path wins."""
    found = {}
    for item in metadata.distributions():
        try:
            name, version = item.metadata["Name"], item.metadata["Version"]
        except (OSError, ValueError, KeyError):
            continue
        if name:
            root = str(pathlib.Path(str(item.locate_file(""))).resolve())
            found.setdefault(
                normal(name), Package(name, str(version), root, _reader(item), requires=tuple(item.requires or ()))
            )
    return found


def _reader(item):
    def read():
        record = item.read_text("RECORD")
        if record:
            return [row[0] for row in csv.reader(record.splitlines()) if row and not row[0].startswith(("../", "/"))]
        # Packages of Debian have an egg-info folder or file without a list of files.
        names = (item.read_text("top_level.txt") or "").split()
        return [name + "/__init__.py" for name in names]

    return read


def of_conda(prefix):
    """Return ``{name: Package}`` of the conda packages in an environment, empty if it is not one."""
    found = {}
    # Packages for every Python list site-packages/ without its folder.
    site = ("site-packages/", "lib/python{}.{}/site-packages/".format(*sys.version_info[:2]))
    for path in pathlib.Path(prefix).glob("conda-meta/*.json"):
        parts = path.name[: -len(".json")].rsplit("-", 2)  # only the name may contain hyphens
        if len(parts) == 3:
            found[parts[0].lower()] = Package(parts[0], parts[1], prefix, _conda_reader(path), site=site)
    return found


def _conda_reader(path):
    def read():
        try:
            return [str(name) for name in json.loads(path.read_text(encoding="utf-8")).get("files") or []]
        except (OSError, ValueError, AttributeError, TypeError):
            return []

    return read


def _below(name, folders):
    for folder in folders:
        if name.startswith(folder):
            return name[len(folder) :]
    return name


def requires_torch(name, packages):
    """Whether a distribution needs torch, directly or through others; optional requirements (extras) do not count."""
    seen, waiting = set(), [normal(name)]
    while waiting:
        here = waiting.pop()
        if here == "torch":
            return True
        if here in seen or here not in packages:
            continue
        seen.add(here)
        needed = [line for line in packages[here].requires if not _EXTRA.search(line)]
        waiting.extend(normal(re.split(r"[^A-Za-z0-9._-]", line.strip(), maxsplit=1)[0]) for line in needed)
    return False


def system_folders(prefix):
    """Return the folders in which the dynamic loader looks, and the environment's own."""
    multiarch = f"{platform.machine()}-linux-gnu"
    listed = [
        match.group(1)
        for path in sorted(pathlib.Path("/etc/ld.so.conf.d").glob("*.conf"))
        for match in _LISTED.finditer(read_text(path))
    ]
    usual = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib", f"/lib/{multiarch}", f"/usr/lib/{multiarch}"]
    usual += ["/usr/local/cuda/lib64", f"{prefix}/lib"]
    usual += [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return list(dict.fromkeys(usual + listed))


def available(packages, folders):
    """Return the names of all shared objects in these packages and folders."""
    names = {name.rsplit("/", 1)[-1] for item in packages for name in item.files if ".so" in name}
    for folder in folders:
        try:
            names.update(name for name in os.listdir(folder) if ".so" in name)  # noqa: PTH208 - names are all it needs
        except OSError:
            continue
    return names


def missing(package, names):
    """Return ``{soname: path}`` of what the package's shared objects need and ``names`` lacks; a module's path first.

    A wheel may contain a library that nobody loads, so what one of its modules needs is the more certain fault.
    """
    found = {}
    for path, sonames in sorted(package.needs().items(), key=lambda item: (not is_module(item[0]), item[0])):
        for soname in sonames:
            if soname not in names:
                found.setdefault(soname, path)
    return dict(sorted(found.items()))


def is_module(path):
    """Whether a shared object is a module by its name: ``QtWidgets.abi3.so``, not ``libqxcb.so``."""
    name = path.rsplit("/", 1)[-1]
    return any(name.endswith(suffix) for suffix in machinery.EXTENSION_SUFFIXES if suffix != ".so")


def cuda_needs(package):
    """Return ``{library: {version: path}}`` of CUDA's libraries that the package's shared objects need.

    ``path`` is one file that needs it, relative to the package's root: ``{"libcublas": {"12": "cupy/…/cublas.so"}}``.
    """
    needs = {}
    for path, sonames in package.needs().items():
        for match in filter(None, map(_CUDA.fullmatch, sonames)):
            needs.setdefault(match.group(1), {}).setdefault(match.group(2), path)
    return needs


def cuda_versions(names):
    """Return ``{library: [versions]}`` of CUDA's libraries among file names: ``{"libcublas": ["12", "12.6.4.1"]}``."""
    found = {}
    for name in names:
        match = _CUDA.fullmatch(libraries.without_hash(name))
        if match:
            found.setdefault(match.group(1), set()).add(match.group(2))
    return {name: sorted(versions) for name, versions in sorted(found.items())}
