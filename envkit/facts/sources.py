"""Source ids: an id stands for itself, or a shape such as `testinfra:<commit>` stands for many."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any


def find(sources: Mapping[str, Mapping[str, Any]], ref: str) -> tuple[str, Mapping[str, Any]] | None:
    """The source row a reference means, with its id; None when there is none."""
    if ref in sources:
        return ref, sources[ref]
    for name, source in sources.items():
        if "<" in name and _shape(name).fullmatch(ref):
            return name, source
    return None


def describe(source: Mapping[str, Any], ref: str) -> str:
    """A source in one line: where it is, and what it says."""
    commits = source.get("branch_commits", {})
    revision = source.get("commit") or commits.get(ref.partition(":")[2]) or _varying(ref)
    parts: list[str] = []
    if "repo" in source:
        parts.append(" ".join(part for part in (source["repo"], revision, source.get("path")) if part))
    parts.extend(source.get("urls", ()))
    parts.extend(source[field] for field in ("url", "what") if field in source)
    if source.get("kind") == "alias":
        parts.append("see " + ", ".join(source["of"]))
    if source.get("note"):
        parts.append(source["note"])
    if source.get("date"):
        parts.append(f"({source['date']})")
    return " ".join(parts)


@cache
def _shape(name: str) -> re.Pattern[str]:
    parts = re.split(r"(<[^>]+>)", name)
    return re.compile("".join(r"\S+" if part.startswith("<") else re.escape(part) for part in parts))


def _varying(ref: str) -> str | None:
    match = re.search(r"[@:]([0-9a-f]{7,40})", ref)
    return match.group(1) if match else None
