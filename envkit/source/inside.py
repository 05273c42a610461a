"""Runs in the sandbox, with the image's Python: unpacks a source, calls its backend, and writes the wheel to stdout.

The files beside this one: `asked.json` and `source.tar`. The answer is one line of JSON, then the bytes of the wheel:

    {"requires": ["wheel"]}                                           what the backend asks for besides
    {"missing": "nvcc"}                                               what the image lacks
    {"file": "a-1-cp311-cp311-linux_x86_64.whl", "cxx11_abi": "true"}  and then the wheel

Only the standard library is used, in the syntax of Python 3.8. Everything that the backend prints goes to stderr.
Equal sources give equal wheels: the folder, the locale, the dates and the order of files are always the same.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).resolve().parent
WORK = Path("/tmp/envkit-source")  # noqa: S108 - a file system of the sandbox
OUT = Path("/tmp/envkit-wheel")  # noqa: S108
DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold
_INFO = ".dist-info/"


def main() -> int:
    """Do what `asked.json` says; returns the exit code."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = json.loads((HERE / "asked.json").read_text(encoding="utf-8"))
    if asked["nvcc"] and shutil.which("nvcc") is None:
        return _say(answer, {"missing": "nvcc"})
    WORK.mkdir()
    with tarfile.open(HERE / "source.tar") as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(WORK, filter="data")
        else:
            tar.extractall(WORK)  # noqa: S202 - the sandbox has nothing else to write to
    root = WORK / asked["folder"]
    os.chdir(root)
    sys.path[0:1] = [str(root / one) for one in asked["backend_path"]]
    backend = _backend(asked["backend"])
    more = list(backend.get_requires_for_build_wheel()) if hasattr(backend, "get_requires_for_build_wheel") else []
    if set(more) - set(asked["requires"]):
        return _say(answer, {"requires": more})
    OUT.mkdir()
    name = backend.build_wheel(str(OUT))
    made = rewritten(OUT / name)
    _say(answer, {"file": name, "cxx11_abi": _cxx11_abi() if asked["torch"] else None})
    answer.write(made)
    answer.flush()
    return 0


def rewritten(path: Path) -> bytes:
    """Return a wheel whose bytes depend on its files alone: sorted, with one date, one level, and plain permissions."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        entries = [one for one in old.infolist() if not one.is_dir()]
        # Metadata comes last in the archive, as the wheel format recommends.
        for one in sorted(entries, key=lambda one: (_INFO in one.filename, one.filename)):
            data = old.read(one)
            if one.filename.endswith(_INFO + "RECORD"):
                data = _sorted(data)
            entry = zipfile.ZipInfo(one.filename, DATE)
            entry.create_system = 3
            entry.external_attr = (0o100755 if one.external_attr >> 16 & 0o111 else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(entry, data, compresslevel=6)
    return buffer.getvalue()


def _sorted(record: bytes) -> bytes:
    rows = sorted(csv.reader(io.StringIO(record.decode("utf-8"), newline="")))
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8")


def _backend(name: str) -> Any:
    module, _, attributes = name.partition(":")
    found = importlib.import_module(module)
    for one in filter(None, attributes.split(".")):
        found = getattr(found, one)
    return found


def _cxx11_abi() -> str:
    import torch  # noqa: PLC0415 - only where the source is compiled with it

    return "true" if torch._C._GLIBCXX_USE_CXX11_ABI else "false"  # noqa: SLF001


def _say(answer: BinaryIO, tree: dict[str, Any]) -> int:
    answer.write(json.dumps(tree).encode("utf-8") + b"\n")
    answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
