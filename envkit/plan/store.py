"""Plans on disk: read a plan from its JSON, and keep the plans of built images by digest."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from envkit.ground import trees
from envkit.ground.errors import IntegrityError, UsageError
from envkit.ground.store import write_atomic
from envkit.plan.model import SCHEMA, BuildPlan, Copied, Installer, Smoke
from envkit.resolve.model import SCHEMA as RESOLUTION_SCHEMA
from envkit.resolve.model import Driver, Resolution

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 16 << 20  # far above any plan
_HINT = "envkit render --only plan > FILE writes a plan of this version"
_SPECIAL = frozenset({"schema", "resolution", "installer", "smoke", "copy", "folder"})  # read one by one, or ignored
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def plan_from_json(tree: Any, where: str) -> BuildPlan:
    """Return the plan whose `to_json()` is `tree`; `where` names its origin in errors.

    Raises:
        UsageError: the tree is not a plan of this schema, or a field is missing, unknown or of another type.
    """
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        schema = tree.get("schema") if isinstance(tree, dict) else type(tree).__name__
        raise UsageError(f"{where}: {schema!r:.80} is not a plan ({SCHEMA})", hint=_HINT)
    try:
        resolution = _resolution(tree["resolution"])
        plain = {key: value for key, value in tree.items() if key not in _SPECIAL}
        installer = tree["installer"]
        plan = BuildPlan(
            resolution=resolution,
            installer=None if installer is None else Installer(**installer),
            smoke=Smoke(**tree["smoke"]),
            copy=tuple(map(_copied, tree.get("copy", ()))),
            **{key: _frozen(value) for key, value in plain.items()},
        )
        # The constructors do not check types, so the plan is written again and compared with the tree.
        again = json.loads(plan.canonical())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}: incomplete or invalid plan: {error}", hint=_HINT) from error
    hints = get_type_hints(BuildPlan)
    if again != tree or not all(_is_a(getattr(plan, field.name), hints[field.name]) for field in fields(BuildPlan)):
        raise UsageError(f"{where}: the fields of the plan do not have the types of {SCHEMA}", hint=_HINT)
    return plan


def read_plan(path: Path) -> BuildPlan:
    """Return the plan in a file.

    Raises:
        UsageError: the file cannot be read or does not contain a plan.
    """
    return plan_from_json(trees.from_json_file(path, _MOST_BYTES, hint=_HINT), str(path))


def store_plan(folder: Path, plan: BuildPlan) -> Path:
    """Write a plan to the state folder under its digest; return the file.

    Raises:
        OSError: the folder cannot be written.
    """
    path = _path(folder, plan.digest)
    write_atomic(path, plan.canonical())
    return path


def load_plan(folder: Path, digest: str) -> BuildPlan | None:
    """Return the stored plan with this digest, None if there is none.

    Raises:
        IntegrityError: the plan in the file has another digest.
        UsageError: the file does not contain a plan, or `digest` is not a digest.
    """
    path = _path(folder, digest)
    if not path.is_file():
        return None
    plan = read_plan(path)
    if plan.digest != digest:
        raise IntegrityError(f"{path} contains the plan {plan.digest}, not {digest}", hint=f"rm {path}; envkit build")
    return plan


def _path(folder: Path, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise UsageError(f"{digest!r:.100} is not a plan digest", hint="a digest is sha256: and 64 hex digits")
    return folder / "plans" / f"{digest.removeprefix('sha256:')}.json"


def _resolution(tree: Any) -> Resolution:
    if tree.get("schema") != RESOLUTION_SCHEMA:
        raise ValueError(f"resolution.schema is {tree.get('schema')!r:.80}, not {RESOLUTION_SCHEMA!r}")
    known = {field.name for field in fields(Resolution)}
    own = ("driver", "reasons", "files")
    values = {key: _frozen(value) for key, value in tree.items() if key in known and key not in own}
    driver = tree["driver"]
    return Resolution(
        driver=None if driver is None else Driver(**driver),
        reasons=dict(tree["reasons"]),
        files=dict(tree["files"]),
        **values,
    )


def _copied(tree: Any) -> Copied:
    return Copied(source=tree["from"], target=tree["to"], is_file=tree["file"], digest=tree["digest"])


def _is_a(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of its field. Wrong types inside a list pass the comparison of the JSON."""
    origin, arguments = get_origin(hint), get_args(hint)
    # `X | None` is a UnionType, Optional[X] a Union.
    if origin in (Union, UnionType):
        return any(_is_a(value, member) for member in arguments)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if arguments[-1:] == (...,):
            return all(_is_a(element, arguments[0]) for element in value)
        return len(value) == len(arguments) and all(map(_is_a, value, arguments))
    if hint is Any or not isinstance(hint, type):
        return True
    # bool is a subclass of int.
    return isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return tuple(value.items())
    return value
