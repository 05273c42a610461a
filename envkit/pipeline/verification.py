"""How an image is verified on this machine, for every caller: its runner, its plan and its options."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble.builders import EMBEDDED
from envkit.ground import paths, settings
from envkit.ground.errors import UsageError
from envkit.ground.sizes import parse_size
from envkit.run import runners
from envkit.verify.compare.launches import Subject
from envkit.verify.driver import Options, verify_image
from envkit.verify.here import gpus_here, plan_by_label
from envkit.verify.selftest import distrusted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envkit.build.model import BuiltImage
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.plan.model import BuildPlan
    from envkit.verify.record import Record

_DAEMON = "docker-daemon"  # an --output: the engine that takes the image runs it


def settings_here(runner: str | None, memory: str | None = None) -> Settings:
    """Every setting of a run in this folder; `runner` and `memory` are the flags."""
    return settings.load({"runner": runner, "run_memory": memory}, os.environ, Path.cwd())


def subject_of(
    image: str,
    here: Settings,
    reporter: Reporter,
    options: Options | None = None,
    *,
    name: str | None = None,
    plan: BuildPlan | None = None,
    engine: str | None = None,
    gpus: str | None = None,
    tier: str | None = None,
    built: bool = False,
) -> Subject:
    """Return the image with its runner, its plan and the options of its verification on this machine.

    This is the one place that applies the settings `runner`, `run_memory` and `ca_bundle` and what the self-test found.

    Args:
        image: as the user or the builder names it.
        here: the settings of this run.
        reporter: hears which runner was chosen.
        options: what does not depend on this machine; `gpus`, `tier`, `memory_mb` and `distrusted` are replaced.
        name: for messages and tables. Default: the image as its runner calls it.
        plan: what the image is held to. Default: the plan that was kept when it was built here.
        engine: the engine that built the image, where known.
        gpus: as --gpus has it. Default: all, where there are any and the plan uses them.
        tier: Default: the plan's tier, `quick` without a plan.
        built: this command has just built the image, so a runner that isolates weakly may run it.

    Raises:
        EngineError: an engine refuses the image.
        SurroundingsError: no runner works here.
        UsageError: the runner does not exist or cannot read the image, or the bundle cannot be read.
    """
    state = paths.state_dir()
    how, ca_bundle = here.get("runner") or "auto", settings.ca_file(here.get("ca_bundle"))
    runner, target = runners.choose_for(image, how, reporter, engine=engine, ca_bundle=ca_bundle, built=built)
    plan = plan or plan_by_label(state, runner, target)
    options = replace(
        options or Options(),
        gpus=gpus_here(gpus, plan),
        tier=tier or (plan.smoke.tier if plan else "quick"),
        memory_mb=memory_of(here),
        distrusted=distrusted(state),
    )
    return Subject(name=name or target, image=target, runner=runner, options=options, plan=plan)


def memory_of(here: Settings) -> int | None:
    """Return the setting `run_memory` in MiB, None where it is unset.

    Raises:
        UsageError: it is not a size, or below 1 MiB.
    """
    text = here.get("run_memory")
    if text is None:
        return None
    size = parse_size(text, f"run_memory ({here.values['run_memory'].origin})") >> 20
    if size < 1:
        raise UsageError(f"run_memory: {text!r:.40} is below 1 MiB", hint="ENVKIT_RUN_MEMORY=16GB envkit verify IMAGE")
    return size


def verify(subject: Subject, reporter: Reporter) -> Record:
    """Verify what `subject_of` returned; errors as in `verify_image`."""
    return verify_image(subject.image, subject.plan, subject.runner, reporter, subject.options)


def verify_built(plan: BuildPlan, built: BuiltImage, here: Settings, reporter: Reporter, *, allow_cpu: bool) -> Record:
    """Verify an image that was just built, as `envkit verify` would right after it."""
    image, engine = whereabouts(built)
    options = Options(allow_cpu=allow_cpu, argv=tuple(sys.argv))
    return verify(subject_of(image, here, reporter, options, plan=plan, engine=engine, built=True), reporter)


def check_runner(here: Settings, *, engine: str | None = None, output: str | None = None) -> None:
    """Refuse to build for a runner that cannot run the image; called before any work.

    Args:
        here: the settings of this run.
        engine: that builds; one with a daemon has answered, and runs what it builds. None: not known yet.
        output: where the image goes, as --output has it.

    Raises:
        SurroundingsError: no runner works here for what the embedded engine builds.
        UsageError: the setting is `host`, or names no runner.
    """
    how = here.get("runner") or "auto"
    if engine == EMBEDDED and how != "host" and (output or "").partition(":")[0] != _DAEMON:
        runners.check_for_files(how, building=True)
    if how == "host":
        origin = here.values["runner"].origin
        raise UsageError(
            f"runner: 'host' ({origin}) runs a Python of this machine, so it cannot verify the image that is built",
            hint="ENVKIT_RUNNER=auto envkit build, or envkit build --no-verify",
        )


def check_images(images: Iterable[str], here: Settings) -> None:
    """Refuse images that are files, or in a registry, where nothing can run any: called before one is fetched.

    Raises:
        SurroundingsError: no runner works here for them.
        UsageError: there is no such runner.
    """
    how = here.get("runner") or "auto"
    if how != "host" and any(runners.is_for_files(image) for image in images):
        runners.check_for_files(how, building=False)


def whereabouts(built: BuiltImage) -> tuple[str, str]:
    """The name by which the image can be run, and the engine in whose storage it is."""
    if built.place is None:
        return built.id, built.engine
    return built.place, built.engine if ":" in built.place.removeprefix("sha256:") else "docker"
