"""Resolve what envkit prints on an index of exactly the files that the indexes are recorded to have.

    python -m benchmarks.printed_lines [--lines 300] [--formats pip uv] [--pip 40] [--install 3] [--lock 6]
    python -m benchmarks.printed_lines --real 20 [--record FILE] [--torch 2.15.0]

A sample of every torch, CUDA, platform, source and Python of the facts is printed in the formats for pip, uv and
requirements files. uv resolves each of them as it is printed, for the platform and the Python of the answer; pip
resolves some of them, and `envkit install` and `envkit lock` repeat some of the requests. The index is on loopback
(`_torch_index`), under the address that the lines name. Its files are those of `tests.support.family_files`, as
stand-ins with the requirements between torch and its companions; the lists have no platform tags, so those are the
tags of the build. numpy, setuptools and cuda-bindings are there, too; other dependencies of torch are not.

A line misses if a tool does not resolve it to the versions of the answer.

With `--real`, lines for this machine's Python are installed by uv from the Python index of this machine's configuration
into new environments, one after the other, and each package that they name is imported. A line with CUDA is a download
of about 3 GB and needs up to 8 GB on disk until the next one begins; NVIDIA's packages are kept for the next line of
the same CUDA, up to 4 GB. `--record FILE` keeps the results of finished lines, so that a run that was
stopped continues.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from benchmarks import _torch_index
from benchmarks._report import Figure, finish, tell
from benchmarks._torch_index import PYTHON_INDEX, File
from envkit.facts.load import load
from envkit.facts.model import PYPI, Facts
from envkit.ground.platforms import platform
from envkit.ground.versions import key
from envkit.lock import uv
from envkit.plan.install import WHEEL_FORMATS, text_of
from envkit.resolve.model import Resolution
from tests.support import family_files

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_OTHERS = {
    "numpy": ("1.26.4", "2.1.0"),
    "setuptools": ("78.1.0", "82.0.0"),
    "cuda-bindings": ("13.0.3",),
    "nvidia-cuda-runtime": ("1.0",),
}
# Wheels with CUDA on the Python index require NVIDIA's since 1.13; before, they contain CUDA.
_NVIDIA, _NVIDIA_SINCE = "nvidia-cuda-runtime", (1, 13)
_PARALLEL = 2
# Bytes of uv's cache that are kept from one real line to the next, and that have to be free before one.
_KEPT = 4_000_000_000
_FREE = 12_000_000_000
FORMATS = tuple(sorted(WHEEL_FORMATS))
_EXPORTED = ("PATH", "HOME", "TMPDIR", "LANG")


@dataclass(frozen=True, slots=True)
class Miss:
    """A line that a tool does not resolve to the answer."""

    tool: str
    answer: Resolution
    why: str

    def __str__(self) -> str:
        one = self.answer
        what = f"torch {one.torch}, CUDA {one.cuda}, {one.source}, {one.platform}, Python {one.python}"
        return f"{self.tool}: {what}: {self.why}"


def files(facts: Facts) -> Iterator[File]:
    """Yield the recorded files as files of the stand-in of the index."""
    requires = {(row.package, row.version): row.torch for row in facts.companions}
    builds = {(build.torch, build.source, build.platform): build for build in facts.builds}
    for release in family_files.listed(facts):
        public, _, local = release.version.partition("+")
        torch = requires.get((release.package, public))
        needed = (f"torch{torch}",) if torch else ()
        # cu126 -> 12.6
        cuda = f"{local[2:-1]}.{local[-1]}" if local.startswith("cu") else None
        source = "pypi" if release.index == PYPI else "pytorch"
        build = builds.get((public, source, release.platform)) if release.package == "torch" else None
        tag = _tag(build.glibc if build else None, release.platform)
        if build is not None and build.cuda and source == "pypi" and key(public) >= _NVIDIA_SINCE:
            needed = (_NVIDIA,)
        folders = (PYTHON_INDEX,) if release.index == PYPI else family_files.folders(release, facts)
        for folder in folders:
            for python in release.pythons:
                yield File(
                    folder, release.package, release.version, f"{_abi(python)}-{tag}", cuda,
                    requires=needed, requires_python=f">={min(release.pythons, key=key)}",
                )  # fmt: skip
    for name, versions in _OTHERS.items():
        yield from (_torch_index.plain(name, version) for version in versions)


def _abi(python: str) -> str:
    name = "cp" + python.replace(".", "")
    # ABI tags have no `m` since Python 3.8.
    return f"{name}-{name}m" if python in ("3.6", "3.7") else f"{name}-{name}"


def _tag(glibc: str | None, name: str) -> str:
    kind = {None: "linux", "2.17": "manylinux2014"}.get(glibc, f"manylinux_{(glibc or '').replace('.', '_')}")
    return f"{kind}_{platform(name).machine}"


def sample(facts: Facts, count: int, seed: int) -> list[Resolution]:
    """Return different answers; the same ones for a seed."""
    every = [answer for _, answer in family_files.answers(facts)]
    return Random(seed).sample(every, min(count, len(every)))  # noqa: S311 - the same answers everywhere


def host_of(facts: Facts) -> str:
    """Return the host that the lines name."""
    return next(urlsplit(build.index).hostname for build in facts.builds if build.index) or ""


def environment(index: dict[str, str], scratch: Path) -> dict[str, str]:
    """Return the variables of a tool that sees only the stand-in of the index."""
    kept = {name: os.environ[name] for name in _EXPORTED if name in os.environ}
    own = {"XDG_CACHE_HOME": str(scratch / "cache"), "UV_CACHE_DIR": str(scratch / "uv"), "NO_COLOR": "1"}
    # The variable of the default index would come before the --index-url of a line.
    served = {name.replace("UV_DEFAULT_INDEX", "UV_INDEX_URL"): value for name, value in index.items()}
    return {**kept, **own, **served, "UV_PYTHON_DOWNLOADS": "never", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def by_uv(answer: Resolution, form: str, env: dict[str, str]) -> Miss | None:
    """Resolve one format with uv, for the platform and the Python of the answer."""
    # With the interpreter named, uv does not look for one of the version in each run.
    target = ["--python", sys.executable, "--python-version", answer.python]
    target += ["--python-platform", f"{platform(answer.platform).machine}-manylinux_2_28"]
    with tempfile.TemporaryDirectory(prefix="printed-") as here:
        text = text_of(answer, form)
        name = {"uv": "pyproject.toml", "requirements": "requirements.txt"}.get(form)
        if name is not None:
            Path(here, name).write_text(text)
            command = [uv.binary(), "pip", "compile", "--only-binary", ":all:", *target, name]
            if form == "uv" and answer.python == PYTHON:  # `uv lock` needs an interpreter of that version
                command = [uv.binary(), "lock", "--python", sys.executable]
            return _judged(f"uv ({form})", answer, [command], env, here)
        extra = ["--dry-run", "--only-binary", ":all:", "--target", f"{here}/site", *target]
        commands = [[uv.binary(), "pip", "install", *extra, *words] for words in installs(text)]
        return _judged(f"uv ({form})", answer, commands, env, here)


def by_pip(answer: Resolution, env: dict[str, str]) -> Miss | None:
    """Resolve the line for pip with pip, for the platform and the Python of the answer."""
    name, machine = answer.python, platform(answer.platform).machine
    interpreter, abi = _abi(name).split("-")
    tags = [f"manylinux_2_28_{machine}", f"manylinux2014_{machine}", f"linux_{machine}"]
    # Old releases require 3.6.2 or later.
    target = ["--python-version", f"{name}.15" if name == "3.6" else name, "--implementation", interpreter[:2]]
    target += ["--abi", abi, *(word for tag in tags for word in ("--platform", tag))]
    with tempfile.TemporaryDirectory(prefix="printed-") as here:
        extra = ["--dry-run", "--ignore-installed", "--only-binary", ":all:", "--target", f"{here}/site", *target]
        pip = [sys.executable, "-m", "pip", "install", *extra]
        return _judged("pip", answer, [[*pip, *words] for words in installs(text_of(answer, "pip"))], env, here)


def installs(text: str) -> Iterator[list[str]]:
    """Yield the words after `pip install` of each command in a line for a shell."""
    for command in text.strip().split(" && "):
        program, verb, *words = shlex.split(command)
        assert (program, verb) == ("pip", "install"), command
        yield words


def _judged(
    tool: str, answer: Resolution, commands: Sequence[list[str]], env: dict[str, str], here: str
) -> Miss | None:
    said = ""
    for command in commands:
        done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
        said += done.stdout + done.stderr
        if done.returncode:
            return Miss(tool, answer, f"exit {done.returncode}: {_last(done.stderr)}")
    lock = Path(here, "uv.lock")
    return missing(tool, answer, said + (lock.read_text() if lock.exists() else ""))


def missing(tool: str, answer: Resolution, said: str) -> Miss | None:
    """Return a miss if a tool's words lack a version of the answer.

    The words are `torch==2.7.1+cu126`, `torch-2.7.1+cu126`, or the two lines of a package in a uv.lock.
    """
    for name, version in answer.files.items():
        if not re.search(rf"\b{name}(==|-|\"\nversion = \"){re.escape(version)}(?![\w.+])", said):
            return Miss(tool, answer, f"{name} {version} is not what it chose")
    return None


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-8:])[-800:]


def request(answer: Resolution, facts: Facts) -> list[str]:
    """Return the flags that ask envkit for an answer again, for a machine with the newest driver."""
    flags = ["--torch", answer.torch, "--python", answer.python, "--source", answer.source]
    flags += ["--platform", answer.platform, "--os", answer.os]
    if answer.cuda is None:
        return [*flags, "--cpu"]
    newest = max((row.linux_min for row in facts.toolkits if row.linux_min), key=key)
    return [*flags, "--cuda", answer.cuda, "--driver", newest]


def by_install(answer: Resolution, facts: Facts, env: dict[str, str]) -> Miss | None:
    """Install an answer into a new environment with `envkit install`."""
    with tempfile.TemporaryDirectory(prefix="printed-") as here:
        command = [sys.executable, "-m", "envkit", "install", "--venv", f"{here}/venv", *request(answer, facts)]
        listing = [uv.binary(), "pip", "list", "--format", "freeze", "--python", f"{here}/venv/bin/python"]
        return _judged("envkit install", answer, [command, listing], env, here)


def by_lock(answer: Resolution, facts: Facts, env: dict[str, str]) -> Miss | None:
    """Lock an answer with `envkit lock`; only torch and torchvision are in the default image."""
    system = next(row.id for row in facts.oses if answer.python in row.pythons and answer.platform in row.platforms)
    command = [
        sys.executable,
        "-m",
        "envkit",
        "lock",
        "--template",
        "wheels",
        "--base",
        "none",
        *request(answer, facts),
    ]
    command[command.index("--os") + 1] = system
    with tempfile.TemporaryDirectory(prefix="printed-") as here:
        done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            return Miss("envkit lock", answer, f"exit {done.returncode}: {_last(done.stderr)}")
        lock = Path(here, "envkit.lock").read_text()
    for name in ("torch", "torchvision"):
        version = answer.files.get(name)
        if version and not re.search(rf"{name}-{re.escape(version)}-", lock.replace("%2B", "+")):
            return Miss("envkit lock", answer, f"{name} {version} is not what it chose")
    return None


def swept(
    answers: Sequence[Resolution], facts: Facts, counts: dict[str, int], forms: Sequence[str] = FORMATS
) -> tuple[Counter[str], list[Miss]]:
    """Resolve the lines of answers on the stand-in of the index; return how many each tool had, and the misses.

    Args:
        answers: the sample.
        facts: for the files of the index.
        counts: how many of the answers pip, install and lock get; uv gets all of them.
        forms: the formats that uv resolves.
    """
    asked: Counter[str] = Counter()
    misses: list[Miss | None] = []
    own = [answer for answer in answers if (answer.platform, answer.python) == ("linux-64", PYTHON)]
    systems = {(python, name) for row in facts.oses for python in row.pythons for name in row.platforms}
    lockable = [answer for answer in answers if (answer.python, answer.platform) in systems]
    with (
        tempfile.TemporaryDirectory(prefix="printed-lines-") as scratch,
        _torch_index.served(files(facts), host_of(facts)) as index,
        ThreadPoolExecutor(_PARALLEL) as pool,
    ):
        env = environment(index, Path(scratch))
        steps: dict[str, tuple[Sequence[Resolution], Callable[[Resolution], Miss | None]]] = {
            f"uv ({form})": (answers, partial(by_uv, form=form, env=env)) for form in forms
        }
        steps["pip"] = (answers[: counts["pip"]], partial(by_pip, env=env))
        steps["envkit install"] = (own[: counts["install"]], partial(by_install, facts=facts, env=env))
        steps["envkit lock"] = (lockable[: counts["lock"]], partial(by_lock, facts=facts, env=env))
        for tool, (chosen, ask) in steps.items():
            began = time.monotonic()
            found = list(pool.map(ask, chosen))
            asked[tool] += len(chosen)
            misses += found
            wrong = sum(one is not None for one in found)
            tell(f"{tool}: {len(chosen)} lines, {wrong} misses, {time.monotonic() - began:.0f} s")
    return asked, [miss for miss in misses if miss is not None]


def real(
    answers: Sequence[Resolution], record: Path | None, installed: Callable[..., Installed]
) -> tuple[list[Miss], int]:
    """Install lines from the configured Python index, one after the other, and import what they name.

    Args:
        answers: those with equal CUDA should be neighbors, because they share NVIDIA's packages.
        record: gets a JSON line for each answer that is finished; answers that it has are not installed again.
        installed: installs one answer with a folder as uv's cache.

    Returns:
        The misses, and how many answers were finished before the disk was nearly full.
    """
    finished = {line["words"]: line for line in map(json.loads, record.read_text().splitlines())} if (
        record is not None and record.exists()
    ) else {}  # fmt: skip
    misses: list[Miss] = []
    cuda = None
    with tempfile.TemporaryDirectory(prefix="printed-real-") as scratch:
        cache = Path(scratch, "cache")
        for number, answer in enumerate(answers, 1):
            if answer.cuda != cuda or on_disk(cache) > _KEPT:
                shutil.rmtree(cache, ignore_errors=True)
                cuda = answer.cuda
            words = text_of(answer, "pip").strip()
            line = finished.get(words)
            if line is None and shutil.disk_usage(scratch).free < _FREE:
                # A full disk says nothing about a line, and breaks what others do on this machine.
                tell(f"less than {_FREE / 1e9:.0f} GB of disk is free: {len(answers) - number + 1} lines are left")
                return misses, number - 1
            if line is None:
                done = installed(answer, cache)
                line = {"words": words, "miss": done.miss and done.miss.why, "bytes": done.size, "s": done.seconds}
                if record is not None:
                    with record.open("a") as file:
                        file.write(json.dumps(line) + "\n")
            misses += [Miss("uv pip install", answer, line["miss"])] if line["miss"] else []
            state = line["miss"] or "installed and imported"
            tell(f"{number}/{len(answers)} $ {words}")
            tell(f"  {state}: {line['bytes'] / 1e9:.1f} GB on disk, {line['s']:.0f} s; {len(misses)} misses so far")
    return misses, len(answers)


@dataclass(frozen=True, slots=True)
class Installed:
    """What became of a line that was installed."""

    miss: Miss | None
    size: int  # bytes on disk of the environment and uv's cache
    seconds: float


def installed(answer: Resolution, cache: Path) -> Installed:
    """Install a line into a new environment, import every package that it names, and remove the environment."""
    began = time.monotonic()
    # uv makes hard links to its cache, which is on the same disk: a file counts once.
    env = {**os.environ, "UV_CACHE_DIR": str(cache), "UV_LINK_MODE": "hardlink", "UV_PYTHON_DOWNLOADS": "never"}
    commands = list(installs(text_of(answer, "pip")))
    names = [found[0] for words in commands for word in words if (found := re.match(r"[a-z][a-z_-]*", word))]
    with tempfile.TemporaryDirectory(prefix="venv-", dir=cache.parent) as here:
        python = f"{here}/venv/bin/python"
        lines = [[uv.binary(), "venv", "--python", sys.executable, f"{here}/venv"]]
        lines += [[uv.binary(), "pip", "install", "--python", python, *words] for words in commands]
        lines += [[python, "-c", "; ".join(f"import {name}; print('{name}==' + {name}.__version__)" for name in names)]]
        miss = _judged("uv pip install", answer, lines, env, here)
        size = on_disk(Path(here), cache)
    # The next line has another torch; NVIDIA's packages are often the same.
    subprocess.run([uv.binary(), "cache", "clean", *answer.files, "triton"], env=env, check=True, capture_output=True)
    return Installed(miss, size, time.monotonic() - began)


def on_disk(*folders: Path) -> int:
    """Return the bytes that the files of folders use; those with several names count once."""
    found = (path.lstat() for folder in folders for path in folder.rglob("*") if not path.is_dir())
    return sum({status.st_ino: status.st_blocks * 512 for status in found}.values())


def chosen_for_real(facts: Facts, count: int, torch: str | None, seed: int) -> list[Resolution]:
    """Return answers with different torch for the Python index and this Python: the newest, then others at random.

    Those of equal CUDA are neighbors.
    """
    own = {
        build.torch: answer for build, answer in family_files.answers(facts)
        if (build.source, build.platform, answer.python) == ("pypi", "linux-64", PYTHON)
        and torch in (None, build.torch)
    }  # fmt: skip
    newest, *others = sorted(own, key=key, reverse=True)
    chosen = Random(seed).sample(others, min(count - 1, len(others)))  # noqa: S311 - the same answers everywhere
    return [own[name] for name in (newest, *sorted(chosen, key=key, reverse=True))]


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--seed", type=int, default=20261126)
    parser.add_argument("--pip", type=int, default=40)
    parser.add_argument("--install", type=int, default=3)
    parser.add_argument("--lock", type=int, default=6)
    parser.add_argument("--real", type=int, default=0)
    parser.add_argument("--torch")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    facts = load()
    if options.real:
        answers = chosen_for_real(facts, options.real, options.torch, options.seed)
        misses, done = real(answers, options.record, installed)
        left = len(answers) - done
        against = f"{done} of {len(answers)} lines installed from the Python index, Python {PYTHON}"
    else:
        left = 0
        answers = sample(facts, options.lines, options.seed)
        counts = {"pip": options.pip, "install": options.install, "lock": options.lock}
        asked, misses = swept(answers, facts, counts, options.formats)
        against = ", ".join(f"{tool} {number}" for tool, number in asked.items()) + " lines"
    for miss in misses:
        tell(str(miss))
    return finish("printed_lines", [
        Figure(name="misses", figure=len(misses), unit="", better="lower", goal=0, against=against),
        *([Figure(name="lines left", figure=left, unit="", better="lower", goal=0, against=against)] if left else []),
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
