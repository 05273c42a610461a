"""Packages of an environment that an image has without being asked, above all those of a `conda env export`.

An export lists each package of an environment with the version and the build that its channel had on that day. Python's
own requirements and the packages that only order others are among them. They fix nothing that a project needs, and
conda-forge has no Python for the versions that Anaconda's channels had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from envkit.plan.conda_specs import CondaSpec

HINT = "`conda env export --from-history` lists only the packages that were asked for"
_WITH_TORCH = ("cudnn", "nccl", "triton", "torchtriton", "pytorch-mutex", "libtorch")
_OF_TOOLS = ("pip", "setuptools", "wheel")
# What Python and conda require. `_libgcc_mutex` and its like have no files.
_OF_PYTHON = re.compile(
    r"_.+|bzip2|ca-certificates|expat|ld_impl_linux-(?:64|aarch64)|libcxx|libedit|libexpat|libffi|libgcc|libgcc-ng|libgomp|libiconv"
    r"|liblzma|libmpdec|libnsl|libsqlite|libstdcxx|libstdcxx-ng|libuuid|libxcrypt|libzlib|llvm-openmp|ncurses|openssl|pip"
    r"|python_abi|readline|sqlite|tk|tzdata|wheel|xz|zlib"
)
# Parts of CUDA, which torch's own build requires.
_OF_CUDA = re.compile(
    r"cuda-(?!toolkit|nvcc|compiler|version).+|lib(?:cublas|cufft|cufile|curand|cusolver|cusparse|npp|nvjitlink|nvjpeg)(?:-.+)?"
)
# Packages that only Anaconda's channels have.
_OF_ANACONDA = re.compile(r"numpy-base|anaconda(?:-.+)?|conda-content-trust|navigator-updater|qt-webengine-base")
_FEW = 3  # such packages in a file that a person wrote


def is_export(specs: Iterable[CondaSpec]) -> bool:
    """Return whether specs are those of an export: Python's own requirements are among them, with their versions."""
    return sum(spec.version[:1].isdigit() and bool(_OF_PYTHON.fullmatch(spec.name)) for spec in specs) >= _FEW


def unneeded(spec: CondaSpec, *, export: bool) -> str | None:
    """Return why an image does not need a package, or has another version of it; None if the package is installed."""
    name, is_pinned = spec.name.lower(), spec.version not in ("", "*")
    own = ", in its own version" if is_pinned else ""
    if name in _WITH_TORCH or (export and _OF_CUDA.fullmatch(name)):
        return f"the one that torch requires is installed{own}"
    # A version of setuptools is one that the project needs.
    if name in _OF_TOOLS and not is_pinned:
        return "it is installed in every image that needs it"
    if export and _OF_PYTHON.fullmatch(name):
        return f"Python requires it{own}; {HINT}"
    # conda-forge has another package with the name blas, from version 2 on.
    is_old = name == "blas" and spec.version.startswith("1.")
    return "only Anaconda's channels have it" if export and (is_old or _OF_ANACONDA.fullmatch(name)) else None


def without_build(spec: CondaSpec) -> tuple[CondaSpec, str]:
    """Return a spec that conda-forge can have, and a note if the build of one channel and day is left out for it.

    A person writes a pattern (`mpi*`), which is kept; that of a Python (`py311*`) is for the Python of that day.
    """
    if not spec.build or ("*" in spec.build and not re.search(r"py\d", spec.build)):
        return spec, ""
    return replace(spec, build=""), f"its build is left out: conda-forge has others; {HINT}"
