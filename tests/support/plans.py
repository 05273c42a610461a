"""Plans and rendered contexts from the shipped facts."""

from dataclasses import replace
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

FACTS_DIGEST = "facc" * 16
"""In the place of the digest of the facts, which is another one after each change of them."""
HEAD = "schema: envkit.image/1\ntitle: A title\n"


@cache
def facts() -> Facts:
    return load()


def steady(plan: BuildPlan) -> BuildPlan:
    """Return a plan without what every new row of the facts changes, so that kept files follow only their image."""
    return replace(plan, facts_digest=FACTS_DIGEST, resolution=replace(plan.resolution, rejected_count=0))


def shipped_plan(name: str = "default", **typed: Any) -> BuildPlan:
    """Return the plan of a shipped image or of a definition file."""
    return steady(plan_of(load_definition(name), typed, facts()))


def plan_from(body: str, *, folder: Path = Path("/nonexistent"), **typed: Any) -> BuildPlan:
    """Return the plan of a definition that is not in a file."""
    return plan_of(parse(HEAD + body, where="train.yaml", folder=folder), typed, facts())


@cache
def context(name: str = "cu126", template: str = "miniconda", syntax: str = "classic") -> Rendered:
    """Return the rendered build context of a shipped image."""
    return render(shipped_plan(name, template=template), syntax=syntax)
