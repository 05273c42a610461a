"""Install torch for this machine into a virtual environment: resolve, install with uv, run the smoke benchmark.

What is installed runs as the user, without isolation. So no configuration of the current folder applies, which may be a
checkout of someone else's, and no build script runs unless the user allows it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground import host
from envkit.ground.errors import EngineError, EnvironmentProblem, UsageError
from envkit.ground.process import ask
from envkit.lock import uv
from envkit.lock.index_locations import python_index, without_login
from envkit.pipeline.resolving import Note, fields_here
from envkit.plan import install
from envkit.plan.family import CONDA_SOURCES
from envkit.render import sources
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.ground.settings import Mirrors
    from envkit.resolve.model import Resolution

# uv would read uv.toml and the table [tool.uv] of pyproject.toml of the current folder and those above it.
_NO_CONFIG = ("--no-config",)
_OVERRIDDEN = frozenset({"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_NO_CONFIG", "UV_CONFIG_FILE"})  # not passed to uv
_SECRET = re.compile("PASSWORD|TOKEN|SECRET")
_PATIENCE_S = 30.0  # for Python to print its version when it is read from a slow disk
# PEP 405: `sys.prefix` differs from `sys.base_prefix` in a virtual environment. In a conda environment both are equal.
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2], sys.prefix != sys.base_prefix)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A Python environment of the user's."""

    folder: Path
    version: str | None  # of Python: `3.11`; None = the folder does not exist yet

    @property
    def python(self) -> Path:
        """The interpreter's path."""
        return self.folder / "bin" / "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of an installation.

    The index may contain a login, so it is passed by environment variable: arguments are visible to other users.
    """

    argv: tuple[str, ...]
    index: str | None = None  # URL of the index to use; None = the command installs nothing

    def shown(self, environ: Mapping[str, str]) -> str:
        """Return the command as it is typed, with its index and those of the user's variables that uv reads."""
        given = {name: value for name, value in environ.items() if name.startswith("UV_") and name not in _OVERRIDDEN}
        words = [f"{name}={shlex.quote(_without_secret(name, value))}" for name, value in sorted(given.items())]
        index = ("--default-index", without_login(self.index)) if self.index else ()
        return " ".join([*words, shlex.join(("uv", *self.argv[1:], *index))])


def _without_secret(name: str, value: str) -> str:
    if _SECRET.search(name):
        return "***"
    return " ".join(without_login(word) if "://" in word else word for word in value.split())


def environment_of(folder: Path | None, environ: Mapping[str, str]) -> Environment:
    """Return the environment to install into: the given folder, else the active virtual or conda environment.

    Raises:
        UsageError: no environment is active, or it is the system's Python or conda's base.
        EnvironmentProblem: its Python does not run.
    """
    # As in uv, a virtual environment comes before the conda environment, inside which it may be active.
    given = folder or (Path(environ["VIRTUAL_ENV"]) if environ.get("VIRTUAL_ENV") else None)
    # Packages that pip changes in conda's base may be those that conda itself runs with.
    conda = environ.get("CONDA_PREFIX") if given is None and environ.get("CONDA_DEFAULT_ENV") != "base" else None
    hint = "python3 -m venv .venv && . .venv/bin/activate, or: envkit install --venv .venv"
    if given is None and conda is None:
        raise UsageError(
            "no virtual environment is active, and envkit does not install into the system's Python", hint=hint
        )
    environment = Environment(folder=(given or Path(conda or "")).absolute(), version=None)
    if not environment.folder.exists():
        return environment
    if not environment.python.exists():
        raise UsageError(f"{environment.folder} is not a virtual environment: it has no bin/python", hint=hint)
    # -I: neither PYTHON* variables nor modules in the current folder may change the answer.
    answer = ask([str(environment.python), "-I", "-c", _VERSION], patience_s=_PATIENCE_S)
    if answer.code:
        raise EnvironmentProblem(f"{environment.python} does not run: {answer.err.strip()[-200:]}", hint=hint)
    version, is_virtual = answer.out.split()
    if is_virtual != "True" and conda is None:
        raise UsageError(f"{environment.folder} is the system's Python, not a virtual environment", hint=hint)
    return replace(environment, version=version)


