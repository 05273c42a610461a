"""Choose the sdists to build from source: those of packages without a compatible wheel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name

from envkit.ground import trees
from envkit.ground.errors import ConflictError, EnvironmentProblem
from envkit.lock import sizes, uv
from envkit.lock.index_locations import IndexLocations
from envkit.lock.uv import Target
from envkit.lock.values import last_part
from envkit.lock.wheel_choice import has_wheel, ranks_of
from envkit.plan.source_spec import SourceSpec

# PEP 625: an sdist is a .tar.gz. Older ones are also .zip or .tar.bz2, which envkit does not read.
_FORMS = (".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdist:
    """An sdist of an index."""

    name: str
    version: str
    url: str
    sha256: str
    size: int  # bytes


def choose(
    specs: Sequence[SourceSpec],
    others: Sequence[str],
    target: Target,
    indexes: IndexLocations,
    *,
    preferred: Mapping[str, str] = MappingProxyType({}),
    as_of: str | None = None,
) -> tuple[Sdist, ...]:
    """Return the sdist of each package whose best version has no wheel for the target, sorted by name.

    Args:
        specs: packages by name; commits are ignored.
        others: the other requirements of the plan, which may constrain the same packages.
        target: the interpreter.
        indexes: where packages are downloaded from.
        preferred: name -> version that is chosen if it is possible.
        as_of: RFC 3339; newer files are not considered.

    Raises:
        ConflictError: no version satisfies the requirements.
        EnvironmentProblem: the index does not answer, or has no SHA-256 of an sdist.
    """
    named = {spec.name: spec.requirement for spec in specs if spec.requirement is not None}
    if not named:
        return ()
    wanted = [*named.values(), *(text for text in others if canonicalize_name(Requirement(text).name) in named)]
    index = indexes.python_index
    where = uv.Index(url=index, ca_bundle=indexes.ca_bundle)
    text = uv.compile_files(wanted, target, where, preferred=preferred, as_of=as_of)
    rows = parse(text, ranks_of(target.platform, target.glibc, target.python), named)
    unknown = [row["sdist"]["url"] for row in rows if row["sdist"].get("size") is None]
    known = sizes.ask(unknown, index=index, ca_bundle=indexes.ca_bundle)
    return tuple(_sdist(row, known) for row in rows)


def parse(text: str, ranks: Mapping[Tag, int], names: Collection[str]) -> list[dict[str, Any]]:
    """Return the rows of a pylock.toml that have no compatible wheel, sorted by name; each has an sdist."""
    rows = []
    tree = trees.from_toml(text, "the lock of uv", error=EnvironmentProblem)
    for row in sorted(tree.get("packages", []), key=lambda row: str(row["name"])):
        if canonicalize_name(row["name"]) not in names or has_wheel(row, ranks):
            continue
        if "sdist" not in row:
            raise ConflictError(
                f"{row['name']} {row['version']} has neither a compatible wheel nor an sdist",
                hint=f"allow_source: ['{row['name']}==VERSION'] with a version that has one",
            )
        rows.append(row)
    return rows


def _sdist(row: Mapping[str, Any], sizes_known: Mapping[str, int]) -> Sdist:
    name, version, sdist = canonicalize_name(row["name"]), str(row["version"]), row["sdist"]
    sha256 = sdist.get("hashes", {}).get("sha256")
    if sha256 is None:
        raise EnvironmentProblem(
            f"the index has no SHA-256 of {last_part(sdist['url'])}, which is needed to build it from source",
            hint="use an index with SHA-256 hashes: ENVKIT_PYTHON_INDEX=URL",
        )
    if not last_part(sdist["url"]).endswith(_FORMS):
        raise ConflictError(
            f"{last_part(sdist['url'])}: envkit builds only .tar.gz sdists",
            hint=f"allow_source: ['{name}==VERSION'] with a version that has one",
        )
    size = sdist.get("size") or sizes_known[sdist["url"]]
    return Sdist(name=name, version=version, url=sdist["url"], sha256=sha256, size=size)
