"""Bytecode: the same bytes in any order, on any number of CPUs, in any folder, and never that of another source."""

import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from envkit.assemble.bytecode import Compiler, Interpreter
from envkit.assemble.layer_plan import groups
from envkit.assemble.layer_pool import Progress, make_layers
from envkit.assemble.wheel import Scheme
from envkit.assemble.wheels import Wheels
from envkit.engines import compile_inside
from envkit.engines.layer_cache import Cached, LayerCache
from envkit.ground.progress import Silent
from envkit.image.spec import MTIME
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Wheel
from envkit.registry.transport import Transport
from tests.support.heard import Heard
from tests.support.wheels import wheel_entries, write_wheel

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"opt/env/lib/python{HERE}/site-packages"
SCRIPT = Path(compile_inside.__file__)
# Each of these has bytes that depend on something other than the source unless that is prevented.
SOURCES = {
    "sets": b"def f(x):\n    return x in {'alpha', 'beta', 'gamma', 1, 2.5} or x in {b'one', b'two', b'three'}\n",
    "mixed_sets": b"def f(x):\n    return x in {None, 'alpha', ('a', 'b'), ..., 7}\n",
    "characters": b"def f():\n    return '{' + '}' + '\\xe9' + '=', {'{': 1, '=': 2}\n",
    "names": b"class A:\n    x: int = 1\n    def path(self, strict=True):\n        return self.path(strict=strict)\n",
    "uses": b"def g(a):\n    return getattr(a, 'path')(strict='strict', path='x y', beta='beta')\n",
    "constants": b"A = (1, 2.5, 3j, b'', '', (), None, ..., 10**30, -0.0, 'text of several words')\nB = 1.5e300 * 10\n",
    "escapes": b"# -*- coding: latin-1 -*-\nP = '\\d\\e9 \xe9'\n",
    "marked": b"\xef\xbb\xbfdef f():\r\n    '''Says nothing.'''\r\n    return lambda *a, **k: [i for i in a]\r\n",
    "empty": b"",
}
REFUSED = {
    "python_2": b"print 'hello'\n",
    "template": b"import {{ name }}\n",
    "zeros": b"a = 1\0\n",
    "encoding": b"# coding: no-such-thing\n",
    "deep": b"x = " + b"-" * 200_000 + b"1\n",
    "brackets": b"(" * 5000,
}


def interpreters() -> list[str]:
    """Return this Python, and those of other versions on this machine that start."""
    names = ["python3.7", "python3.8", "python3.9", "python3.10", "python3.12", "python3.13", "python3.14"]
    paths = [path for name in names if (path := shutil.which(name)) is not None]
    paths += map(str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3.*[0-9]")))
    # By version: this Python, and the first of each other one.
    found = {HERE: sys.executable}
    for path in paths:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        version = subprocess.run([path, "-c", code], check=False, capture_output=True, text=True).stdout.strip()
        if version and version != "3.6":
            found.setdefault(version, path)
    return list(found.values())


def run_script(
    python: str, sources: Sequence[tuple[str, bytes]], folder: Path, *, cpus: int | None = None
) -> dict[str, bytes | None]:
    """Compile sources as in an image; return the .pyc files by path."""
    folder.mkdir(parents=True)
    script = str(shutil.copy(SCRIPT, folder))
    head = json.dumps([[path, len(data)] for path, data in sources]).encode()
    (folder / "sources").write_bytes(b"\n".join((head, b"".join(data for _, data in sources))))
    output = local(Path(), [python, "-s", "-S", "-B", "-W", "ignore", script, "sources", str(folder / "sources")], {},
                   folder=folder, cpus=cpus)  # fmt: skip
    head, _, body = output.partition(b"\n")
    results: dict[str, bytes | None] = {}
    for (path, _), (size, _) in zip(sources, json.loads(head), strict=True):
        results[path] = None if size is None else body[:size]
        body = body[size or 0 :]
    assert not body
    return results


def local(
    _layout: Path, argv: Sequence[str], files: Mapping[str, bytes], *, folder: Path, cpus: int | None = None
) -> bytes:
    """Run a command of `Compiler` with this machine's Python, in place of a sandbox."""
    paths = {name: folder / Path(name).name for name in files}
    for name, path in paths.items():
        path.write_bytes(files[name])
    argv = [str(paths[Path(word).as_posix()]) if word in files else word for word in argv]
    limit = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cpus]))] if cpus else []
    env = {"PYTHONHASHSEED": "0", "TMPDIR": str(folder), "PATH": os.environ["PATH"]}
    return subprocess.run([*limit, *argv], check=True, capture_output=True, env=env).stdout


def many() -> list[tuple[str, bytes]]:
    """Return enough sources for two workers: those above, and copies that refer to the same names in other orders."""
    rows = [(f"/opt/env/lib/{name}.py", source) for name, source in {**SOURCES, **REFUSED}.items()]
    names = ["path", "strict", "{", "beta", "alpha", "x y", "é"]
    for number in range(120):
        shuffled = [names[(number * step) % len(names)] for step in (1, 2, 3, 5)]
        text = "".join(
            f"def f{at}(x):\n    return x in {{{name!r}, 'k{number % 7}'}}\n" for at, name in enumerate(shuffled)
        )
        rows.append((f"/opt/env/lib/m{number}.py", text.encode()))
    return rows


