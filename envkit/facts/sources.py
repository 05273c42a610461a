"""Source IDs. A source's ID may have a placeholder: `testinfra:<commit>` stands for all IDs of that form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any


def find(sources: Mapping[str, Mapping[str, Any]], ref: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the ID and the row of the source that a reference refers to; None if there is none."""
    if ref in sources:
        return ref, sources[ref]
    for name, source in sources.items():
        if "<" in name and _pattern(name).fullmatch(ref):
            return name, source
    return None


def describe(source: Mapping[str, Any], ref: str) -> str:
    """Return a source in one line: its location and its contents."""
    commits = source.get("branch_commits", {})
    revision = source.get("commit") or commits.get(ref.partition(":")[2]) or _commit(ref)
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
def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"(<[^>]+>)", name)
    # `testinfra:<commit>` matches `testinfra:d3629fa2e61b`.
    return re.compile("".join(r"\S+" if part.startswith("<") else re.escape(part) for part in parts))


def _commit(ref: str) -> str | None:
    # `cf_feedstock@ec1566fa65ed`, `testinfra:d3629fa2e61b`
    match = re.search(r"[@:]([0-9a-f]{7,40})", ref)
    return match.group(1) if match else None
