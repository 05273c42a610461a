"""Find packages that are locked in an older release because a newer one needs a source.

The solver takes wheels only: reading the metadata of an sdist would run its build script. It therefore skips a release
that has only a source, or that requires a package with only a source, and takes an older one, often by years, without
an error. So the plan is solved once more with each newest release that it does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envkit.ground.errors import ConflictError, EnvkitError
from envkit.lock import uv
from envkit.lock.index_locations import IndexLocations
from envkit.lock.uv import Target
from envkit.lock.wheel_choice import versions_of
from envkit.lock.wheels import python_index
from envkit.plan.model import BuildPlan

_MOST_SOLVES = 8  # of one lock; each takes about a second


def by_source(
    plan: BuildPlan,
    target: Target,
    indexes: IndexLocations,
    locked: Mapping[str, str],
    *,
    as_of: str | None,
    solve: Callable[[BuildPlan], object],
) -> Iterator[str]:
    """Yield a line for each requirement whose newest release is not locked because it needs a source.

    Args:
        plan: the plan that was locked.
        target: the interpreter.
        indexes: where packages are downloaded from.
        locked: name -> version of the locked wheels.
        as_of: RFC 3339; newer files are not considered.
        solve: solves the wheels of a plan with the same target and indexes.
    """
    try:
        newest = newest_releases(plan, target, indexes, locked, as_of=as_of)
    except EnvkitError:  # such as an index that stops to answer; the lock itself is solved
        return
    older = [name for name in sorted(newest) if Version(newest[name]) > Version(locked[name])]
    for name in older[:_MOST_SOLVES]:
        try:
            solve(replace(plan, constraints=(*plan.constraints, f"{name}=={newest[name]}")))
        except ConflictError as error:
            if error.hint and "allow_source" in error.hint:
                yield f"{name} {locked[name]} is locked instead of {newest[name]}: {error.message}; {error.hint}"
        except EnvkitError:  # as above
            return


def newest_releases(
    plan: BuildPlan, target: Target, indexes: IndexLocations, names: Collection[str], *, as_of: str | None
) -> dict[str, str]:
    """Return the newest release of each of the plan's requirements with these names that its own lines allow.

    A release with only a source counts, and what it requires does not: no metadata is read.

    Raises:
        ConflictError: no release satisfies the lines of a name.
        EnvironmentProblem, TimeLimitError: as `uv.compile_files` raises them.
    """
    lines: dict[str, list[str]] = {}
    for text in (*plan.pip, *plan.constraints):
        lines.setdefault(canonicalize_name(Requirement(text).name), []).append(text)
    asked = {canonicalize_name(Requirement(text).name) for text in plan.pip}
    wanted = [text for name in sorted(asked.intersection(names)) for text in lines[name]]
    if not wanted:
        return {}
    text = uv.compile_files(wanted, target, python_index(plan, indexes), preferred={}, as_of=as_of)
    return {name: version for name, version in versions_of(text).items() if name in names}
