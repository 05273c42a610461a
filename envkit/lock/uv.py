"""Run uv to solve wheels: requirements in, `pylock.toml` out. The result depends only on the arguments."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envkit.ground import paths, platforms
from envkit.ground.errors import ConflictError, EnvironmentProblem, EnvkitError, UsageError
from envkit.ground.versions import key
from envkit.lock import child, stubs
from envkit.lock.index_locations import without_login

# The glibc versions for which uv has a platform name.
_GLIBC = ("2.17", "2.28", "2.31", "2.32", "2.33", "2.34", "2.35", "2.36", "2.37", "2.38", "2.39", "2.40")
_URL = re.compile(r"https?://[^\s'\"`)>]+")
# Messages of uv and of its HTTP client, reqwest.
_NO_ANSWER = re.compile(
    r"error sending request|Failed to fetch|Could not connect|tcp connect|dns error|timed out|certificate|"
    r"HTTP status (?:client|server) error|Connection re",
    re.IGNORECASE,
)
_SOURCE_ONLY = re.compile(r"Wheels are required for `([A-Za-z0-9._-]+)` because building from source is disabled")
# uv goes on without the package, so that its absence looks like the cause.
_REFUSED = re.compile(
    r"An index(?: URL)? \((?P<url>[^)\s]+)\) (?:could not be queried due to a lack of valid authentication credentials"
    r" \((?P<status>[^)]*)\)|returned a (?P<other>403 Forbidden))"
)
_MISSING = re.compile(r"[Bb]ecause ([A-Za-z0-9._-]+) was not found in the package registry")
_UNDATED = re.compile(r"missing an upload date|upload.time", re.IGNORECASE)
_LINES = 30  # of uv's explanation, which may have hundreds


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The interpreter that will run the wheels."""

    platform: str  # 'linux-64'
    glibc: str  # of the image's OS
    python: str  # '3.11' or '3.11.7'


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The versions that a solve must respect."""

    chosen: Mapping[str, str]  # distribution -> version of packages that are installed already
    preferred: Mapping[str, str] = field(default_factory=dict)  # distribution -> version, chosen if it is possible
    pins: Sequence[str] = ()  # `name==version`, used only if the package is needed
    constraints: Sequence[str] = ()  # `name<2`, used only if the package is needed
    built: Sequence[Path] = ()  # wheels that were built from source, considered in addition to those of the index
    # Distribution -> versions that exist besides those of the index: a later solve takes them from another one.
    offered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    without: Sequence[str] = ()  # distributions that are left out, with what they require: they are built later


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Where uv searches for packages."""

    url: str | None  # the index that is searched last; None = uv's default
    pages: str | None = None  # a flat page that lists the torch family (`--find-links`)
    links: Sequence[str] = ()  # further flat pages
    first: Sequence[str] = ()  # indexes that are searched before `url`: the first that has a package decides
    own: Mapping[str, str] = field(default_factory=dict)  # package -> the only index that it comes from
    ca_bundle: str | None = None  # PEM file

    @property
    def shown(self) -> str:
        """Its name in messages."""
        places = (*self.own.values(), *self.first, *self.links)
        names = [without_login(self.pages or self.url or "") or "the Python index", *map(without_login, places)]
        return " and ".join(dict.fromkeys(names))


def compile_wheels(
    requirements: Sequence[str],
    target: Target,
    limits: Limits,
    index: Index,
    *,
    as_of: str | None,
    cached_only: bool = False,
) -> tuple[str, frozenset[str]]:
    """Return the `pylock.toml` of the requirements, and the names in it of packages that were chosen already.

    Args:
        requirements: pip requirements, such as `torch==2.7.1+cu126`.
        target: the interpreter that the wheels must be compatible with.
        limits: the versions to respect.
        index: where to search.
        as_of: RFC 3339; newer files are not considered.
        cached_only: send no request; what an earlier solve read is used, however old it is.

    Raises:
        UsageError: a requirement is invalid, or `as_of` is given and the index does not publish upload times.
        ConflictError: no wheels satisfy the requirements.
        EnvironmentProblem: uv is missing or the index does not answer.
        TimeLimitError: uv did not finish in time.
    """
    with paths.scratch() as folder:
        wheels = folder / "chosen"
        wheels.mkdir()
        written = stubs.write(wheels, limits.chosen)
        for name, versions in limits.offered.items():
            for version in versions:
                stubs.write(wheels, {name: version})
        # Each built wheel has its own folder in the cache; links put them all into the one folder of --find-links.
        for path in limits.built:
            (wheels / path.name).symlink_to(path.absolute())
        # Without this pin, uv would choose a newer version of the index over the empty wheel.
        chosen = {f"{name}=={version}" for name, version in written.items()}
        lines = sorted({*chosen, *limits.pins, *limits.constraints})
        (folder / "constraints.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        options = [
            # Reading the metadata of an sdist would run its build script.
            "--only-binary",
            ":all:",
            "--find-links",
            str(wheels),
            *(word for page in (index.pages, *index.links) if page for word in ("--find-links", page)),
            *(word for url in index.first for word in ("--index", url)),
            *(["--constraints", "constraints.txt"] if lines else []),
            *(["--offline"] if cached_only else []),
        ]
        if limits.without:
            # An override replaces every requirement on a package; a marker that never holds leaves the package out.
            never = "".join(f'{name} ; python_version < "3"\n' for name in limits.without)
            (folder / "overrides.txt").write_text(never, encoding="utf-8")
            options += ["--overrides", "overrides.txt"]
        options += _preferences(limits.preferred, folder)
        text = _compile(requirements, target, options, folder, index=index, as_of=as_of)
    return text, frozenset(written)