@pytest.mark.parametrize("python", interpreters())
def test_bytecode_depends_on_the_source_and_pythons_version_alone(python: str, tmp_path: Path) -> None:
    sources = many()
    plain = run_script(python, sources, tmp_path / "one", cpus=1)
    assert plain == run_script(python, sources[::-1], tmp_path / "another folder")
    assert plain == run_script(python, sources[50:] + sources[:50], tmp_path / "two", cpus=2)
    alone = {
        path: run_script(python, [(path, data)], tmp_path / str(at))[path]
        for at, (path, data) in enumerate(sources[:18])
    }
    assert alone == {path: plain[path] for path in alone}


@pytest.mark.parametrize("python", interpreters())
def test_what_does_not_compile_or_has_no_fixed_order_stays_a_source(python: str, tmp_path: Path) -> None:
    results = run_script(python, many(), tmp_path / "run")
    left = {Path(path).stem for path, data in results.items() if data is None}
    old = python != sys.executable and int(python.rpartition("python3.")[2]) < 11
    assert left == {*REFUSED, *(["mixed_sets"] if old else [])}


@pytest.mark.parametrize(
    ("source", "later_s", "value"),
    [
        ("VALUE = 'other---'", 0, "compiled"),
        ("VALUE = 'other---'", 1, "other---"),
        ("VALUE = 'longer one'", 0, "longer one"),
    ],
    ids=["as built", "changed later", "of another size"],
)
def test_python_takes_the_bytecode_unless_the_source_was_changed(
    source: str, later_s: int, value: str, tmp_path: Path
) -> None:
    """A later layer or a container that edits a module must not run the old one."""
    results = run_script(sys.executable, [(str(tmp_path / "kept.py"), b"VALUE = 'compiled'\n")], tmp_path / "run")
    data = results[str(tmp_path / "kept.py")]
    assert data is not None
    (tmp_path / "kept.py").write_text(f"{source}\n")
    os.utime(tmp_path / "kept.py", (MTIME + later_s,) * 2)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / f"kept.{sys.implementation.cache_tag}.pyc").write_bytes(data)
    assert _printed(tmp_path, "import kept; print(kept.VALUE)") == value


def _compiler(folder: Path, heard: Heard) -> Compiler:
    """Return a compiler that runs this Python."""
    folder.mkdir(parents=True)
    return Compiler(
        Interpreter(python=HERE, program=sys.executable, origin=sys.version),
        layout=lambda _check: folder,
        execute=partial(local, folder=folder),
        platform="linux-64" if os.uname().machine == "x86_64" else "linux-aarch64",
        machine=os.uname().machine,
        reporter=heard,
    )


def _layers(wheels: Sequence[Wheel], folder: Path, name: str, heard: Heard, workers: int = 2) -> tuple[Cached, ...]:
    with Transport() as transport:
        kind = Wheels(
            folder / name, own=folder, indexes=IndexLocations(), transport=transport, reporter=Silent(),
            scheme=Scheme(python=HERE), compression="gzip", offline=True,
            compiler=_compiler(folder / name / "sandbox", heard),
        )  # fmt: skip
        made = make_layers(
            kind, groups(wheels, 40), cache=LayerCache(folder / name), progress=Progress(Silent()),
            reporter=Silent(), workers=workers,
        )  # fmt: skip
    return tuple(row.cached for row in made)


def _wheel(folder: Path, name: str, files: Mapping[str, bytes]) -> Wheel:
    path = write_wheel(folder, wheel_entries(dict(files), name=name), name=name)
    data = path.read_bytes()
    return Wheel(
        name=name, version="1.0", file=path.name, url=f"https://wheels.example.com/{path.name}",
        sha256=hashlib.sha256(data).hexdigest(), size=len(data), source="pypi",
    )  # fmt: skip


def _unpack(layers: Sequence[Cached], folder: Path) -> Path:
    """Unpack layers on top of each other; return the folder of the modules."""
    folder.mkdir()
    for layer in layers:
        with tarfile.open(layer.path) as tar:
            tar.extractall(folder, filter="tar")
    return folder / SITE


def _printed(folder: Path, code: str) -> str:
    """Return what this Python prints with the modules in a folder."""
    env = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True, env=env)
    return done.stdout.strip()


def test_layers_have_bytecode_and_the_same_digests_in_other_folders_and_with_other_workers(tmp_path: Path) -> None:
    modules = {f"alpha/{name}.py": source for name, source in SOURCES.items()}
    wheels = [
        _wheel(
            tmp_path, "alpha", {"alpha/__init__.py": b"", **modules, "alpha/tests/test_a.py": b"", "alpha/a-b.py": b""}
        ),
        _wheel(tmp_path, "beta", {"beta.py": b"import alpha\n", "beta/data.txt": b"text"}),
    ]
    heard = Heard()
    first = _layers(wheels, tmp_path, "one", heard)
    other = _layers(wheels[::-1], tmp_path, "two", heard, workers=1)
    assert [row.layer for row in first] == [row.layer for row in other]
    site = _unpack(first, tmp_path / "root")
    cached = {path.relative_to(site).as_posix() for path in site.rglob("*.pyc")}
    tag = sys.implementation.cache_tag
    stems = ["__init__", *SOURCES]
    assert cached == {f"alpha/__pycache__/{stem}.{tag}.pyc" for stem in stems} | {f"__pycache__/beta.{tag}.pyc"}
    assert _printed(site, "import alpha.names, sys; print(alpha.names.A.x)") == "1"


