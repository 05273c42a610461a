"""The common parts of the JSON Schemas of files that users write.

A schema describes the form of a file: keys, types, fixed words, limits. `envkit validate` also checks what a schema
cannot express (names of packages, existing versions, readable files).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"
# envkit reads every plain YAML scalar except true, false and null as text; editors parse some of them as numbers.
TEXT: Mapping[str, Any] = {"type": ["string", "number"]}


def ident(schema: str) -> str:
    """Return the `$id` of a schema, which never changes: `envkit.image/1` -> `urn:envkit:image:1`."""
    return "urn:" + schema.replace(".", ":").replace("/", ":")


def closed(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of a mapping that allows only these keys."""
    tree: dict[str, Any] = {"type": "object"}
    if required:
        tree["required"] = list(required)
    return {**tree, "properties": dict(properties), "additionalProperties": False}


def listed(item: Mapping[str, Any], *, unique: bool = False) -> dict[str, Any]:
    """Return the schema of a list of such items."""
    return {"type": "array", "items": dict(item), **({"uniqueItems": True} if unique else {})}


def described(schema: Mapping[str, Any], meaning: str | None) -> dict[str, Any]:
    """Return a schema with a description, which editors show."""
    return {"description": meaning, **schema} if meaning else dict(schema)


def document(schema: str, title: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole schema of a file.

    Args:
        schema: envkit's ID: `envkit.image/1`.
        title: what the file is.
        body: the schema of its contents, as `closed` returns it.
    """
    return {"$schema": DRAFT, "$id": ident(schema), "title": title, **body}
