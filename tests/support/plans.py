"""Plans and rendered contexts from the shipped facts."""

from functools import cache
from pathlib import Path
from typing import Any

from envkit.facts.load import load
from envkit.facts.model import Facts
from envkit.plan.definition import load as load_definition
from envkit.plan.definition import parse
from envkit.plan.model import BuildPlan
from envkit.plan.planner import plan_of
from envkit.render.model import Rendered
from envkit.render.render import render

HEAD = "schema: envkit.image/1\ntitle: A title\n"


@cache
def facts() -> Facts:
    return load()


def shipped_plan(name: str = "default", **typed: Any) -> BuildPlan:
    """Return the plan of a shipped image or of a definition file."""
    return plan_of(load_definition(name), typed, facts())


def plan_from(body: str, *, folder: Path = Path("/nonexistent"), **typed: Any) -> BuildPlan:
    """Return the plan of a definition that is not in a file."""
    return plan_of(parse(HEAD + body, where="train.yaml", folder=folder), typed, facts())


@cache
def context(name: str = "cu126", template: str = "miniconda", syntax: str = "classic") -> Rendered:
    """Return the rendered build context of a shipped image."""
    return render(shipped_plan(name, template=template), syntax=syntax)