def compile_files(
    requirements: Sequence[str], target: Target, index: Index, *, preferred: Mapping[str, str], as_of: str | None
) -> str:
    """Return the `pylock.toml` of the best version of each requirement, sdists included, without dependencies.

    Without dependencies uv reads no metadata, so it runs no build script: those run only in the sandbox.

    Raises:
        As `compile_wheels`.
    """
    with paths.scratch() as folder:
        options = ["--no-deps", *_preferences(preferred, folder)]
        return _compile(requirements, target, options, folder, index=index, as_of=as_of)


def _preferences(preferred: Mapping[str, str], folder: Path) -> list[str]:
    """Write versions into the output file, where uv reads those that it chooses if possible; return its option."""
    if not preferred:
        return []
    lines = ['lock-version = "1.0"', 'created-by = "envkit"']
    for name, version in sorted(preferred.items()):
        lines += ["", "[[packages]]", f"name = {json.dumps(name)}", f"version = {json.dumps(version)}"]
    # uv refuses an output file of another name for this format.
    (folder / "pylock.toml").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ["--output-file", "pylock.toml"]


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
    name, text = _wanted(requirements, index)
    (folder / name).write_text(text, encoding="utf-8")
    # --no-config: with configuration of the user or of a project, the same plan could give another lock.
    argv = [binary(), "pip", "compile", "--no-config", "--no-progress", "--format", "pylock.toml", "--no-header"]
    # uv needs an interpreter to start, and must not download one for it. The two options after it replace its version
    # and platform by those of the image.
    argv += ["--no-python-downloads", "--python", sys.executable]
    argv += ["--python-version", target.python, "--python-platform", platform(target), *options]
    argv += [*(["--exclude-newer", as_of] if as_of else []), name]
    # In a variable, because an index may contain a login and every user can see the arguments of a process.
    more = cache(os.environ, folder) | ({"UV_DEFAULT_INDEX": index.url} if index.url else {})
    env = child.environment(index.ca_bundle, more)
    done = child.run(argv, env=env, what="solving the wheels", folder=folder)
    if done.returncode != 0:
        output = done.stderr.decode(errors="replace")
        raise _failure(output, requirements, index=index, folder=str(folder), as_of=as_of)
    return done.stdout.decode()


def _wanted(requirements: Sequence[str], index: Index) -> tuple[str, str]:
    """Return the name and text of the file with the requirements; only a project can give a package its own index."""
    own = {name: url for name, url in index.own.items() if any(_is_named(line, name) for line in requirements)}
    if not own:
        return "wanted.in", "".join(f"{line}\n" for line in requirements)
    lines = ["[project]", 'name = "envkit-lock"', 'version = "0"', f"dependencies = {json.dumps(list(requirements))}"]
    for number, url in enumerate(dict.fromkeys(own.values())):
        lines += ["[[tool.uv.index]]", f'name = "index-{number}"', f"url = {json.dumps(url)}", "explicit = true"]
    numbers = {url: number for number, url in enumerate(dict.fromkeys(own.values()))}
    lines += ["[tool.uv.sources]"]
    lines += [f'{name} = {{ index = "index-{numbers[url]}" }}' for name, url in own.items()]
    return "pyproject.toml", "".join(f"{line}\n" for line in lines)


def _is_named(line: str, name: str) -> bool:
    return canonicalize_name(Requirement(line).name) == name


def binary() -> str:
    """Return the path of uv.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    try:
        import uv  # noqa: PLC0415 - so that its absence is an error with a hint, not a traceback

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError) as error:
        raise EnvironmentProblem(
            "uv is not installed; envkit needs it to solve wheels", hint="pip install uv"
        ) from error


def cache(environ: Mapping[str, str], temporary: Path) -> dict[str, str]:
    """Return the variable that gives uv a temporary cache; empty if one is set or uv's own is writable."""
    if environ.get("UV_CACHE_DIR") or paths.caches_folder(environ) is not None:
        return {}
    return {"UV_CACHE_DIR": str(temporary / "cache")}


