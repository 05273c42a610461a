"""Make sdists, and serve them with wheels from an index on loopback."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lock.served import Site

JSON = "application/vnd.pypi.simple.v1+json"
SETUPTOOLS = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
C = """#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastsum._c", "built on " __FILE__, -1, methods};
PyMODINIT_FUNC PyInit__c(void) { return PyModule_Create(&module); }
"""
SETUP = """from setuptools import Extension, setup
setup(name="fastsum", version="1.2", packages=["fastsum"], ext_modules=[Extension("fastsum._c", ["fastsum/c.c"])])
"""
FASTSUM: Mapping[str, str] = {
    "pyproject.toml": SETUPTOOLS,
    "setup.py": SETUP,
    "fastsum/__init__.py": "from fastsum._c import answer\n",
    "fastsum/c.c": C,
}
"""A package with an extension in C, for setuptools."""


def tar(files: Mapping[str, str | bytes], folder: str = "fastsum-1.2") -> bytes:
    """Return a tar of files below one folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime = len(data), 1_600_000_000
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def sdist(files: Mapping[str, str | bytes], folder: str = "fastsum-1.2") -> bytes:
    """Return an sdist of files below one folder."""
    return gzip.compress(tar(files, folder), mtime=0)


def put_files(site: Site, index: str, files: Mapping[str, bytes]) -> str:
    """Serve sdists and wheels as an index and return its URL."""
    pages: dict[str, list[dict[str, object]]] = {}
    for file, data in files.items():
        name = file.rpartition("-")[0] if file.endswith(".tar.gz") else file.partition("-")[0]
        site.put(f"{index}/files/{file}", data)
        row: dict[str, object] = {"filename": file, "url": f"../files/{file}", "size": len(data)}
        row |= {"hashes": {"sha256": hashlib.sha256(data).hexdigest()}, "upload-time": "2026-01-01T00:00:00Z"}
        pages.setdefault(name.replace("_", "-"), []).append(row)
    for name, rows in pages.items():
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": rows}
        site.put(f"{index}/{name}/", json.dumps(page).encode(), JSON)
    return f"{site.url}{index}"


def wheel_files(folder: Path, *names: str) -> dict[str, bytes]:
    """Return the wheels of these packages in a folder and its subfolders."""
    files = {path.name: path.read_bytes() for name in names for path in sorted(folder.rglob(f"{name}-*.whl"))}
    assert {file.partition("-")[0] for file in files} == set(names), f"{folder} lacks one of {names}"
    return files
