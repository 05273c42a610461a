"""Read a lock from its JSON tree strictly: every field is required and no other is allowed; all errors are reported."""

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
from envkit.lock.model import (
    BUILT,
    PAGE,
    SCHEMA,
    CondaPackage,
    DebPackage,
    Lock,
    LockedBase,
    RequestValue,
    Source,
    Wheel,
)
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
    "source": values.one_of("pytorch", "pypi", PAGE, BUILT),
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
    """Return the JSON Schema of a lock. Only the reader checks what depends on several fields, such as the seal."""
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
    """Return the schema of a mapping that has every field of a row, and those of `more`."""
    forms = {**{key: check.schema for key, check in row.items()}, **more}
    return schemas.closed(forms, tuple(forms))


class _Faults:
    """The errors of a file: those of form, and separately those of hashes, which have another exit code."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._form: list[str] = []
        self._hashes: list[str] = []

    def add(self, path: str, why: str) -> None:
        (self._hashes if path.endswith(".sha256") else self._form).append(f"{self._where}: {path}: {why}")

    def raise_any(self) -> None:
        """Raise all errors as one. Any error of form decides the exit code, because it puts other fields in doubt."""
        faults = (*self._form, *self._hashes)
        if self._form:
            raise UsageError(faults[0], details=shown(faults[1:]), hint=_HINT)
        if self._hashes:
            raise IntegrityError(faults[0], details=shown(faults[1:]), hint=_HINT)


def lock_from_json(tree: Any, where: str) -> Lock:
    """Return the lock whose `to_json()` is `tree`; `where` names its origin in errors.

    Raises:
        UsageError: a field is missing, unknown or invalid, or the schema is another one.
        IntegrityError: an artifact has no SHA-256, or the seal does not match the contents.
    """
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise _other_schema(tree, where)
    faults = _Faults(where)
    known = dict.fromkeys(field.name for field in fields(Lock))
    checks = {**_TOP, **_SEAL}
    _unknown(tree, {**known, **checks}, "", faults)
    top = {key: _value(tree, key, check, "", faults) for key, check in checks.items()}
    base = _base(tree.get("base"), faults)
    request = _request(tree.get("request"), faults)
    conda, wheels = (_rows(tree.get(key), key, row, kind, faults) for key, row, kind in _ARTIFACTS)
    sources = _rows(tree.get("sources", []), "sources", _SOURCE, Source, faults)
    faults.raise_any()  # the comparisons below need all fields
    builders = _builders(tree.get("builders", []), where)
    seal = top.pop("seal", None)
    more: dict[str, Any] = {"conda": conda, "wheels": wheels, "sources": sources, "builders": builders}
    lock = Lock(request=request, base=base, schema=tree["schema"], **more, **top)
    _check_consistency(lock, faults)
    faults.raise_any()
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
        # So reading goes only one level deep, whatever the file contains.
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


def _base(tree: Any, faults: _Faults) -> LockedBase:
    if not isinstance(tree, dict):
        faults.add("base", "missing" if tree is None else "not a mapping")
        return LockedBase(kind="none", reference="")
    _unknown(tree, {**_BASE, "packages": None}, "base.", faults)
    row = {key: _value(tree, key, check, "base.", faults) for key, check in _BASE.items()}
    return LockedBase(**row, packages=_rows(tree.get("packages"), "base.packages", _DEB, DebPackage, faults))


def _request(tree: Any, faults: _Faults) -> tuple[tuple[str, RequestValue], ...]:
    if not isinstance(tree, dict):
        faults.add("request", "missing" if tree is None else "not a mapping")
        return ()
    entries: list[tuple[str, RequestValue]] = []
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
        path = f"{field}[{number}]"
        if not isinstance(item, dict):
            faults.add(path, "not a mapping")
            continue
        if isinstance(item.get("name"), str) and len(item["name"]) <= 80:  # noqa: PLR2004 - keeps messages short
            # Control characters in a name could change what a terminal shows.
            path += f" ({item['name']})" if item["name"].isprintable() else ""
        _unknown(item, row, f"{path}.", faults)
        read = {key: _value(item, key, check, f"{path}.", faults) for key, check in row.items()}
        rows.append(kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in read.items()}))
    return tuple(rows)


def _value(tree: dict[str, Any], key: str, check: Check, prefix: str, faults: _Faults) -> Any:
    if key not in tree:
        faults.add(f"{prefix}{key}", "missing")
        return None
    why = check(tree[key])
    if why:
        faults.add(f"{prefix}{key}", why)
    return tree[key]


def _unknown(tree: dict[str, Any], known: Mapping[str, object], prefix: str, faults: _Faults) -> None:
    for key in tree:
        if key not in known:
            faults.add(f"{prefix}{key:.80}", "unknown field")


def _check_consistency(lock: Lock, faults: _Faults) -> None:
    """Add the errors that depend on several fields: repeated names, another platform, another order."""
    for field, rows in (("base.packages", lock.base.packages), ("conda", lock.conda), ("wheels", lock.wheels)):
        names = [row.name for row in rows]
        # A fixed order, so that equal solutions are equal files and a diff shows only changes.
        if names != sorted(names):
            faults.add(field, "not sorted by name")
        for name in sorted({listed for listed in names if names.count(listed) > 1}):
            faults.add(field, f"{name} is listed twice")
    for number, package in enumerate(lock.conda):
        path = f"conda[{number}] ({package.name})"
        if package.subdir not in (lock.platform, "noarch"):
            faults.add(f"{path}.subdir", f"{package.subdir} is not {lock.platform}")
        # A reviewer reads the name and the version, but the URL decides what is installed.
        stem = f"{package.channel}/{package.subdir}/{package.name}-{package.version}-{package.build}"
        if not package.url.endswith((f"/{stem}.conda", f"/{stem}.tar.bz2")):
            faults.add(f"{path}.url", "is the URL of another package")
    _wheels(lock, faults)
    _sources(lock, faults)
    for key, value in lock.request:
        if key in ("python", "platform") and value != getattr(lock, key):
            faults.add(key, f"is {getattr(lock, key)}, but request.{key} is {value}")
    if lock.base.kind == "registry" and lock.base.digest is None:
        faults.add("base.digest", "missing: a base from a registry is pinned by digest")
    if lock.base.kind == "bootstrap" and (lock.base.suite is None or not lock.base.packages):
        faults.add("base", "a bootstrapped base needs a suite and packages")


def _wheels(lock: Lock, faults: _Faults) -> None:
    for number, wheel in enumerate(lock.wheels):
        path = f"wheels[{number}] ({wheel.name})"
        # The URL of a built wheel is that of its source.
        if wheel.source != BUILT and values.last_part(wheel.url) != wheel.file:
            faults.add(f"{path}.url", f"does not end with {wheel.file}")
        if not _has_own_name(wheel):
            faults.add(f"{path}.file", f"{wheel.file} is not {wheel.name} {wheel.version}")
        if values.wheel_platform(wheel.file) not in (lock.platform, "any"):
            faults.add(f"{path}.file", f"{wheel.file} is not for {lock.platform}")


def _sources(lock: Lock, faults: _Faults) -> None:
    built = {(wheel.name, wheel.version, wheel.url) for wheel in lock.wheels if wheel.source == BUILT}
    known = {builder.seal for builder in lock.builders}
    for number, source in enumerate(lock.sources):
        path = f"sources[{number}] ({source.name})"
        if (source.name, source.version, source.url) not in built:
            faults.add(path, f"the lock has no wheel of {source.name} {source.version} that was built from it")
        if source.builder not in known:
            faults.add("builders", f"missing: {source.builder}, which built {source.name}")
    names = [source.name for source in lock.sources]
    if names != sorted(set(names)):
        faults.add("sources", "not sorted by name, or a name is listed twice")
    for wheel in lock.wheels:
        if wheel.source == BUILT and wheel.name not in names:
            faults.add("sources", f"missing: the source of {wheel.name}")


def _has_own_name(wheel: Wheel) -> bool:
    """Return whether the file name is that of this package and version."""
    try:
        name, version, _, _ = parse_wheel_filename(wheel.file)
        return (name, version) == (canonicalize_name(wheel.name), Version(wheel.version))
    except (InvalidWheelFilename, InvalidVersion):
        return False