def platform(target: Target) -> str:
    """Return uv's name of the platform: the newest manylinux that the image's glibc supports.

    Raises:
        UsageError: the glibc is older than any that wheels are built for.
    """
    fitting = [glibc for glibc in _GLIBC if key(glibc) <= key(target.glibc)]
    if not fitting:
        raise UsageError(f"glibc {target.glibc} is too old: no wheels exist for it", hint="--os debian12")
    return f"{platforms.platform(target.platform).machine}-manylinux_{fitting[-1].replace('.', '_')}"


def _check(line: str) -> None:
    """Refuse anything but a name with versions: a line of a requirements file can also be an option."""
    try:
        url = Requirement(line).url
        why = "is a URL; a lock contains only wheels from an index" if url else None
    except InvalidRequirement as error:
        why = f"is not a requirement: {str(error).splitlines()[0]}"
    if why or "\n" in line or "\r" in line:
        raise UsageError(
            f"pip: {line!r:.200} {why or 'contains a line break'}", hint="write a requirement: numpy, numpy>=2"
        )


def _failure(output: str, requirements: Sequence[str], *, index: Index, folder: str, as_of: str | None) -> EnvkitError:
    lines = _lines(output, folder)
    index_name = index.shown
    # The first two causes also prevent a solution, so they are looked for before "No solution found".
    if as_of and _UNDATED.search(output):
        return UsageError(
            f"--as-of: {index_name} does not publish upload times",
            details=lines,
            hint="remove --as-of, or use an index that publishes them (ENVKIT_PYTHON_INDEX, ENVKIT_PYTORCH_INDEX)",
        )
    refused = _REFUSED.search(output)
    if refused is not None:
        url, missing = without_login(refused["url"]), _MISSING.search(output)
        return EnvironmentProblem(
            f"{url} refuses {missing[1] if missing else 'a package'}: {refused['status'] or refused['other']}",
            details=lines,
            hint=f"add the login to ~/.netrc: machine {urlsplit(url).hostname} login USER password TOKEN",
        )
    source = _SOURCE_ONLY.search(output)
    if source is not None:
        # uv breaks its lines between any two words.
        wanted = re.search(rf"depends? on {re.escape(source[1])}(?P<range>[<>=!~]\S*)", " ".join(output.split()))
        named = f"'{source[1]}{wanted['range'].rstrip(',.')}'" if wanted else source[1]
        return ConflictError(
            f"{index_name} has no wheel of {source[1]}, only its source",
            details=lines,
            hint=f"add --allow-source {named} to the command, or allow_source: [{named}] to the definition: "
            "its build script runs in a sandbox",
        )
    if "No solution found" in output:
        return ConflictError(
            f"no wheels of {index_name} satisfy {', '.join(requirements):.300}",
            details=lines,
            hint="envkit resolve shows the request; relax the constraints named above",
        )
    if _NO_ANSWER.search(output):
        mirror = "export ENVKIT_PYTHON_INDEX=URL and ENVKIT_PYTORCH_INDEX=URL to use mirrors, and run again"
        return child.no_answer(index_name, lines, mirror=mirror)
    first = lines[0] if lines else "uv ended without a message"
    return UsageError(f"solving the wheels: {first}", details=lines[1:], hint="write a requirement: numpy, numpy>=2")


def source_only(error: ConflictError) -> str | None:
    """Return the normalized package of which an error of a solve says that it has only its source; None otherwise."""
    match = re.search(r" has no wheel of ([A-Za-z0-9._-]+), only its source", error.message)
    return canonicalize_name(match[1]) if match else None


def _lines(output: str, folder: str) -> tuple[str, ...]:
    clean = _URL.sub(lambda match: without_login(match.group()), output.replace(f"{folder}/", ""))
    lines = [line.strip().removeprefix("error: ").lstrip("\u00d7 ") for line in clean.splitlines() if line.strip()]
    return tuple(lines[:_LINES])


def default_index() -> str:
    """Return uv's default index, which is used without a setting or configuration. No request is sent.

    Raises:
        EnvironmentProblem: uv is missing, or its help does not name the index.
    """
    with paths.scratch() as folder:
        done = child.run(
            [binary(), "--no-config", "pip", "compile", "--help"],
            env=child.environment(None, {}), what="asking uv for its index", folder=folder,
        )  # fmt: skip
    # uv wraps its help, so the address may be on another line than the option:
    # `--default-index <DEFAULT_INDEX>  The default package index (by default: <https://HOST/simple>)`.
    output = " ".join(done.stdout.decode(errors="replace").split())
    match = re.search(r"--default-index <\w+> .*?by default: <(https://[^\s>]+)>", output)
    if match is None:
        raise EnvironmentProblem("no package index is configured", hint="set one with ENVKIT_PYTHON_INDEX=URL")
    return match[1]
