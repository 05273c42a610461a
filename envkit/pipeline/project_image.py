"""`envkit run FOLDER`: the image of a project for this machine, built and verified once and then found again.

It is found by everything that it is made from: the plan, which has the digests of the copied files, the lock beside the
project, and envkit's own version. Nothing is asked of an index for that, so the second run starts at once.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit import __version__
from envkit.ground import nvidia, paths
from envkit.ground.errors import ConflictError, EngineError, EnvironmentProblem, UsageError
from envkit.ground.progress import Silent
from envkit.ground.state import LastBuilt, read_project, write_project
from envkit.lock.model import FILE
from envkit.lock.store import digest_of, read_lock
from envkit.pipeline.machine import name_of, runner_of
from envkit.pipeline.resolving import AUTO, asked, fields_here
from envkit.plan.store import load_plan
from envkit.project import definition
from envkit.run import runners

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.image.name import ImageName
    from envkit.pipeline.resolving import Asked
    from envkit.plan.model import BuildPlan
    from envkit.verify.record import Record

TIER = "quick"
USABLE = (0, 5)
"""Exit codes of a verification after which the image is used; with 5 nothing failed, and some could not be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectImage:
    """The image of a project."""

    image: LastBuilt
    plan: BuildPlan | None  # None: the image was built earlier, and its plan is no longer kept
    record: Record | None  # of the verification; None: the image was built earlier

    @property
    def is_usable(self) -> bool:
        """Whether its verification found no failure. Images that were found again have passed theirs."""
        return self.record is None or self.record.exit_code in USABLE


def is_project(name: str) -> bool:
    """Return whether an IMAGE names a definition or a project on this machine: `.`, `./train`, `train/`, `image.yaml`.

    A folder needs a dot or a slash at its start or its end, because `train` may be an image as well. A file needs the
    name of a definition or of a project's file: `train.tar` is an archive.
    """
    path = Path(name)
    if path.is_dir():
        return name.startswith((".", "/")) or name.endswith("/")
    return path.is_file() and (path.suffix in (".yaml", ".yml") or definition.is_project(name))


def is_image(name: ImageName, settings: Settings) -> bool:
    """Return whether the runner of the settings has an image of a name, which a definition may have as well."""
    try:
        runner, target = runner_of(name, settings, Silent(), engine=None, built=False)
        runner.inspect(target)
    except (EngineError, EnvironmentProblem):
        return False
    return True


def folder_of(name: str) -> Path:
    """Return the folder of a project: where its lock is, and what a command in it finds as its workspace."""
    path = Path(name)
    return path if path.is_dir() else path.parent


def image_of(
    name: str,
    facts: Facts,
    settings: Settings,
    reporter: Reporter,
    planned: Callable[[BuildPlan, str], None] = lambda _plan, _target: None,
) -> ProjectImage:
    """Return the image of a project for this machine; build and verify it if nothing here was made from the same.

    Args:
        name: a definition or the name of one that comes with envkit, or a project's file or folder.
        facts: to resolve against.
        settings: of this machine.
        reporter: receives the steps.
        planned: called with the plan and what it was made for, before an image is built.

    Raises:
        EnvkitError: the project cannot be read, no versions are compatible, or the build failed.
    """
    folder, state = folder_of(name), paths.state_dir()
    said: list[str] = []
    target, whole = _asked_here(name, facts, said.append)
    plan = whole.plan()
    key = _key(plan, folder / FILE)
    found = read_project(state, key)
    if found is not None and _is_there(found, settings, reporter):
        return ProjectImage(image=found, plan=load_plan(state, found.plan), record=None)
    # What builds an image takes longer to import than to find one.
    from envkit.engines.builder import with_default_tag  # noqa: PLC0415
    from envkit.engines.model import BuildOptions  # noqa: PLC0415
    from envkit.pipeline.building import BuildRequest, Watcher, build, engine_name, last_of, options_here  # noqa: PLC0415
    from envkit.pipeline.deadline import Deadline  # noqa: PLC0415
    from envkit.pipeline.publish import Push  # noqa: PLC0415

    for line in said:
        reporter.note(line)
    planned(plan, target)
    options = BuildOptions()
    request = BuildRequest(
        plan=plan,
        asked=whole,
        options=with_default_tag(plan, options_here(options, settings, plan.name)),
        settings=settings,
        engine=engine_name(settings, options),
        folder=folder,
        tier=TIER,
        allow_cpu=True,
    )
    no_limit = Deadline(None, lambda: "")
    result = build(request, Push(settings=settings), reporter, no_limit, Watcher())
    made = ProjectImage(image=last_of(result.plan, result.image), plan=result.plan, record=result.record)
    if made.is_usable:
        with contextlib.suppress(OSError):  # the next run builds it again, from cached layers
            write_project(state, key, made.image)
    return made


def _asked_here(name: str, facts: Facts, note: Callable[[str], None]) -> tuple[str, Asked]:
    """Return for what the project is asked, in words, and the request for it.

    With a driver and a GPU, they limit the choice. Without them it is the CPU, unless the project itself needs CUDA.
    """
    own = nvidia.read()
    try:
        own.need_version()
        own.need_gpus()
    except EnvironmentProblem:
        cpu = _request(name, facts, note, {"cpu": True})
        try:
            cpu.plan()
        except (ConflictError, UsageError):  # if the project itself has the error, it is raised below
            return "this machine has no GPU, and the project needs CUDA", _request(name, facts, note, {})
        return "for the CPU, because this machine has no NVIDIA driver or GPU", cpu
    return f"for this machine: {own}", _request(name, facts, note, {"driver": AUTO, "gpu": (AUTO,)})


def _request(name: str, facts: Facts, note: Callable[[str], None], given: dict[str, Any]) -> Asked:
    return asked(name, fields_here(given, facts, note, here=False), facts, note)


def _key(plan: BuildPlan, lock: Path) -> str:
    parts = [__version__, plan.digest]
    if lock.is_file():
        parts.append(digest_of(read_lock(lock)))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_there(found: LastBuilt, settings: Settings, reporter: Reporter) -> bool:
    """Return whether an image still is what was built: engines and users remove images, and places are overwritten."""
    try:
        runner, target = runner_of(name_of(found), settings, reporter, engine=found.engine, built=True)
        # What runs the image inspects its layers, so here its configuration is enough.
        return runners.ident_of(target, runner) == found.id
    except (EngineError, EnvironmentProblem):
        return False
