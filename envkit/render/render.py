"""Plan -> the files of a build context. Equal plans and mirrors give equal bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from envkit.ground.errors import UsageError
from envkit.ground.settings import Mirrors
from envkit.lock.model import Lock
from envkit.plan.definition import check_template, kind_of
from envkit.plan.model import BuildPlan
from envkit.render import lint, locked
from envkit.render.context import context
from envkit.render.contextfiles import context_files, dockerignore
from envkit.render.copied import COPIED, copied_files
from envkit.render.model import FLAVOURS, Rendered
from envkit.render.texts import text_of

_COMMAND = re.compile(r"envkit render [A-Za-z0-9][A-Za-z0-9._/-]*")


def render(
    plan: BuildPlan,
    *,
    lock: Lock | None = None,
    flavour: str = "classic",
    mirrors: Mirrors | None = None,
    template_dirs: Sequence[Path] = (),
    base: str | None = None,
    build_base: str | None = None,
    command: str | None = None,
    refuse: bool = True,
) -> Rendered:
    """Render a plan.

    Args:
        plan: what to build.
        lock: artifacts of this plan, to be installed exactly; None = what the plan's specs give when it is built.
        flavour: `classic` for the API of every engine, `buildkit` for cache and secret mounts.
        mirrors: where to fetch from; the plan does not know.
        template_dirs: the user's template folders, first wins.
        base: the final stage's image as it shall stand in FROM, usually with a digest; the plan's by default.
        build_base: the same for the build stage.
        command: what the first line names as the maker, for files that are kept: `envkit render images/default.yaml`.
        refuse: whether a Dockerfile that switches protections off is an error; False for who lists all findings.

    Raises:
        UsageError: a template, a mirror, a base image or a file to copy is invalid.
    """
    if flavour not in FLAVOURS:
        raise UsageError(f"unknown flavor {flavour!r:.80}", hint=f"--flavour {' or '.join(FLAVOURS)}")
    if check_template(plan.template):
        raise UsageError(f"{plan.template!r:.80} {check_template(plan.template)}", hint="--template miniconda")
    if command is not None and not _COMMAND.fullmatch(command):
        raise UsageError(f"{command!r:.80} cannot be put into the first line", hint="leave it out")
    if plan.allow_source and lock is None:
        raise UsageError(
            f"{', '.join(plan.allow_source):.300}: packages from source are built before the image, for a lock",
            hint="envkit build without --no-lock; or envkit lock, then envkit render --locked envkit.lock",
        )
    places = mirrors or Mirrors()
    values = context(plan, lock, flavour=flavour, mirrors=places, base=base, build_base=build_base, command=command)
    files = context_files(plan, lock, mirrors=places, values=values)
    texts = {"Dockerfile": text_of(f"{plan.template}.Dockerfile.j2", values, template_dirs)}
    if kind_of(plan.template) == "miniconda" and lock is None:
        texts["environment.yml"] = text_of("environment.yml.j2", values, template_dirs)
    files |= {name: text.encode() for name, text in texts.items()}
    names = [*files, *(["ca-bundle.pem"] if places.ca_bundle else []), *(locked.built_files(lock) if lock else [])]
    copied, executable = copied_files(plan)
    names += [COPIED, f"{COPIED}/**"] if copied else []
    files[".dockerignore"] = dockerignore([name for name in names if name != "Dockerfile"])
    made = Rendered(
        files=dict(sorted((files | copied).items())),
        build_image=str(values["build_image"]),
        final_image=str(values["final_image"]),
        flavour=flavour,
        executable=executable,
        locked=lock is not None,
    )
    if refuse:
        lint.refuse_unsafe(made)
    return made
