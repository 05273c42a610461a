"""Leaves /opt/env as a read-only environment should be: no traces of the installation, plain modes, hashed bytecode.

Bytecode that conda and pip wrote carries time stamps, which differ from build to build; it is replaced by bytecode
that is checked against its source's hash. Files that are in order are not touched, so that a layer holds only changes.
"""
# ruff: noqa: PTH101, PTH108, PTH110, PTH118, PTH123, PTH202, PTH114, INP001, UP032 - runs inside images of any Python 3

import concurrent.futures
import os
import py_compile
import stat
import sys

PREFIX = "/opt/env"
TRACES = ("conda-meta/history",)


def main() -> None:
    """Seal the environment below PREFIX."""
    sources = []
    for folder, _, names in os.walk(PREFIX):
        _mode(folder)
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            if name.endswith(".pyc") and _stamped(path):
                os.unlink(path)
                continue
            _mode(path)
            if name.endswith(".py"):
                sources.append(path)
    for name in TRACES:
        path = os.path.join(PREFIX, name)
        if os.path.exists(path) and os.path.getsize(path):
            open(path, "w").close()
    # Python 3.6 knows time stamps only.
    if not hasattr(py_compile, "PycInvalidationMode") or os.environ.get("ENVKIT_BYTECODE") == "none":
        return
    waiting = [path for path in sources if not os.path.exists(_cached(path))]
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for _ in pool.map(_compile, waiting, chunksize=64):
            pass


def _mode(path: str) -> None:
    """Readable by all, writable by root alone, without setuid."""
    old = stat.S_IMODE(os.lstat(path).st_mode)
    new = (old | 0o644 | (0o111 if old & 0o100 else 0)) & 0o755
    if new != old:
        os.chmod(path, new)


def _stamped(path: str) -> bool:
    """Whether a .pyc is checked by time stamp: the second word of its header has no flag set."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == b"\0\0\0\0"


def _cached(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, "__pycache__", "{}.{}.pyc".format(name[:-3], sys.implementation.cache_tag))


def _compile(path: str) -> None:
    """Compile one source; templates and tests that are not valid Python stay as they are."""
    try:
        py_compile.compile(
            path, cfile=_cached(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )
    except (py_compile.PyCompileError, SyntaxError, ValueError, OSError, RecursionError):
        return


if __name__ == "__main__":
    main()
