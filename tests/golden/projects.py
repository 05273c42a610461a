"""Projects after the pattern of public ones: the definition that `envkit init` makes of each, and one rendered."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from envkit.facts.load import load
from envkit.plan.definition import parse
from envkit.plan.model import BuildPlan
from envkit.plan.planner import plan_of
from envkit.project.definition import Drafted, choose, draft
from envkit.project.listing import shown
from envkit.render.model import SYNTAXES
from envkit.render.render import render
from tests.support.plans import steady

PROJECTS = Path(__file__).parent / "projects"
NAMES = tuple(sorted(path.name for path in PROJECTS.iterdir()))
RENDERED = "dockerfile"  # it has files to copy, a command, a port and a volume


@cache
def drafted(name: str) -> Drafted:
    """What `envkit init` makes of a project."""
    folder = PROJECTS / name
    return draft(choose(folder)[0], folder, load())


def plan(name: str) -> BuildPlan:
    """The plan of a project's definition, as if it lay in the project's folder."""
    definition = parse(drafted(name).text, where="image.yaml", folder=PROJECTS / name)
    return steady(plan_of(definition, {}, load()))


def listing(name: str) -> str:
    """What was taken and what was left, as `envkit init` lists it."""
    found = drafted(name)
    rows = [f"taken {where}: {key}: {value}" for key, value, where in shown(found.taken)]
    rows += [f"{'unneeded' if x.harmless else 'left'} {x.line.where}: {x.line.text}: {x.why}" for x in found.skipped]
    return "\n".join(rows) + "\n"


def projects() -> Iterator[tuple[str, str, bytes]]:
    """Folder, name and bytes of every kept file."""
    for name in NAMES:
        yield "init", f"{name}.yaml", drafted(name).text.encode()
        yield "init", f"{name}.txt", listing(name).encode()
    for syntax in SYNTAXES:
        made = render(plan(RENDERED), syntax=syntax)
        yield f"init-{RENDERED}", f"{syntax}.Dockerfile", made.files["Dockerfile"]
    yield f"init-{RENDERED}", "dockerignore", made.files[".dockerignore"]
    tree = json.loads(made.files["plan.json"])
    kept = {key: tree[key] for key in ("copy", "ports", "volumes", "workdir", "cmd", "pip")}
    yield f"init-{RENDERED}", "plan-part.json", json.dumps(kept, indent=2).encode() + b"\n"
