"""Bytecode of an image's modules: .pyc files that are the same every time, compiled by the image's Python.

The bytes depend on Python's exact version, not only on the version of its bytecode: of 1185 modules of torch's wheels,
3.11.2 and 3.11.7 compile 2 differently. So only the interpreter that the lock determines compiles, in a sandbox that
has nothing but the base and that interpreter. `envkit.engines.compile_inside` runs there and keeps the bytes constant.

A package's bytecode is in the layer of its sources. Layers are kept by the digests of their packages and by the
interpreter, so each package is compiled once. A conda package for one platform brings its own, which is kept.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from envkit.assemble.conda_package import Interpreter as CondaPython
from envkit.engines import compile_inside
from envkit.ground import imagepaths
from envkit.ground.errors import EngineError
from envkit.ground.platforms import of_machine
from envkit.plan.definition import kind_of

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan

Execute = Callable[[Path, Sequence[str], Mapping[str, bytes]], bytes]
"""Runs a command with files in the image of a layout, without network, and returns its output."""

LEVEL = 4  # of zlib, as for conda packages
_FOLDER = "/run/envkit-bytecode"
_SCRIPT = Path(compile_inside.__file__)
_HEADER = 16  # bytes of a .pyc before its code: magic number, flags, and time and size, or a hash
_BY_HASH = (0b01, 0b11)  # the flags without and with a comparison at the import
_FIRST = (3, 7)  # earlier ones have a header without flags
_AT_ONCE = 32 << 20  # bytes of sources in one run, which bounds the memory for them and their bytecode
_HINT = "add `bytecode: false` to the definition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python of an image."""

    python: str  # '3.11'
    program: str  # its path in the image
    origin: str  # the packages or the base that determine its exact version

    @property
    def key(self) -> str:
        """Everything besides the sources that determines the bytecode and its compressed form, for cache keys."""
        script = hashlib.sha256(_SCRIPT.read_bytes()).hexdigest()
        return f"{self.origin} script {script} zlib {zlib.ZLIB_RUNTIME_VERSION} {LEVEL}"


def interpreter_of(plan: BuildPlan, lock: Lock) -> Interpreter | None:
    """Return the Python that compiles the modules of an image; None if its modules are not compiled.

    They are not if the definition says so, if the image has no base and so no C library, or before Python 3.7.
    """
    if not plan.bytecode or lock.base.kind == "none" or tuple(map(int, lock.python.split("."))) < _FIRST:
        return None
    name = f"python{lock.python}"
    if kind_of(plan.template) != "wheels":
        row = next((package for package in lock.conda if package.name == "python"), None)
        # Not those of the free-threaded build, whose folder and files have other names.
        if row is None or CondaPython(version=row.version, build=row.build).minor_folder != name:
            return None
        origin = f"conda {row.version} {row.build} {row.sha256}"
        return Interpreter(python=lock.python, program=f"{plan.prefix}/bin/{name}", origin=origin)
    packages = [package for package in lock.base.packages if name in package.name]  # libpython3.11-stdlib as well
    rows = [f"{package.name} {package.version} {package.arch}" for package in packages]
    origin = " ".join(sorted(rows)) or f"base {lock.base.digest}"
    return Interpreter(python=lock.python, program=f"/usr/bin/{name}", origin=origin)


def dated(bytecode: bytes, size: int) -> bytes | None:
    """Return a package's own .pyc with the time that files have in an image; None if it is not of a source of `size`.

    Its header has the time of its source where the package was built, which no file has after an installation with
    constant times: Python would compile the source at every start. A .pyc by hash (PEP 552) has no time. The paths in
    it are those of the build; Python replaces them when it loads a module.
    """
    if len(bytecode) <= _HEADER or bytecode[2:4] != b"\r\n":
        return None
    flags, _, of_size = (int.from_bytes(bytecode[at : at + 4], "little") for at in (4, 8, 12))
    if flags == compile_inside.BY_TIME:
        if of_size != size:
            return None
        return bytecode[:8] + compile_inside.MTIME.to_bytes(4, "little") + bytecode[12:]
    return bytecode if flags in _BY_HASH else None


