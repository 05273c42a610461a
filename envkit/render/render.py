"""Render a plan into the files of a build context. Equal plans and mirrors give equal bytes."""

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
from envkit.render.model import SYNTAXES, Rendered
from envkit.render.texts import text_of

# No line break and no quote: the command becomes a comment of the Dockerfile.
_COMMAND = re.compile(r"envkit render [A-Za-z0-9][A-Za-z0-9._/-]*")


def render(
    plan: BuildPlan,
    *,
    lock: Lock | None = None,
    syntax: str = "classic",
    mirrors: Mirrors | None = None,
    template_dirs: Sequence[Path] = (),
    base: str | None = None,
    build_base: str | None = None,
    command: str | None = None,
    refuse: bool = True,
) -> Rendered:
    """Render a plan.

    Args:
        plan: the plan.
        lock: its lock, to be installed exactly; None = conda and pip solve the plan's specs during the build.
        syntax: `classic` for every engine, `buildkit` for cache and secret mounts.
        mirrors: the download sources; they are not part of the plan.
        template_dirs: the user's template folders; the first one that has a template wins.
        base: the image in FROM of the final stage, usually with a digest; default: the plan's.
        build_base: the same for the build stage.
        command: the command in the first line, for committed files: `envkit render images/default.yaml`.
        refuse: raise an error if the Dockerfile disables protections; False if the caller lists all findings itself.

    Raises:
        UsageError: a template, a mirror, a base image or a file to copy is invalid.
    """
    if syntax not in SYNTAXES:
        raise UsageError(f"unknown Dockerfile syntax {syntax!r:.80}", hint=f"--syntax {' or '.join(SYNTAXES)}")
    if check_template(plan.template):
        raise UsageError(f"{plan.template!r:.80} {check_template(plan.template)}", hint="--template miniconda")
    if command is not None and not _COMMAND.fullmatch(command):
        raise UsageError(f"{command!r:.80} cannot be written into the first line", hint="omit it")
    if plan.allow_source and lock is None:
        raise UsageError(
            f"packages that are built from source need a lock: {', '.join(plan.allow_source):.300}",
            hint="envkit build without --no-lock; or envkit lock, then envkit render --locked envkit.lock",
        )
    places = mirrors or Mirrors()
    values = context(plan, lock, syntax=syntax, mirrors=places, base=base, build_base=build_base, command=command)
    files = context_files(plan, lock, mirrors=places, values=values)
    texts = {"Dockerfile": text_of(f"{plan.template}.Dockerfile.j2", values, template_dirs)}
    if kind_of(plan.template) == "miniconda" and lock is None:
        texts["environment.yml"] = text_of("environment.yml.j2", values, template_dirs)
    files |= {name: text.encode() for name, text in texts.items()}
    names = [*files, *(["ca-bundle.pem"] if places.ca_bundle else []), *(locked.built_files(lock) if lock else [])]
    copied, executable = copied_files(plan)
    names += [COPIED, f"{COPIED}/**"] if copied else []
    # Builders read the Dockerfile even if it is ignored.
    files[".dockerignore"] = dockerignore([name for name in names if name != "Dockerfile"])
    rendered = Rendered(
        files=dict(sorted((files | copied).items())),
        build_image=str(values["build_image"]),
        final_image=str(values["final_image"]),
        syntax=syntax,
        executable=executable,
        locked=lock is not None,
    )
    if refuse:
        lint.refuse_unsafe(rendered)
    return rendered