def resolution_here(fields: Mapping[str, Any], environment: Environment, facts: Facts, note: Note) -> Resolution:
    """Resolve a request for this machine and the Python of an environment, with wheels as the source.

    Without a GPU, a driver or `cpu` in the request, this machine's GPU and driver are used; `note` receives problems
    with them.

    Raises:
        EnvironmentProblem: this machine has no NVIDIA driver or GPU, and the request names none.
        ConflictError: no versions are compatible.
        UsageError: only conda packages are compatible.
    """
    here = host.read()
    given = {**fields, "template": None}
    if environment.version is not None:
        given["python"] = given["python"] or environment.version
    given["platform"] = given["platform"] or here.platform
    # The facts do not know every distribution; on the others, the request's default OS applies.
    if here.os in {row.id for row in facts.oses}:
        given["os"] = given["os"] or here.os
    if not (given["gpu"] or given["driver"] or given["cpu"]):
        try:
            given = fields_here(given, facts, note, here=True)
        except EnvironmentProblem as error:
            raise EnvironmentProblem(
                "no NVIDIA driver or GPU found on this machine",
                hint="envkit install --cpu, or name the machine that will run it: --gpu A100 --driver 550.54.15",
                details=error.details,
            ) from error
    resolution = resolve(parse(given, facts), facts)
    if resolution.source in CONDA_SOURCES:
        raise UsageError(
            f"only {resolution.source} has a compatible build, and envkit install can install only wheels",
            hint="run envkit resolve --format conda with the same options to get a conda command",
        )
    return resolution


def steps(
    resolution: Resolution,
    environment: Environment,
    mirrors: Mirrors,
    *,
    torch_only: bool = False,
    allow_source: bool = False,
) -> tuple[Step, ...]:
    """Return the commands that install a resolution, with torchvision and torchaudio or with torch only.

    Args:
        resolution: what to install.
        environment: where to.
        mirrors: of `Use.HOST`. Without one, the index is that of the user's uv or pip, as for locks.
        torch_only: leave out torchvision and torchaudio.
        allow_source: also install packages without a wheel, which runs their build scripts.

    Raises:
        UsageError: a mirror is not a URL.
        EnvironmentProblem: uv is not installed.
    """
    program = uv.binary()
    commands = []
    if environment.version is None:
        made = (program, "venv", *_NO_CONFIG, "--no-project", "--python", resolution.python, str(environment.folder))
        commands.append(Step(argv=made))
    wheels = () if allow_source else ("--only-binary", ":all:")
    installs = (program, "pip", "install", *_NO_CONFIG, *wheels, "--python", str(environment.python))
    own, others = install.parts(resolution, () if torch_only else install.COMPANIONS)
    default = sources.python_index(mirrors) or python_index(os.environ) or uv.default_index()
    if others:
        commands.append(Step(argv=(*installs, *others), index=default))
    pages = sources.wheel_pages(resolution, mirrors)
    links = ("--find-links", pages) if pages else ()
    commands.append(Step(argv=(*installs, *own, *links), index=sources.wheel_index(resolution, mirrors) or default))
    return tuple(commands)


def run(step: Step, ca_bundle: str | None) -> None:
    """Run one command with its output on the terminal.

    Raises:
        EngineError: it failed.
    """
    env = {name: value for name, value in os.environ.items() if name not in _OVERRIDDEN}
    env |= {"UV_DEFAULT_INDEX": step.index} if step.index else {}
    env |= {"SSL_CERT_FILE": ca_bundle} if ca_bundle else {}
    code = subprocess.run(list(step.argv), env=env, check=False).returncode  # noqa: S603 - uv with checked arguments
    if code:
        raise EngineError(
            f"uv {step.argv[1]} ended with exit code {code}", hint="read its output above, then run it again"
        )
