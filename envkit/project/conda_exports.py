"""What `conda env export` writes beside the packages that someone asked for.

An export lists each package of an environment with the version and the build that its channel had on that day. Python's
own requirements and the packages that only order others are among them. They fix nothing that a project needs, and
conda-forge has no Python for the versions that Anaconda's channels had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from envkit.plan.conda_specs import CondaSpec

HINT = "`conda env export --from-history` lists only the packages that were asked for"
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


def unneeded(spec: CondaSpec) -> str | None:
    """Return why a package of an export is not needed; None if it may be."""
    if _OF_PYTHON.fullmatch(spec.name):
        return f"Python requires it, in a version of its own; {HINT}"
    if _OF_CUDA.fullmatch(spec.name):
        return "the build of torch requires it, in a version of its own"
    # conda-forge has another package of this name, from version 2 on.
    if _OF_ANACONDA.fullmatch(spec.name) or (spec.name == "blas" and spec.version.startswith("1.")):
        return "only Anaconda's channels have it"
    return None
