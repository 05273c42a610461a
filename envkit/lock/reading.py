"""Read a lock from its JSON tree, strictly: every field, no other field, and all errors of the file at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envkit.ground import schemas
from envkit.ground.errors import IntegrityError, UsageError, shown
from envkit.lock import values
from envkit.lock.model import BUILT, SCHEMA, UNSEALED, Asked, CondaPackage, DebPackage, Lock, LockedBase, Source, Wheel
from envkit.lock.values import Check

_NEWER = re.compile(r"envkit\.lock/([0-9]{1,9})")
_HINT = "envkit lock writes a new one"

_TOP: Mapping[str, Check] = {
    "plan": values.digest,
    "platform": values.platform,
    "python": values.version,
    "as_of": values.optional(values.moment),
}
_SEAL: Mapping[str, Check] = {"seal": values.digest}
_BASE: Mapping[str, Check] = {
    "kind": values.one_of("registry", "bootstrap", "none"),
    "reference": values.reference,
    "digest": values.optional(values.digest),
    "suite": values.optional(values.name),
}
_DEB: Mapping[str, Check] = {
    "name": values.name,
    "version": values.version,
    "arch": values.name,
    "sha256": values.optional(values.sha256),
    "size": values.size,
}
_CONDA: Mapping[str, Check] = {
    "name": values.name,
    "version": values.version,
    "build": values.name,
    "subdir": values.name,
    "channel": values.channel,
    "url": values.url,
    "sha256": values.sha256,
    "size": values.size,
    "depends": values.texts,
    "noarch": values.optional(values.one_of("python", "generic")),
}
_WHEEL: Mapping[str, Check] = {
    "name": values.name,
    "version": values.version,
    "file": values.wheel_file,
    "url": values.url,
    "sha256": values.sha256,
    "size": values.size,
    "source": values.one_of("pytorch", "pypi", BUILT),
}
_SOURCE: Mapping[str, Check] = {
    "name": values.name,
    "version": values.version,
    "url": values.url,
    "commit": values.optional(values.commit),
    "sha256": values.sha256,
    "size": values.size,
    "builder": values.digest,
    "key": values.sha256,
    "torch": values.optional(values.version),
    "cuda": values.optional(values.version),
    "cxx11_abi": values.optional(values.one_of("true", "false")),
}
_ARTIFACTS = (("conda", _CONDA, CondaPackage), ("wheels", _WHEEL, Wheel))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a lock. What no single field shows, such as the seal, only the reader checks."""
    base = _form(_BASE, {"packages": schemas.listed(_form(_DEB))})
    request = {"anyOf": [{"type": ["string", "null"]}, schemas.listed({"type": "string"})]}
    more: dict[str, Any] = {
        "request": {"type": "object", "additionalProperties": request},
        "base": base,
        **{key: schemas.listed(_form(row)) for key, row, _ in _ARTIFACTS},
    }
    whole = _form({**_TOP, **_SEAL}, {"schema": {"const": SCHEMA}, **more})
    whole["properties"]["sources"] = schemas.listed(_form(_SOURCE))
    whole["properties"]["builders"] = schemas.listed({"$ref": "#"})
    return schemas.document(SCHEMA, "A lock of envkit", whole)


