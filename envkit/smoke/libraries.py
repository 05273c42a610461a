"""The shared libraries that this process has loaded, from /proc/self/maps."""

import os
import re
import sys

from .hostfacts import read_text

# Wheels add a hash to a library's name (libcudart-80664282.so.10.2); it is not part of the soname.
_HASH = re.compile(r"-[0-9a-f]{7,10}(?=\.so)")
_SHARED_OBJECT = re.compile(r"\.so(\.[0-9]+)*$")
CUDA_FAMILIES = (
    "libcudart",
    "libcublas",
    "libcudnn",
    "libnccl",
    "libnvrtc",
    "libcuda",
    "libcufft",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libcupti",
    "libnvJitLink",
)
TORCH_FAMILIES = ("libtorch", "libc10")
OPENMP_FAMILIES = ("libgomp", "libiomp5", "libomp")


def loaded(maps, root=""):
    """Return ``{soname: [paths]}`` of all shared objects in the text of /proc/self/maps, without hashes in the names.

    ``root`` is removed from the paths, see ``root_of``.
    """
    sonames = {}
    for path in mapped(maps):
        if root and path.startswith(root + "/"):
            path = path[len(root) :]
        name = without_hash(path.rsplit("/", 1)[-1])
        if _SHARED_OBJECT.search(name) and path not in sonames.setdefault(name, []):
            sonames[name].append(path)
    return sonames


def without_hash(name):
    """Return a library's file name without the hash that a wheel added to it."""
    return _HASH.sub("", name)


def mapped(maps):
    """Return the paths in the text of /proc/self/maps, in the same order."""
    rows = [line.split(None, 5) for line in maps.splitlines()]
    return [row[5].replace(" (deleted)", "") for row in rows if len(row) > 5 and row[5].startswith("/")]


def root_of(maps, program):
    """Return the host folder that is / for this process, empty if the kernel sees the same root.

    proot translates the paths of system calls, so the kernel does not know this root and lists mapped files by their
    real paths. The running ``program`` (its path as this process sees it) is always mapped, so it shows the difference.
    """
    paths = mapped(maps)
    if program in paths:
        return ""
    return next((path[: -len(program)] for path in paths if path.endswith(program)), "")


def of_families(libraries, families):
    """Return the entries of ``loaded`` whose name without extension begins with one of ``families``."""
    return {name: paths for name, paths in sorted(libraries.items()) if stem(name).startswith(families)}


def stem(name):
    """Return a library's name without extension: ``libcudnn_ops`` for ``libcudnn_ops.so.9``."""
    return name.split(".so", 1)[0]


def openmp_runtimes(libraries):
    """Return the distinct OpenMP runtimes that are loaded, like ``["libgomp"]``. Several compete for the same CPUs."""
    names = {stem(name) for name in libraries}
    return sorted({family for family in OPENMP_FAMILIES for name in names if name == family})


def in_this_process():
    """Return ``loaded`` of this process."""
    maps = read_text("/proc/self/maps")
    return loaded(maps, root_of(maps, os.path.realpath(sys.executable)))
