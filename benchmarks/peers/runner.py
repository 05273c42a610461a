"""Run the commands of every tool, each in its own virtual environment in the cache folder."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import _torch_index
from benchmarks.peers import checks, fixtures
from benchmarks.peers.model import OWN, Answer, Question, Ran, Result, Tool
from envkit.facts.load import load
from envkit.ground.paths import cache_dir

_REPOSITORY = Path(__file__).parents[2]
_UV = Path(sys.executable).with_name("uv")
_LIMIT_S = 300.0
_RUNS = 2  # the first one fills caches; the faster one counts
# Nothing else of this machine's environment gets in: driver and GPU come from the stand-in, and no engine is reachable.
_KEPT = ("PATH", "LANG", "LC_ALL")


@dataclass(frozen=True, slots=True)
class Bench:
    """The environments of the tools, the variables of their commands, and a folder for their output."""

    tools: Path
    env: Mapping[str, str]
    folder: Path

    def ask(self, question: Question) -> dict[str, Result]:
        """Return the result of each tool that has an answer."""
        return {name: self._result(name, answer, question) for name, answer in question.answers.items()}

    def _result(self, tool: str, answer: Answer, question: Question) -> Result:
        steps = len(answer.commands)
        if answer.unrun:
            return Result(steps, None, "")
        took, wrong = [], ""
        for _ in range(_RUNS):
            with tempfile.TemporaryDirectory(dir=self.folder) as name:
                here = Path(name)
                getattr(fixtures, question.files)(here)
                began = _cpu_s()
                ran = self._run(tool, answer, answer.commands, here)
                took.append(_cpu_s() - began)
                control = self._run(tool, answer, answer.control, here)
                wrong = (
                    getattr(checks, question.check)(checks.Given(here, ran, control))
                    .replace(str(here), ".")
                    .replace(str(self.folder), "")
                )
        return Result(steps, min(took), wrong)

    def _run(self, tool: str, answer: Answer, commands: Sequence[str], here: Path) -> list[Ran]:
        path = f"{self.tools / tool / 'bin'}:{self.folder / 'machine'}:{self.env['PATH']}"
        env = {**self.env, "PATH": path, **{name: str(here / value) for name, value in answer.env.items()}}
        done = []
        for command in commands:
            argv = ["bash", "-c", command]
            ended = subprocess.run(
                argv, cwd=here, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, check=False, timeout=_LIMIT_S,
            )  # fmt: skip
            output = ended.stdout.replace(str(here), ".").replace(str(self.folder), "")
            done.append(Ran(ended.returncode, output))
        return done


def _cpu_s() -> float:
    """Return the CPU seconds of all commands so far, which other load on the machine does not change."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def installed(tools: Sequence[Tool], folder: Path) -> dict[str, str]:
    """Make missing environments, reinstall envkit in its own, and return the version of each tool."""
    versions = {}
    for tool in tools:
        if not tool.package:
            versions[tool.name] = ""
            continue
        python = folder / tool.name / "bin" / "python"
        if not python.exists():
            _uv("venv", "--quiet", "--python", sys.executable, str(folder / tool.name))
        package = (
            [f"{_REPOSITORY}[attest]", "--reinstall-package", tool.package] if tool.name == OWN else [tool.package]
        )
        _uv("pip", "install", "--quiet", "--python", str(python), *package)
        output = _uv("pip", "show", "--python", str(python), tool.package)
        versions[tool.name] = output.partition("Version: ")[2].partition("\n")[0]
    return versions


@contextmanager
def bench(tools: Sequence[Tool]) -> Iterator[tuple[Bench, dict[str, str]]]:
    """Yield the tools with the machine and the wheel index of the questions; only the tools are kept."""
    facts, folder = load(), cache_dir() / "peers"
    versions = installed(tools, folder)
    host = next(urlsplit(build.index).hostname for build in facts.builds if build.index) or ""
    other = [_torch_index.plain(name, version) for name, version in fixtures.REQUIREMENTS.items() if name != "torch"]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True)))
        index = stack.enter_context(_torch_index.served([*_torch_index.files_of(facts), *other], host))
        fixtures.machine(scratch / "machine")
        own = {"HOME": str(scratch), "TMPDIR": str(scratch), "DOCKER_HOST": f"unix://{scratch}/no-docker"}
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        yield Bench(folder, {**kept, **index, **own, "NO_COLOR": "1"}, scratch), versions


def _uv(*arguments: str) -> str:
    done = subprocess.run([str(_UV), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"uv {' '.join(arguments)} exited {done.returncode}:\n{done.stderr[-1500:]}")
    return done.stdout
