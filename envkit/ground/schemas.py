"""JSON Schemas of the files that users write: the frame and the parts that all of them share.

A schema describes the form of a file: keys, types, fixed words, limits. What envkit checks beyond that (names of
packages, versions that exist, files that are read) `envkit validate` reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"
# envkit reads every plain scalar of YAML but true, false and null as text; other readers see numbers in some.
TEXT: Mapping[str, Any] = {"type": ["string", "number"]}


def ident(schema: str) -> str:
    """Return the `$id` of a schema, which never changes: `envkit.image/1` -> `urn:envkit:image:1`."""
    return "urn:" + schema.replace(".", ":").replace("/", ":")


def closed(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of a mapping that has these keys and no others."""
    tree: dict[str, Any] = {"type": "object"}
    if required:
        tree["required"] = list(required)
    return {**tree, "properties": dict(properties), "additionalProperties": False}


def listed(item: Mapping[str, Any], *, unique: bool = False) -> dict[str, Any]:
    """Return the schema of a list of such items."""
    return {"type": "array", "items": dict(item), **({"uniqueItems": True} if unique else {})}


def described(schema: Mapping[str, Any], meaning: str | None) -> dict[str, Any]:
    """Return a schema with the meaning of the value, which editors show."""
    return {"description": meaning, **schema} if meaning else dict(schema)


def document(schema: str, title: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole schema of a file.

    Args:
        schema: the id in envkit's own terms: `envkit.image/1`.
        title: what the file is.
        body: the schema of its contents, as `closed` makes it.
    """
    return {"$schema": DRAFT, "$id": ident(schema), "title": title, **body}
