"""Every single change of a lock is refused, and what passes where the seal is made again is a list with reasons."""

import copy
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from envkit.ground.errors import EnvkitError
from envkit.lock.reading import lock_from_json
from envkit.lock.request import require_fit
from envkit.lock.store import to_text
from envkit.plan.model import BuildPlan
from tests.support.locks import locked_conda, locked_wheels
from tests.support.plans import shipped_plan

PLANS = {"conda": shipped_plan("cpu"), "wheels": shipped_plan("cu126", template="wheels")}
TREES = {
    "conda": json.loads(to_text(locked_conda(PLANS["conda"]))),
    "wheels": json.loads(to_text(locked_wheels(PLANS["wheels"]))),
}
GONE = object()
Path = tuple[str | int, ...]


def _places(tree: Any, path: Path = ()) -> Iterator[Path]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _values(now: Any) -> Iterator[Any]:
    """Other values for a place: none, empty, odd, and of the same kind."""
    yield GONE
    yield from (None, "", [], {}, 7)
    if isinstance(now, str):
        yield now + "0"
        yield "0" * 64 if len(now) == 64 else "sha256:" + "0" * 64 if now.startswith("sha256:") else f"0{now}"
    if isinstance(now, list):
        yield now[:-1]
        yield [*now, *now[-1:]]


def _changed(tree: Any, path: Path, value: Any) -> Any:
    new = copy.deepcopy(tree)
    holder = new
    for key in path[:-1]:
        holder = holder[key]
    if value is GONE:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return new


def _changes(tree: Any) -> Iterator[tuple[Path, Any]]:
    for path in _places(tree):
        now = tree
        for key in path:
            now = now[key]
        for value in _values(now):
            new = _changed(tree, path, value)
            if new != tree:
                yield path, new


def _is_taken(tree: Any, plan: BuildPlan) -> bool:
    try:
        require_fit(lock_from_json(tree, "envkit.lock"), plan)
    except EnvkitError as error:
        if error.exit_code not in (2, 4, 10) or not error.hint:
            raise
        return False
    return True


@pytest.mark.parametrize("name", TREES)
def test_an_unchanged_lock_is_taken_in_any_layout(name: str) -> None:
    assert _is_taken(TREES[name], PLANS[name])
    assert _is_taken(json.loads(json.dumps(TREES[name], sort_keys=True)), PLANS[name])


@pytest.mark.requirement("R14")
@pytest.mark.parametrize("name", TREES)
def test_no_single_change_is_taken(name: str) -> None:
    changes = list(_changes(TREES[name]))
    assert len(changes) > 500
    assert [path for path, tree in changes if _is_taken(tree, PLANS[name])] == []


# What a lock alone cannot tell where somebody also takes its seal away, or makes it again.
PASSES = {
    "plan": "only says for which plan it was solved; the request is compared",
    "request.glibc": "follows from the OS, which is compared",
    "request.base": "the base itself is in `base`",
    "base.reference": "the builder compares it with --base, and the digest is that of the bytes",
    "base.digest": "the base's manifest is compared with it, exit code 10",
    "conda[].sha256": "the download is compared with it, exit code 10",
    "conda[].size": "the download is compared with it, exit code 10",
    "wheels[].sha256": "the download is compared with it, exit code 10",
    "wheels[].size": "the download is compared with it, exit code 10",
    "wheels[].version": "another spelling of the same version: 1.0 and 1.00",
    "wheels[]": "wheels do not list what they depend on: one that only others need can be taken away",
}


def _joined(path: Path) -> str:
    text = ""
    for part in path:
        text += "[]" if isinstance(part, int) else f".{part}" if text else part
    return text


@pytest.mark.parametrize("name", TREES)
def test_what_passes_with_a_new_seal_is_known(name: str) -> None:
    base = {key: value for key, value in TREES[name].items() if key != "seal"}
    taken = {_joined(path) for path, tree in _changes(base) if _is_taken(_sealed(tree), PLANS[name])}
    assert taken <= PASSES.keys()


def _sealed(tree: dict[str, Any]) -> dict[str, Any]:
    canonical = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
    return {**tree, "seal": f"sha256:{hashlib.sha256(canonical).hexdigest()}"}


def test_a_seal_that_is_made_anew_hides_no_missing_package() -> None:
    lock = locked_conda(PLANS["conda"])
    for row in lock.conda:
        less = replace(lock, conda=tuple(one for one in lock.conda if one != row))
        assert not _is_taken(json.loads(to_text(less)), PLANS["conda"])
