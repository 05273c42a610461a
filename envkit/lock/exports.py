"""Write a lock in the formats of other tools. Reading a lock checks its values, so they need no escaping here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from envkit.ground.errors import UsageError
from envkit.ground.platforms import platform
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Lock
from envkit.plan.family import KEEP_DEFAULTS_OUT

_HEADER = "# Exported by: envkit lock --export"


def _require_index(lock: Lock) -> None:
    """Raise a UsageError if the lock has wheels that are on no index."""
    names = [source.name for source in lock.sources]
    if names:
        raise UsageError(
            f"this lock has wheels that were built from source and are on no index: {', '.join(names)}",
            hint="envkit build installs them; envkit lock --export conda-explicit exports only conda packages",
        )


def conda_explicit(lock: Lock, indexes: IndexLocations | None = None) -> str:
    """Return an `@EXPLICIT` file for conda, mamba and micromamba, every URL with its SHA-256.

    Args:
        lock: the lock.
        indexes: mirrors to use instead of the public channels.

    Raises:
        UsageError: the lock has no conda packages.
    """
    if not lock.conda:
        raise UsageError("this lock has no conda packages", hint="envkit lock --export requirements.txt")
    rows = [(indexes.fetch_url(package.url) if indexes else package.url, package.sha256) for package in lock.conda]
    lines = [_HEADER, f"# platform: {lock.platform}", "@EXPLICIT", *(f"{url}#sha256:{digest}" for url, digest in rows)]
    return _text(lines)


def requirements(lock: Lock, indexes: Sequence[str] = ()) -> str:
    """Return a requirements file with hashes, for `pip install --require-hashes --no-deps`.

    With hashes, it is safe that pip searches two indexes for every wheel.

    Args:
        lock: the lock.
        indexes: the indexes to write; none = the public index of the torch family in addition to the client's own.

    Raises:
        UsageError: the lock has no wheels, or some that are on no index.
    """
    if not lock.wheels:
        raise UsageError("this lock has no wheels", hint="envkit lock --export conda-explicit")
    _require_index(lock)
    # If no wheel is compatible, pip reports that, instead of a hash mismatch of the sdist of this version.
    lines = [_HEADER, "--only-binary :all:"]
    if indexes:
        lines += [f"--index-url {indexes[0]}", *(f"--extra-index-url {index}" for index in indexes[1:])]
    else:
        lines += [f"--extra-index-url {index}" for index in [_index(lock)] if index]
    lines += _more(lock)
    lines += [f"{wheel.requirement} --hash=sha256:{wheel.sha256}" for wheel in lock.wheels]
    return _text(lines)


def pylock(lock: Lock, indexes: IndexLocations | None = None) -> str:
    """Return a `pylock.toml` (PEP 751) of the wheels.

    Raises:
        UsageError: the lock has no wheels, or some that are on no index.
    """
    if not lock.wheels:
        raise UsageError("this lock has no wheels", hint="envkit lock --export conda-explicit")
    _require_index(lock)
    machine = platform(lock.platform).machine
    # The wheels are for one platform. With `environments`, installers refuse the file on any other one (PEP 751).
    here = f"sys_platform == 'linux' and platform_machine == '{machine}'"
    lines = [_HEADER, 'lock-version = "1.0"', f"environments = [{_quoted(here)}]"]
    lines += [f"requires-python = {_quoted(f'=={lock.python}.*')}", 'created-by = "envkit"']
    for wheel in lock.wheels:
        url = indexes.fetch_url(wheel.url) if indexes else wheel.url
        fields = {"name": wheel.file, "url": url}
        table = ", ".join(f"{key} = {_quoted(value)}" for key, value in fields.items())
        lines += ["", "[[packages]]", f"name = {_quoted(wheel.name)}", f"version = {_quoted(wheel.version)}"]
        lines += [f"wheels = [{{ {table}, size = {wheel.size}, hashes = {{ sha256 = {_quoted(wheel.sha256)} }} }}]"]
    return _text(lines)


def environment(lock: Lock) -> str:
    """Return an `environment.yml` with conda packages by build and wheels by version, without hashes.

    Raises:
        UsageError: the lock has no conda packages, or wheels that are on no index.
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
        lines += [f"      - {_quoted(option)}" for option in _more(lock)]
        lines += [f"      - {_quoted(wheel.requirement)}" for wheel in lock.wheels]
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


def _more(lock: Lock) -> list[str]:
    """Return the options for the indexes and pages that the definition adds to the Python index."""
    request = dict(lock.request)
    values = {key: request.get(key) for key in ("indexes", "package_indexes", "find_links")}
    found = {key: value if isinstance(value, tuple) else () for key, value in values.items()}
    # The only index of a package follows its name.
    urls = dict.fromkeys((*found["indexes"], *(text.partition(" ")[2] for text in found["package_indexes"])))
    return [*(f"--extra-index-url {url}" for url in urls), *(f"--find-links {url}" for url in found["find_links"])]


def _quoted(text: str) -> str:
    """Return a string quoted in a form that is the same in TOML and YAML."""
    return json.dumps(text)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