def _form(row: Mapping[str, Check], more: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the schema of a mapping that has every field of a row, and these."""
    forms = {**{key: check.schema for key, check in row.items()}, **more}
    return schemas.closed(forms, tuple(forms))


class _Faults:
    """What is wrong with the file: faults of form, and missing hashes apart, which end with another exit code."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._form: list[str] = []
        self._hashes: list[str] = []

    def add(self, place: str, why: str) -> None:
        (self._hashes if place.endswith(".sha256") else self._form).append(f"{self._where}: {place}: {why}")

    def settle(self) -> None:
        """Raise what was found; a fault of form comes first, because it puts every other field in doubt."""
        faults = (*self._form, *self._hashes)
        if self._form:
            raise UsageError(faults[0], details=shown(faults[1:]), hint=_HINT)
        if self._hashes:
            raise IntegrityError(faults[0], details=shown(faults[1:]), hint=_HINT)


def lock_from_json(tree: Any, where: str) -> Lock:
    """The lock whose `to_json()` is `tree`; `where` names its origin in errors.

    Raises:
        UsageError: a field is missing, unknown or invalid, or the schema is another one.
        IntegrityError: an artifact has no SHA-256, or the seal is not that of the contents.
    """
    if not isinstance(tree, dict) or tree.get("schema") not in (SCHEMA, UNSEALED):
        raise _another(tree, where)
    faults = _Faults(where)
    known = dict.fromkeys(field.name for field in fields(Lock))
    checks = _TOP if tree["schema"] == UNSEALED else {**_TOP, **_SEAL}
    _unknown(tree, {**known, **checks}, "", faults)
    top = {key: _value(tree, key, check, "", faults) for key, check in checks.items()}
    base = _base(tree.get("base"), faults)
    request = _request(tree.get("request"), faults)
    conda, wheels = (_rows(tree.get(key), key, row, kind, faults) for key, row, kind in _ARTIFACTS)
    sources = _rows(tree.get("sources", []), "sources", _SOURCE, Source, faults)
    faults.settle()  # what follows compares fields, which then all have values
    builders = _builders(tree.get("builders", []), where)
    seal = top.pop("seal", None)
    more: dict[str, Any] = {"conda": conda, "wheels": wheels, "sources": sources, "builders": builders}
    lock = Lock(request=request, base=base, schema=tree["schema"], **more, **top)
    _agreement(lock, faults)
    faults.settle()
    # Over the values, not the bytes: a formatter that changes the indentation changes nothing.
    if lock.to_json().get("seal") != seal:
        raise IntegrityError(
            f"{where} was modified after it was written: its seal is {seal}, but its contents have "
            f"{lock.to_json()['seal']}",
            hint="restore it from version control, or run envkit lock",
        )
    return lock


def _builders(tree: Any, where: str) -> tuple[Lock, ...]:
    """The locks of the images in which sources were built; none of these has such rows of its own."""
    if not isinstance(tree, list):
        raise UsageError(f"{where}: builders: not a list", hint=_HINT)
    for number, item in enumerate(tree):
        if isinstance(item, dict) and ("builders" in item or "sources" in item):
            raise UsageError(f"{where}: builders[{number}]: a builder has no builders", hint=_HINT)
    return tuple(lock_from_json(item, f"{where}: builders[{number}]") for number, item in enumerate(tree))


def _another(tree: Any, where: str) -> UsageError:
    schema = tree.get("schema") if isinstance(tree, dict) else type(tree).__name__
    newer = _NEWER.fullmatch(schema) if isinstance(schema, str) else None
    if newer and int(newer.group(1)) > int(SCHEMA.partition("/")[2]):
        return UsageError(
            f"{where}: schema: {schema} was written by a newer envkit; this one reads {SCHEMA}",
            hint="install the newer envkit, or run `envkit lock` to solve again",
        )
    return UsageError(f"{where}: schema: {schema!r:.80} is not {SCHEMA}", hint=_HINT)


def _base(tree: Any, faults: _Faults) -> LockedBase:
    if not isinstance(tree, dict):
        faults.add("base", "missing" if tree is None else "not a mapping")
        return LockedBase(kind="none", reference="")
    _unknown(tree, {**_BASE, "packages": None}, "base.", faults)
    row = {key: _value(tree, key, check, "base.", faults) for key, check in _BASE.items()}
    return LockedBase(**row, packages=_rows(tree.get("packages"), "base.packages", _DEB, DebPackage, faults))


def _request(tree: Any, faults: _Faults) -> tuple[tuple[str, Asked], ...]:
    if not isinstance(tree, dict):
        faults.add("request", "missing" if tree is None else "not a mapping")
        return ()
    entries: list[tuple[str, Asked]] = []
    for key, item in tree.items():
        if item is None or isinstance(item, str):
            entries.append((key, item))
        elif isinstance(item, list) and all(isinstance(text, str) for text in item):
            entries.append((key, tuple(item)))
        else:
            faults.add(f"request.{key:.80}", "neither a string nor a list of strings")
    return tuple(entries)


def _rows(tree: Any, field: str, row: Mapping[str, Check], kind: type[Any], faults: _Faults) -> tuple[Any, ...]:
    if not isinstance(tree, list):
        faults.add(field, "missing" if tree is None else "not a list")
        return ()
    rows = []
    for number, item in enumerate(tree):
        here = f"{field}[{number}]"
        if not isinstance(item, dict):
            faults.add(here, "not a mapping")
            continue
        if isinstance(item.get("name"), str) and len(item["name"]) <= 80:  # noqa: PLR2004 - a message, not a dump
            here += f" ({item['name']})" if item["name"].isprintable() else ""
        _unknown(item, row, f"{here}.", faults)
        read = {key: _value(item, key, check, f"{here}.", faults) for key, check in row.items()}
        rows.append(kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in read.items()}))
    return tuple(rows)