def test_a_module_that_does_not_compile_is_said_and_never_run_as_another_packages_bytecode(tmp_path: Path) -> None:
    large = os.urandom(5 << 20)  # gets its own layer, below the others
    wheels = [
        _wheel(tmp_path, "alpha", {"shared.py": b"VALUE = 'of alpha'\n", "alpha/data.bin": large}),
        _wheel(tmp_path, "beta", {"shared.py": b"print 'of beta'\n", "beta/ok.py": b"VALUE = 2\n"}),
    ]
    heard = Heard()
    layers = _layers(wheels, tmp_path, "one", heard)
    assert len(layers) == 2
    said = [line for line in heard.lines if "is kept as source" in line]
    assert len(said) == 1
    assert said[0].startswith(f"/{SITE}/shared.py is kept as source; it does not compile: SyntaxError")
    site = _unpack(layers, tmp_path / "root")
    code = "import beta.ok\ntry:\n    import shared\nexcept SyntaxError as error:\n    print(beta.ok.VALUE, error.text)"
    assert _printed(site, code) == "2 print 'of beta'"


def test_a_wheel_that_has_bytecode_of_its_own_keeps_it(tmp_path: Path) -> None:
    own = f"alpha/__pycache__/a.{sys.implementation.cache_tag}.pyc"
    wheels = [
        _wheel(tmp_path, "alpha", {"alpha/a.py": b"A = 1\n", own: b"of the wheel", "alpha/b.py": b"B = 1\n"}),
        _wheel(tmp_path, "gamma", {"gamma/c.py": b"C = 1\n", "gamma/__pycache__": b"a file where the folder would be"}),
    ]
    site = _unpack(_layers(wheels, tmp_path, "one", Heard()), tmp_path / "root")
    assert (site / own).read_bytes() == b"of the wheel"
    assert (site / f"alpha/__pycache__/b.{sys.implementation.cache_tag}.pyc").stat().st_size > 16
    assert (site / "gamma/__pycache__").is_file()


def test_the_bytecode_that_a_conda_package_brings_is_not_made_again(tmp_path: Path) -> None:
    """It has the time of its source where it was built, so that Python would compile the source at every start."""
    tag = sys.implementation.cache_tag
    sources = {"kept": b"VALUE = 'of now'\n", "changed": b"VALUE = 'longer than then'\n", "none": b"VALUE = 1\n"}
    files = {f"{SITE}/{name}.py": data for name, data in sources.items()}
    then = tmp_path / "then.py"
    for name, body in (("kept", b"VALUE = 'bythem'\n"), ("changed", b"VALUE = 'then'\n")):
        then.write_bytes(body)
        made = py_compile.compile(str(then), dfile=f"/opt/placeholder/{name}.py")
        assert made is not None
        files[f"{SITE}/__pycache__/{name}.{tag}.pyc"] = Path(made).read_bytes()
    compiled = _compiler(tmp_path / "sandbox", Heard()).compile(
        {path: partial(bytes, data) for path, data in files.items()},
        {path: len(data) for path, data in files.items()},
        SITE.removesuffix("/site-packages"),
        lambda: None,
    )
    root = tmp_path / "root"
    for path, data in {**files, **compiled}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        os.utime(root / path, (MTIME, MTIME))
    code = "import kept, changed, none; print(kept.VALUE, changed.VALUE, none.VALUE, kept.__spec__.origin)"
    assert _printed(root / SITE, code) == f"bythem longer than then 1 {root / SITE}/kept.py"
    head = compiled[f"{SITE}/__pycache__/kept.{tag}.pyc"][:16]
    assert head[8:] == MTIME.to_bytes(4, "little") + len(sources["kept"]).to_bytes(4, "little")


def test_another_interpreter_or_none_makes_another_key(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, "alpha", {"a.py": b""})
    interpreter = Interpreter(python=HERE, program="/usr/bin/python3", origin="python3.11 3.11.2-6")
    with Transport() as transport:
        kind = partial(
            Wheels, tmp_path, own=None, indexes=IndexLocations(), transport=transport, reporter=Silent(),
            scheme=Scheme(python=HERE), compression="gzip", offline=True,
        )  # fmt: skip
        make = partial(
            Compiler, layout=lambda _: tmp_path, execute=lambda *_: b"", platform="linux-64", machine="x86_64",
            reporter=Silent(),
        )  # fmt: skip
        newer = replace(interpreter, origin="python3.11 3.11.2-7")
        keys = {kind(compiler=compiler).key((wheel,)) for compiler in (None, make(interpreter), make(newer))}
    assert len(keys) == 3
