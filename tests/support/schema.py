"""Check documents with the part of JSON Schema that the shipped schemas use, without a dependency."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}
_NOTES = {"$schema", "$id", "$defs", "title", "description"}
_RULES = {"$ref", "type", "required", "properties", "additionalProperties", "items", "enum", "const"}
_RULES |= {"pattern", "minimum", "minItems", "maxItems"}


def faults(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, at: str = "$", *, closed: bool = False
) -> list[str]:
    """Return the schema errors of `value`, as `path: error`.

    With `closed`, an unknown field is an error as well if the schema names an object's fields and does not mention
    additional ones. Writers have to obey this, readers do not.
    """
    root = root or schema
    unknown = set(schema) - _NOTES - _RULES
    assert not unknown, f"the checker does not support {unknown}"
    if "$ref" in schema:
        return faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at, closed=closed)
    kinds = schema.get("type")
    if kinds is not None and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return [f"{at}: {value!r:.60} is not a {kinds}"]
    errors = []
    if "const" in schema and value != schema["const"]:
        errors.append(f"{at}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        errors.append(f"{at}: {value!r} is not one of {schema['enum']}")
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        errors.append(f"{at}: {value!r} does not match {schema['pattern']}")
    if "minimum" in schema and value < schema["minimum"]:
        errors.append(f"{at}: {value} is below {schema['minimum']}")
    if isinstance(value, list):
        errors += _array(value, schema, root, at, closed=closed)
    if isinstance(value, dict):
        errors += _object(value, schema, root, at, closed=closed)
    return errors


def _array(value: list[Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str, *, closed: bool) -> list[str]:
    errors = []
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        errors.append(f"{at}: {len(value)} items")
    for index, item in enumerate(value):
        errors += faults(item, schema.get("items", {}), root, f"{at}[{index}]", closed=closed)
    return errors


def _object(
    value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str, *, closed: bool
) -> list[str]:
    errors = [f"{at}: no {name}" for name in schema.get("required", ()) if name not in value]
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", not (closed and known))
    for name, item in value.items():
        if name in known:
            errors += faults(item, known[name], root, f"{at}.{name}", closed=closed)
        elif others is False:
            errors.append(f"{at}: {name} is unknown")
        elif others is not True:
            errors += faults(item, others, root, f"{at}.{name}", closed=closed)
    return errors


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _KINDS[kind])
