"""Run uv to solve wheels: requirements in, `pylock.toml` out; only the arguments determine the result."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from envkit.ground import paths, platforms
from envkit.ground.errors import ConflictError, EnvironmentProblem, EnvkitError, UsageError
from envkit.ground.versions import key
from envkit.lock import child, stubs
from envkit.lock.places import without_login

# The glibc versions for which uv knows a platform by name.
_GLIBC = ("2.17", "2.28", "2.31", "2.32", "2.33", "2.34", "2.35", "2.36", "2.37", "2.38", "2.39", "2.40")
_URL = re.compile(r"https?://[^\s'\"`)>]+")
_NO_ANSWER = re.compile(
    r"error sending request|Failed to fetch|Could not connect|tcp connect|dns error|timed out|certificate|"
    r"HTTP status (?:client|server) error|Connection re",
    re.IGNORECASE,
)
_SOURCE_ONLY = re.compile(r"Wheels are required for `([A-Za-z0-9._-]+)` because building from source is disabled")
_UNDATED = re.compile(r"missing an upload date|upload.time", re.IGNORECASE)
_LINES = 30  # of uv's explanation, which may have hundreds


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The interpreter that will run the wheels."""

    platform: str  # 'linux-64'
    glibc: str  # of the image's OS
    python: str  # '3.11' or '3.11.7'


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What holds whatever is solved."""

    chosen: Mapping[str, str]  # distribution -> version of packages that are there already
    pins: Sequence[str] = ()  # `name==version`, where the package is needed at all
    constraints: Sequence[str] = ()  # `name<2`, as pins
    built: Sequence[Path] = ()  # wheels that were built from source, looked at beside those of the index


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Where to look for packages."""

    url: str | None  # the one index to ask; None = uv's default
    pages: str | None = None  # a flat page that lists further wheels (`--find-links`)
    ca_bundle: str | None = None  # PEM file

    @property
    def shown(self) -> str:
        """What messages call it."""
        return without_login(self.pages or self.url or "") or "the Python index"


def compile_wheels(
    requirements: Sequence[str], target: Target, held: Held, index: Index, *, as_of: str | None
) -> tuple[str, frozenset[str]]:
    """The `pylock.toml` of the requirements, and the names in it that stand for what is chosen already.

    Args:
        requirements: of the Python world: `torch==2.7.1+cu126`.
        target: what the wheels must fit.
        held: what holds.
        index: where to look.
        as_of: RFC 3339; newer files are not considered.

    Raises:
        UsageError: a requirement is invalid, or the index tells no dates and `as_of` needs them.
        ConflictError: nothing satisfies them.
        EnvironmentProblem: uv is missing or the index does not answer.
        TimeLimitError: no end in time.
    """
    with paths.scratch() as folder:
        wheels = folder / "chosen"
        wheels.mkdir()
        written = stubs.write(wheels, held.chosen)
        for path in held.built:
            (wheels / path.name).symlink_to(path.absolute())
        fixed = sorted({f"{name}=={version}" for name, version in written.items()} | {*held.pins, *held.constraints})
        (folder / "held.txt").write_text("".join(f"{line}\n" for line in fixed), encoding="utf-8")
        options = [
            # Reading the metadata of an sdist runs its build script.
            "--only-binary",
            ":all:",
            "--find-links",
            str(wheels),
            *(["--find-links", index.pages] if index.pages else []),
            *(["--constraints", "held.txt"] if fixed else []),
        ]
        text = _compile(requirements, target, options, folder, index=index, as_of=as_of)
    return text, frozenset(written)


def compile_files(requirements: Sequence[str], target: Target, index: Index, *, as_of: str | None) -> str:
    """The `pylock.toml` of the best version of each requirement, without what they depend on, sdists included.

    Without dependencies uv asks for no metadata, so it builds nothing: foreign code runs in the sandbox alone.

    Raises:
        As `compile_wheels`.
    """
    with paths.scratch() as folder:
        return _compile(requirements, target, ["--no-deps"], folder, index=index, as_of=as_of)


def _compile(
    requirements: Sequence[str],
    target: Target,
    options: Sequence[str],
    folder: Path,
    *,
    index: Index,
    as_of: str | None,
) -> str:
    for line in requirements:
        _check(line)
    (folder / "wanted.in").write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    # Without the configuration of the user or of a project, which would make another lock of the same plan.
    argv = [binary(), "pip", "compile", "--no-config", "--no-progress", "--format", "pylock.toml", "--no-header"]
    argv += ["--no-python-downloads", "--python", sys.executable]
    argv += ["--python-version", target.python, "--python-platform", platform(target), *options]
    argv += [*(["--exclude-newer", as_of] if as_of else []), "wanted.in"]
    # By variable, not as an argument: an index may carry a login, and arguments are seen by every user.
    more = cache(os.environ, folder) | ({"UV_DEFAULT_INDEX": index.url} if index.url else {})
    env = child.environment(index.ca_bundle, more)
    done = child.run(argv, env=env, what="solving the wheels", folder=folder)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")
        raise _failure(said, requirements, index=index, folder=str(folder), as_of=as_of)
    return done.stdout.decode()