class Compiler:
    """Compiles the modules of one build. Safe on any thread: one run at a time, which uses all CPUs.

    Args:
        interpreter: the image's Python.
        layout: makes and returns an OCI layout with the base and the interpreter; called once, before the first run,
            with a function that raises to stop.
        execute: see `Execute`.
        platform: of the image.
        machine: of this machine, as `uname -m` says.
        reporter: gets the modules that do not compile, as lines of the log.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        *,
        layout: Callable[[Callable[[], object]], Path],
        execute: Execute,
        platform: str,
        machine: str,
        reporter: Reporter,
    ) -> None:
        self.key = interpreter.key
        self._interpreter, self._make_layout, self._execute = interpreter, layout, execute
        self._platform, self._machine, self._reporter = platform, machine, reporter
        self._layout: Path | None = None
        self._lock = threading.Lock()

    def compile(
        self, files: Mapping[str, Callable[[], bytes]], sizes: Mapping[str, int], root: str, check: Callable[[], object]
    ) -> dict[str, bytes]:
        """Return the .pyc files of the modules among some files, by path.

        The .pyc of a module that does not compile is empty, so that Python takes the source. Without that file, the
        bytecode of another package's module with the same path, time and size would be taken. A .pyc that is among the
        files and of its source is not compiled again, but has the time of an image's files.

        Args:
            files: all files of the packages, by path relative to the image's root; each is read if it is a module.
            sizes: of the files, in bytes.
            root: the folder of Python's modules, `opt/env/lib/python3.11`.
            check: called between runs; its exception ends the work.

        Raises:
            EngineError: the interpreter gave no result.
            EnvironmentProblem: there is no sandbox here.
            TimeLimitError: it took too long.
        """
        compiled: dict[str, bytes] = {}
        wanted: dict[str, str] = {}
        for path in sorted(files):
            if (cache := self._cache_of(path, root, files)) is None:
                continue
            if cache in files and (own := dated(files[cache](), sizes[path])) is not None:
                compiled[cache] = own
            else:
                wanted[path] = cache
        for paths in _chunks([path for path in wanted if sizes[path] <= compile_inside.MOST], sizes):
            check()
            with self._lock:
                results = self._run([(f"/{path}", files[path]()) for path in paths], check)
            for path, (data, reason) in zip(paths, results, strict=True):
                if data is None:
                    self._reporter.log(f"/{path} is kept as source; it does not compile: {reason}")
                compiled[wanted[path]] = data or b""
        return compiled

    def _cache_of(self, path: str, root: str, files: Mapping[str, object]) -> str | None:
        """Return the path of a module's .pyc; None if the file cannot be imported, or its folder is a file."""
        if not path.endswith(".py") or not path.startswith(f"{root}/"):
            return None
        below = PurePosixPath(path[len(root) + 1 :].removeprefix("site-packages/"))
        if not all(compile_inside.is_module(part, "") for part in (*below.parts[:-1], below.stem)):
            return None
        folder = f"{posixpath.dirname(path)}/__pycache__"
        cache = f"{folder}/{below.stem}.cpython-{self._interpreter.python.replace('.', '')}.pyc"
        if folder in files or imagepaths.fault(cache) is not None:
            return None
        return cache

    def _run(self, sources: Sequence[tuple[str, bytes]], check: Callable[[], object]) -> list[tuple[bytes | None, str]]:
        if self._layout is None:
            if (own := of_machine(self._machine)) is None or own.name != self._platform:
                raise EngineError(
                    f"the modules of an image for {self._platform} cannot be compiled on {self._machine}: its Python "
                    "does not run here",
                    hint=f"build it on such a machine, or {_HINT}",
                )
            self._layout = self._make_layout(check)
        head = json.dumps([[path, len(data)] for path, data in sources]).encode()
        given = {
            f"{_FOLDER}/{_SCRIPT.name}": _SCRIPT.read_bytes(),
            f"{_FOLDER}/sources": b"".join((head, b"\n", *(data for _, data in sources))),
        }
        # Neither -I nor -E, which ignore PYTHONHASHSEED; the image's configuration has the variables.
        argv = [self._interpreter.program, "-s", "-S", "-B", "-W", "ignore", *(f"{_FOLDER}/{_SCRIPT.name}", "sources")]
        output = self._execute(self._layout, [*argv, f"{_FOLDER}/sources"], given)
        return list(_results(output, len(sources), self._interpreter))


VARIABLES = (("LC_ALL", "C.UTF-8"), ("PATH", "/usr/bin:/bin"), ("PYTHONHASHSEED", "0"))
"""The environment of every run."""


def _chunks(paths: Sequence[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    chunk: list[str] = []
    total = 0
    for path in paths:
        if chunk and total + sizes[path] > _AT_ONCE:
            yield chunk
            chunk, total = [], 0
        chunk.append(path)
        total += sizes[path]
    if chunk:
        yield chunk


def _results(output: bytes, count: int, interpreter: Interpreter) -> Iterator[tuple[bytes | None, str]]:
    """Yield the results in the output of `compile_inside`.

    Raises:
        EngineError: it is not the output of that script.
    """
    head, _, body = output.partition(b"\n")
    try:
        rows = [(None if size is None else int(size), str(reason)) for size, reason in json.loads(head)]
    except (ValueError, TypeError):
        rows = []
    if len(rows) != count or sum(size or 0 for size, _ in rows) != len(body):
        raise EngineError(f"{interpreter.program} in the image's base compiled no modules", hint=_HINT)
    at = 0
    for size, reason in rows:
        yield (None if size is None else body[at : at + size]), reason
        at += size or 0
