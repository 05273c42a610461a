"""A lock in the formats of other tools. Values were checked when the lock was read, so each stands where it is put."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from envkit.ground.errors import UsageError
from envkit.ground.platforms import platform
from envkit.lock.model import Lock
from envkit.lock.places import Places
from envkit.plan.family import KEEP_DEFAULTS_OUT

_HEADER = "# Exported by: envkit lock --export"


def _require_index(lock: Lock) -> None:
    """Refuse a lock with wheels that no index has."""
    names = [source.name for source in lock.sources]
    if names:
        raise UsageError(
            f"this lock has wheels that were built from source, which no index has: {', '.join(names)}",
            hint="envkit build installs them; envkit lock --export conda-explicit leaves wheels out",
        )


def conda_explicit(lock: Lock, places: Places | None = None) -> str:
    """An `@EXPLICIT` file for conda, mamba and micromamba, every URL with its SHA-256.

    Args:
        lock: the lock.
        places: mirrors to name instead of the public channels.

    Raises:
        UsageError: the lock has no conda packages.
    """
    if not lock.conda:
        raise UsageError("this lock has no conda packages", hint="envkit lock --export requirements.txt")
    rows = [(places.fetch_url(package.url) if places else package.url, package.sha256) for package in lock.conda]
    lines = [_HEADER, f"# platform: {lock.platform}", "@EXPLICIT", *(f"{url}#sha256:{digest}" for url, digest in rows)]
    return _text(lines)


def requirements(lock: Lock, indexes: Sequence[str] = ()) -> str:
    """A requirements file with hashes, for `pip install --require-hashes --no-deps`.

    The hashes make it harmless that the torch family and the rest come from two indexes.

    Args:
        lock: the lock.
        indexes: the indexes to name; none = the public index of the torch family beside the client's own.

    Raises:
        UsageError: the lock holds no wheels, or some that no index has.
    """
    if not lock.wheels:
        raise UsageError("this lock has no wheels", hint="envkit lock --export conda-explicit")
    _require_index(lock)
    # Where no wheel fits, pip then says so, instead of that the hash of an sdist of this version differs.
    lines = [_HEADER, "--only-binary :all:"]
    if indexes:
        lines += [f"--index-url {indexes[0]}", *(f"--extra-index-url {index}" for index in indexes[1:])]
    else:
        lines += [f"--extra-index-url {index}" for index in [_index(lock)] if index]
    lines += [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in lock.wheels]
    return _text(lines)


def pylock(lock: Lock, places: Places | None = None) -> str:
    """A `pylock.toml` (PEP 751) of the wheels.

    Raises:
        UsageError: the lock holds no wheels, or some that no index has.
    """
    if not lock.wheels:
        raise UsageError("this lock has no wheels", hint="envkit lock --export conda-explicit")
    _require_index(lock)
    machine = platform(lock.platform).machine
    here = f"sys_platform == 'linux' and platform_machine == '{machine}'"
    lines = [_HEADER, 'lock-version = "1.0"', f"environments = [{_quoted(here)}]"]
    lines += [f"requires-python = {_quoted(f'=={lock.python}.*')}", 'created-by = "envkit"']
    for wheel in lock.wheels:
        url = places.fetch_url(wheel.url) if places else wheel.url
        fields = {"name": wheel.file, "url": url}
        table = ", ".join(f"{key} = {_quoted(value)}" for key, value in fields.items())
        lines += ["", "[[packages]]", f"name = {_quoted(wheel.name)}", f"version = {_quoted(wheel.version)}"]
        lines += [f"wheels = [{{ {table}, size = {wheel.size}, hashes = {{ sha256 = {_quoted(wheel.sha256)} }} }}]"]
    return _text(lines)


def environment(lock: Lock) -> str:
    """An `environment.yml`: conda packages to the build, wheels to the version. It carries no hashes.

    Raises:
        UsageError: the lock has no conda packages, or wheels that no index has.
    """
    if not lock.conda:
        raise UsageError("this lock has no conda packages", hint="envkit lock --export requirements.txt")
    _require_index(lock)
    channels = dict(lock.request).get("channels")
    names = (
        channels if isinstance(channels, tuple) and channels else tuple(dict.fromkeys(x.channel for x in lock.conda))
    )
    lines = [_HEADER, *(f"# {line}" for line in KEEP_DEFAULTS_OUT)]
    lines += ["channels:", *(f"  - {_quoted(name)}" for name in names), "dependencies:"]
    lines += [f"  - {_quoted(f'{package.name}={package.version}={package.build}')}" for package in lock.conda]
    if lock.wheels:
        lines += ["  - pip:"]
        lines += [f"      - {_quoted(f'--extra-index-url {index}')}" for index in [_index(lock)] if index]
        lines += [f"      - {_quoted(f'{wheel.name}=={wheel.version}')}" for wheel in lock.wheels]
    return _text(lines)


FORMATS: Mapping[str, Callable[[Lock], str]] = {
    "conda-explicit": conda_explicit,
    "pylock.toml": pylock,
    "requirements.txt": requirements,
    "environment.yml": environment,
}


def _index(lock: Lock) -> str | None:
    index = dict(lock.request).get("index")
    return index if isinstance(index, str) else None


def _quoted(text: str) -> str:
    """A text as TOML and YAML both read it."""
    return json.dumps(text)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