def binary() -> str:
    """The path of uv.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    try:
        import uv  # noqa: PLC0415 - its absence is a user's fault, not a bug

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError) as error:
        raise EnvironmentProblem(
            "uv is not installed; envkit needs it to solve wheels", hint="pip install uv"
        ) from error


def cache(environ: Mapping[str, str], passing: Path) -> dict[str, str]:
    """The variable that gives uv a cache below `passing`; none where its own can be written, or where one is named."""
    if environ.get("UV_CACHE_DIR") or paths.caches_folder(environ) is not None:
        return {}
    return {"UV_CACHE_DIR": str(passing / "cache")}


def platform(target: Target) -> str:
    """What uv calls the platform: the newest manylinux that the image's glibc carries.

    Raises:
        UsageError: the glibc is older than any that wheels are made for.
    """
    fitting = [glibc for glibc in _GLIBC if key(glibc) <= key(target.glibc)]
    if not fitting:
        raise UsageError(f"glibc {target.glibc} is too old: no wheels exist for it", hint="--os debian12")
    return f"{platforms.platform(target.platform).machine}-manylinux_{fitting[-1].replace('.', '_')}"


def _check(line: str) -> None:
    """A line of a requirements file can also be an option; here it is a name with versions, or nothing."""
    try:
        url = Requirement(line).url
        why = "is a URL; a lock takes wheels from an index only" if url else None
    except InvalidRequirement as error:
        why = f"is not a requirement: {str(error).splitlines()[0]}"
    if why or "\n" in line or "\r" in line:
        raise UsageError(
            f"pip: {line!r:.200} {why or 'contains a line break'}", hint="write a requirement: numpy, numpy>=2"
        )


def _failure(said: str, requirements: Sequence[str], *, index: Index, folder: str, as_of: str | None) -> EnvkitError:
    lines = _lines(said, folder)
    index_name = index.shown
    if as_of and _UNDATED.search(said):
        return UsageError(
            f"--as-of: {index_name} does not publish upload times",
            details=lines,
            hint="remove --as-of, or use an index that publishes them (ENVKIT_PYTHON_INDEX, ENVKIT_PYTORCH_INDEX)",
        )
    source = _SOURCE_ONLY.search(said)
    if source is not None:
        return ConflictError(
            f"{index_name} has no wheel of {source[1]}, only its source",
            details=lines,
            hint=f"add to the definition: allow_source: [{source[1]}]   # runs its build script, in a sandbox",
        )
    if "No solution found" in said:
        return ConflictError(
            f"no wheels of {index_name} satisfy {', '.join(requirements):.300}",
            details=lines,
            hint="envkit resolve shows the request; relax the constraints named above",
        )
    if _NO_ANSWER.search(said):
        mirror = "export ENVKIT_PYTHON_INDEX=URL and ENVKIT_PYTORCH_INDEX=URL to use mirrors, and run again"
        return child.no_answer(index_name, lines, mirror=mirror)
    first = lines[0] if lines else "uv ended without a message"
    return UsageError(f"solving the wheels: {first}", details=lines[1:], hint="write a requirement: numpy, numpy>=2")


def _lines(said: str, folder: str) -> tuple[str, ...]:
    clean = _URL.sub(lambda match: without_login(match.group()), said.replace(f"{folder}/", ""))
    lines = [line.strip().removeprefix("error: ").lstrip("\u00d7 ") for line in clean.splitlines() if line.strip()]
    return tuple(lines[:_LINES])


def default_index() -> str:
    """The index that uv asks where no setting and no configuration names one. No request is made.

    Raises:
        EnvironmentProblem: uv is missing, or does not say it.
    """
    with paths.scratch() as folder:
        done = child.run(
            [binary(), "--no-config", "pip", "compile", "--help"],
            env=child.environment(None, {}), what="asking uv for its index", folder=folder,
        )  # fmt: skip
    said = " ".join(done.stdout.decode(errors="replace").split())
    match = re.search(r"--default-index <\w+> .*?by default: <(https://[^\s>]+)>", said)
    if match is None:
        raise EnvironmentProblem("no package index is configured", hint="name one: ENVKIT_PYTHON_INDEX=URL")
    return match[1]
