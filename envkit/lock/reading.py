"""Read a lock from its JSON tree strictly: every field is required and no other is allowed; all errors are reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envkit.ground import records, schemas
from envkit.ground.errors import Faults, IntegrityError, UsageError
from envkit.ground.records import Location, Wording
from envkit.lock import values
from envkit.lock.model import BUILT, SCHEMA, Lock, Wheel

_NEWER = re.compile(r"envkit\.lock/([0-9]{1,9})")
_HINT = "envkit lock writes a new one"


def _label(row: Mapping[str, Any]) -> str:
    # Control characters in a name could change what a terminal shows.
    name = row.get("name")
    short = isinstance(name, str) and len(name) <= 80 and name.isprintable()  # noqa: PLR2004 - keeps messages short
    return f" ({name})" if short else ""


# Every key is required, and none is typed by a person.
_WORDING = Wording(
    missing="missing",
    unknown="unknown field",
    suggestions=0,
    mapping="not a mapping",
    rows="not a list",
    key="{:.80}".format,
    label=_label,
)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a lock. Only the reader checks what depends on several fields, such as the seal."""
    return schemas.document(SCHEMA, "A lock of envkit", records.schema(Lock))


def lock_from_json(tree: Any, where: str) -> Lock:
    """Return the lock whose `to_json()` is `tree`; `where` names its origin in errors.

    Raises:
        UsageError: a field is missing, unknown or invalid, or the schema is another one.
        IntegrityError: an artifact has no SHA-256, or the seal does not match the contents.
    """
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise _other_schema(tree, where)
    faults = Faults()
    at = Location(where, faults, _WORDING)
    fields = records.values(tree, Lock, at)
    faults.refuse(_HINT, hashes=".sha256")  # the comparisons below need all fields
    fields["builders"] = _builders(tree.get("builders", []), where)
    seal = fields.pop("stated_seal")
    lock = Lock(**fields)
    _check_consistency(lock, at)
    faults.refuse(_HINT, hashes=".sha256")
    # The seal is over values, not bytes, so changes of indentation do not matter.
    if lock.seal != seal:
        raise IntegrityError(
            f"{where} was modified after it was written: its seal is {seal}, but its contents have {lock.seal}",
            hint="restore it from version control, or run envkit lock",
        )
    return lock


def _builders(tree: Any, where: str) -> tuple[Lock, ...]:
    """Return the locks of the images in which sources were built; they cannot have sources or builders themselves."""
    if not isinstance(tree, list):
        raise UsageError(f"{where}: builders: not a list", hint=_HINT)
    for number, item in enumerate(tree):
        if isinstance(item, dict) and ("builders" in item or "sources" in item):
            raise UsageError(
                f"{where}: builders[{number}]: the lock of a builder cannot have sources or builders", hint=_HINT
            )
    return tuple(lock_from_json(item, f"{where}: builders[{number}]") for number, item in enumerate(tree))


def _other_schema(tree: Any, where: str) -> UsageError:
    schema = tree.get("schema") if isinstance(tree, dict) else type(tree).__name__
    newer = _NEWER.fullmatch(schema) if isinstance(schema, str) else None
    if newer and int(newer.group(1)) > int(SCHEMA.partition("/")[2]):
        return UsageError(
            f"{where}: schema: {schema} was written by a newer envkit; this version reads {SCHEMA}",
            hint="upgrade envkit, or run `envkit lock` to solve again",
        )
    return UsageError(f"{where}: schema: {schema!r:.80} is not {SCHEMA}", hint=_HINT)


def _check_consistency(lock: Lock, at: Location) -> None:
    """Add the errors that depend on several fields: repeated names, another platform, another order."""
    for field, rows in (("base.packages", lock.base.packages), ("conda", lock.conda), ("wheels", lock.wheels)):
        names = [row.name for row in rows]
        # A fixed order, so that equal solutions are equal files and a diff shows only changes.
        if names != sorted(names):
            at.add(field, "not sorted by name")
        for name in sorted({listed for listed in names if names.count(listed) > 1}):
            at.add(field, f"{name} is listed twice")
    for number, package in enumerate(lock.conda):
        path = f"conda[{number}] ({package.name})"
        if package.subdir not in (lock.platform, "noarch"):
            at.add(f"{path}.subdir", f"{package.subdir} is not {lock.platform}")
        # A reviewer reads the name and the version, but the URL decides what is installed.
        stem = f"{package.channel}/{package.subdir}/{package.name}-{package.version}-{package.build}"
        if not package.url.endswith((f"/{stem}.conda", f"/{stem}.tar.bz2")):
            at.add(f"{path}.url", "is the URL of another package")
    _wheels(lock, at)
    _sources(lock, at)
    for key, value in lock.request:
        if key in ("python", "platform") and value != getattr(lock, key):
            at.add(key, f"is {getattr(lock, key)}, but request.{key} is {value}")
    if lock.base.kind == "registry" and lock.base.digest is None:
        at.add("base.digest", "missing: a base from a registry is pinned by digest")
    if lock.base.kind == "bootstrap" and (lock.base.suite is None or not lock.base.packages):
        at.add("base", "a bootstrapped base needs a suite and packages")


def _wheels(lock: Lock, at: Location) -> None:
    for number, wheel in enumerate(lock.wheels):
        path = f"wheels[{number}] ({wheel.name})"
        # The URL of a built wheel is that of its source.
        if wheel.source != BUILT and values.last_part(wheel.url) != wheel.file:
            at.add(f"{path}.url", f"does not end with {wheel.file}")
        if not _has_own_name(wheel):
            at.add(f"{path}.file", f"{wheel.file} is not {wheel.name} {wheel.version}")
        if values.wheel_platform(wheel.file) not in (lock.platform, "any"):
            at.add(f"{path}.file", f"{wheel.file} is not for {lock.platform}")


def _sources(lock: Lock, at: Location) -> None:
    built = {(wheel.name, wheel.version, wheel.url) for wheel in lock.wheels if wheel.source == BUILT}
    known = {builder.seal for builder in lock.builders}
    for number, source in enumerate(lock.sources):
        path = f"sources[{number}] ({source.name})"
        if (source.name, source.version, source.url) not in built:
            at.add(path, f"the lock has no wheel of {source.name} {source.version} that was built from it")
        if source.builder not in known:
            at.add("builders", f"missing: {source.builder}, which built {source.name}")
    names = [source.name for source in lock.sources]
    if names != sorted(set(names)):
        at.add("sources", "not sorted by name, or a name is listed twice")
    for wheel in lock.wheels:
        if wheel.source == BUILT and wheel.name not in names:
            at.add("sources", f"missing: the source of {wheel.name}")


def _has_own_name(wheel: Wheel) -> bool:
    """Return whether the file name is that of this package and version."""
    try:
        name, version, _, _ = parse_wheel_filename(wheel.file)
        return (name, version) == (canonicalize_name(wheel.name), Version(wheel.version))
    except (InvalidWheelFilename, InvalidVersion):
        return False
