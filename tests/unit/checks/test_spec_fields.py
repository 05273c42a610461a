"""What a check reads of a spec is a field that some plan sets: a rule that waits for another can never run."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import envkit
from envkit.checks.c01_versions.judge import _RULES as COMPONENTS
from envkit.checks.c01_versions.observe import KNOWN_FIELDS
from envkit.verify.spec import EMPTY, spec_of_plan
from tests.support.plans import plan_from, shipped_plan

PACKAGE = Path(envkit.__file__).parent
READERS = sorted([*(PACKAGE / "checks").rglob("*.py"), *(PACKAGE / "smoke").rglob("*.py")])
# Set for a run and not by a plan: its settings, its data, the nonce of the answer, and the schema of a spec file.
OF_THE_RUN = {"launch", "data", "nonce", "schema"}


@cache
def specs() -> tuple[dict[str, Any], ...]:
    """The specs of plans for GPUs and CPUs, wheels and conda, with all companions."""
    companions = "companions: [torchvision, torchaudio, numpy]\npip: [einops]\n"
    plans = [shipped_plan("default"), shipped_plan("cpu"), plan_from(companions, source="pytorch", torch="2.9.1")]
    return tuple(spec_of_plan(plan, allow_cpu=True) for plan in plans)


def fields_read(path: Path) -> set[str]:
    """The fields in `spec.get("x")`, `spec["x"]`, `ctx.spec.get("x")`; for a name that is no text, `*` and the name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        value, key = None, None
        if isinstance(node, ast.Subscript):
            value, key = node.value, node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            value, key = node.func.value, node.args[0]
        if key is not None and (getattr(value, "id", None) == "spec" or getattr(value, "attr", None) == "spec"):
            found.add(str(key.value) if isinstance(key, ast.Constant) else f"*{ast.unparse(key)}")
    return found


@pytest.mark.parametrize("path", READERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_field_that_is_read_is_one_that_a_plan_can_set(path: Path) -> None:
    # C01 reads the field of each component by the component's name.
    by_name = {"*name"} if path.parent.name == "c01_versions" else set()
    assert fields_read(path) - set(EMPTY) - OF_THE_RUN - by_name == set()


@pytest.mark.parametrize("component", sorted(COMPONENTS))
def test_every_component_is_promised_by_some_plan(component: str) -> None:
    assert [spec[component] for spec in specs() if spec.get(component) is not None]


@pytest.mark.parametrize("field", sorted(set(EMPTY) - OF_THE_RUN))
def test_every_field_is_set_by_some_plan(field: str) -> None:
    assert [spec[field] for spec in specs() if spec[field] is not None]


def test_the_fields_that_the_payload_knows_are_those_of_a_spec() -> None:
    assert set(KNOWN_FIELDS) == set(EMPTY) | OF_THE_RUN


def test_the_readers_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = spec.get('a')\ny = ctx.spec['b']\nz = spec.get(name)\nother.get('c')\n")
    assert fields_read(tmp_path / "a.py") == {"a", "b", "*name"}