def _value(tree: dict[str, Any], key: str, check: Check, before: str, faults: _Faults) -> Any:
    if key not in tree:
        faults.add(f"{before}{key}", "missing")
        return None
    why = check(tree[key])
    if why:
        faults.add(f"{before}{key}", why)
    return tree[key]


def _unknown(tree: dict[str, Any], known: Mapping[str, object], before: str, faults: _Faults) -> None:
    for key in tree:
        if key not in known:
            faults.add(f"{before}{key:.80}", "unknown field")


def _agreement(lock: Lock, faults: _Faults) -> None:
    """What no single field shows: repeated names, a foreign platform, an order that is not the one order."""
    for field, rows in (("base.packages", lock.base.packages), ("conda", lock.conda), ("wheels", lock.wheels)):
        names = [row.name for row in rows]
        # One order, so that equal solutions are equal files and a diff shows changes alone.
        if names != sorted(names):
            faults.add(field, "not sorted by name")
        for name in sorted({listed for listed in names if names.count(listed) > 1}):
            faults.add(field, f"{name} is listed twice")
    for number, package in enumerate(lock.conda):
        here = f"conda[{number}] ({package.name})"
        if package.subdir not in (lock.platform, "noarch"):
            faults.add(f"{here}.subdir", f"{package.subdir} is not {lock.platform}")
        # A reviewer reads the name and the version, but the URL is what gets installed.
        stem = f"{package.channel}/{package.subdir}/{package.name}-{package.version}-{package.build}"
        if not package.url.endswith((f"/{stem}.conda", f"/{stem}.tar.bz2")):
            faults.add(f"{here}.url", "names another package")
    _wheels(lock, faults)
    _sources(lock, faults)
    for key, value in lock.request:
        if key in ("python", "platform") and value != getattr(lock, key):
            faults.add(key, f"{getattr(lock, key)} is not request.{key}, {value}")
    if lock.base.kind == "registry" and lock.base.digest is None:
        faults.add("base.digest", "missing: a base from a registry is pinned by digest")
    if lock.base.kind == "bootstrap" and (lock.base.suite is None or not lock.base.packages):
        faults.add("base", "a bootstrapped base needs a suite and packages")


def _wheels(lock: Lock, faults: _Faults) -> None:
    for number, wheel in enumerate(lock.wheels):
        here = f"wheels[{number}] ({wheel.name})"
        if wheel.source != BUILT and values.last_part(wheel.url) != wheel.file:
            faults.add(f"{here}.url", f"does not end with {wheel.file}")
        if not _names_itself(wheel):
            faults.add(f"{here}.file", f"{wheel.file} is not {wheel.name} {wheel.version}")
        if values.wheel_platform(wheel.file) not in (lock.platform, "any"):
            faults.add(f"{here}.file", f"{wheel.file} is not for {lock.platform}")


def _sources(lock: Lock, faults: _Faults) -> None:
    built = {(wheel.name, wheel.version, wheel.url) for wheel in lock.wheels if wheel.source == BUILT}
    known = {builder.seal for builder in lock.builders}
    for number, source in enumerate(lock.sources):
        here = f"sources[{number}] ({source.name})"
        if (source.name, source.version, source.url) not in built:
            faults.add(here, f"the lock has no wheel of {source.name} {source.version} that was built from it")
        if source.builder not in known:
            faults.add("builders", f"missing: {source.builder}, in which {source.name} was built")
    names = [source.name for source in lock.sources]
    if names != sorted(set(names)):
        faults.add("sources", "not sorted by name, or a name is listed twice")
    for wheel in lock.wheels:
        if wheel.source == BUILT and wheel.name not in names:
            faults.add("sources", f"missing: what {wheel.name} was built from")


def _names_itself(wheel: Wheel) -> bool:
    """Whether the file's name is that of this package and version."""
    try:
        name, version, _, _ = parse_wheel_filename(wheel.file)
        return (name, version) == (canonicalize_name(wheel.name), Version(wheel.version))
    except (InvalidWheelFilename, InvalidVersion):
        return False
