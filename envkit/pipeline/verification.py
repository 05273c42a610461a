"""Verify an image on this machine: choose its runner, plan and options in the same way for every caller."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble.builders import EMBEDDED
from envkit.engines.single_flight import Flights
from envkit.ground import paths
from envkit.ground.errors import UsageError
from envkit.ground.settings import ca_file, load
from envkit.ground.sizes import parse_size
from envkit.ground.state import RECORDS, read_last
from envkit.image.name import ImageName, InArchive, InEngine, InLayout, InRegistry, OnHost, image_name, output_name
from envkit.plan.store import load_plan
from envkit.run import runners
from envkit.verify.compare.launches import Subject
from envkit.verify.driver import Options, verify_image
from envkit.verify.selftest import distrusted
from envkit.verify.static import PLAN_LABEL, image_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envkit.engines.model import BuiltImage
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.ground.state import LastBuilt
    from envkit.plan.model import BuildPlan
    from envkit.run.model import Runner
    from envkit.verify.record import Record

_DEVICES = Path("/dev")
_KEPT = 50  # records


def settings_here(runner: str | None, memory: str | None = None) -> Settings:
    """Load the settings in the current folder; `runner` and `memory` are the values of flags."""
    return load({"runner": runner, "run_memory": memory}, os.environ, Path.cwd())


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """One image to verify."""

    image: ImageName
    options: Options = field(default_factory=Options)  # `gpus`, `tier`, `memory_mb` and `distrusted` are replaced
    name: str | None = None  # for messages and tables; None = the runner's name of the image
    plan: BuildPlan | None = None  # None = the plan saved when the image was built here
    engine: str | None = None  # that built the image, if known
    gpus: str | None = None  # the value of --gpus; None = all, if there are any and the plan uses them
    tier: str | None = None  # None = the plan's tier, `quick` without a plan
    built: bool = False  # built by this command, so it is trusted enough for a runner with weak isolation


def subject_of(
    request: VerifyRequest, settings: Settings, reporter: Reporter, until: ExitStack | None = None
) -> Subject:
    """Return the image with its runner, its plan and the options of its verification on this machine.

    Only this function applies the setting `run_memory` and the self-test's result. An image that podman loads from a
    file is removed from podman's storage when `until` closes; with None it stays there.

    Raises:
        EngineError: an engine refuses the image.
        EnvironmentProblem: no runner works here.
        UsageError: the runner does not exist or cannot read the image, or the CA bundle cannot be read.
    """
    state = paths.state_dir()
    runner, target = runner_of(
        request.image, settings, reporter, engine=request.engine, built=request.built, until=until
    )
    plan = request.plan or plan_by_label(state, runner, target)
    options = replace(
        request.options,
        gpus=gpus_here(request.gpus, plan),
        tier=request.tier or (plan.smoke.tier if plan else "quick"),
        memory_mb=memory_of(settings),
        distrusted=distrusted(state),
    )
    return Subject(name=request.name or target.typed, image=target, runner=runner, options=options, plan=plan)


def named_or_last(
    image: ImageName | None, plan: BuildPlan | None, settings: Settings
) -> tuple[ImageName, str | None, BuildPlan | None]:
    """Return the image to verify, its engine if known, and its plan if given or saved.

    Without a name, it is the image built last, or this machine's Python if the runner is `host`.

    Raises:
        UsageError: no image is named and none was built here.
    """
    if image is not None:
        return image, None, plan
    if settings.get("runner") == "host":
        return OnHost(), None, plan
    state = paths.state_dir()
    last = read_last(state)
    return name_of(last), last.engine, plan or load_plan(state, last.plan)


def name_of(last: LastBuilt) -> ImageName:
    """Return the image that the state folder keeps.

    Raises:
        UsageError: it is not the name of an image.
    """
    return image_name(last.image)


def check_gpu_rules(*, allow_cpu: bool, require_gpu: bool) -> None:
    """Refuse --allow-cpu together with --require-gpu.

    Raises:
        UsageError: both are given.
    """
    if allow_cpu and require_gpu:
        raise UsageError("--allow-cpu and --require-gpu contradict each other", hint="give one of them")


def keep_record(record: Record, state: Path) -> str | None:
    """Save the record in the state folder and return its path; None if the folder cannot be written."""
    folder = state / RECORDS
    started = str(record.tree["run"]["started"]).replace(":", "").replace("-", "")
    path = folder / f"{started}-{str(record.tree['run']['id'])[:8]}.json"
    try:
        record.write(path)
        # The names begin with the start time, so this order is by age.
        for old in sorted(folder.glob("*.json"))[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return str(path)


def runner_of(
    image: ImageName,
    settings: Settings,
    reporter: Reporter,
    *,
    engine: str | None,
    built: bool,
    until: ExitStack | None = None,
) -> tuple[Runner, ImageName]:
    """Return the runner for an image, and the image's name for that runner; arguments as for `choose_for`.

    Only this function applies the settings `runner` and `ca_bundle`.

    Raises:
        EngineError, EnvironmentProblem, UsageError: as `choose_for`.
    """
    return runners.choose_for(
        image,
        settings.get("runner") or "auto",
        reporter,
        engine=engine,
        ca_bundle=ca_file(settings.get("ca_bundle")),
        built=built,
        until=until,
    )


def memory_of(settings: Settings) -> int | None:
    """Return the setting `run_memory` in MiB; None if it is not set.

    Raises:
        UsageError: it is not a size, or below 1 MiB.
    """
    text = settings.get("run_memory")
    if text is None:
        return None
    size = parse_size(text, f"run_memory ({settings.values['run_memory'].origin})") >> 20
    if size < 1:
        raise UsageError(f"run_memory: {text!r:.40} is below 1 MiB", hint="ENVKIT_RUN_MEMORY=16GB envkit verify IMAGE")
    return size


def verify(subject: Subject, reporter: Reporter) -> Record:
    """Verify the result of `subject_of`; errors as in `verify_image`."""
    return verify_image(subject.image, subject.plan, subject.runner, reporter, subject.options)


@contextmanager
def verification_lock(state: Path, reporter: Reporter) -> Iterator[None]:
    """Hold this machine's lock for verification: two at once would distort each other's timings and GPU memory."""
    folder = state / "turns"
    folder.mkdir(parents=True, exist_ok=True)
    flights = Flights(folder)
    with ExitStack() as stack:
        # First without waiting, so that the step is shown only if there is a wait.
        if not stack.enter_context(flights.free(["verify"])):
            reporter.step("wait for the verification of another image")
            stack.enter_context(flights.all(["verify"], lambda: None))
        yield


def check_runner(settings: Settings, *, engine: str | None = None, output: str | None = None) -> None:
    """Refuse to build an image that cannot be verified here; called before any work.

    Args:
        settings: of this run.
        engine: the engine that builds; None = not known yet. Engines with a daemon also run what they build.
        output: the value of --output.

    Raises:
        EnvironmentProblem: no runner here can run what the embedded engine builds.
        UsageError: the runner is `host` or unknown.
    """
    how = settings.get("runner") or "auto"
    # `--output docker-daemon` loads the image into Docker, which then runs it.
    is_loaded = output is not None and isinstance(output_name(output), InEngine)
    if engine == EMBEDDED and how != "host" and not is_loaded:
        runners.check_for_files(how, building=True)
    if how == "host":
        origin = settings.values["runner"].origin
        raise UsageError(
            f"runner 'host' ({origin}) verifies a Python of this machine, not an image",
            hint="ENVKIT_RUNNER=auto envkit build, or envkit build --no-verify",
        )


def check_images(images: Iterable[ImageName], settings: Settings) -> None:
    """Refuse images in files or registries if no runner here can run them; called before one is fetched.

    Raises:
        EnvironmentProblem: no runner works here for such images.
        UsageError: the runner is unknown.
    """
    how = settings.get("runner") or "auto"
    if how != "host" and any(isinstance(image, InRegistry | InLayout | InArchive) for image in images):
        runners.check_for_files(how, building=False)


def name_and_engine(built: BuiltImage) -> tuple[ImageName, str]:
    """Return the name by which the image can be run, and the engine that stores it."""
    name = image_name(built.place or built.id)
    # `--output docker-daemon` loads the image into Docker, where its place is only an ID.
    is_loaded = built.place is not None and isinstance(name, InEngine) and name.id is not None
    return name, "docker" if is_loaded else built.engine


def gpus_here(given: str | None, plan: BuildPlan | None, devices: Path = _DEVICES) -> str | None:
    """Return the GPUs to request from a runner. Default: all GPUs of this machine, unless the image is for CPUs."""
    if given is not None:
        return None if given == "none" else given
    if plan is not None and plan.resolution.cuda is None:
        return None
    # The GPUs are /dev/nvidia0, nvidia1 and so on, not nvidiactl or nvidia-uvm. WSL2 has /dev/dxg instead.
    here = any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()
    return "all" if here else None


def plan_by_label(state: Path, runner: Runner, image: ImageName) -> BuildPlan | None:
    """Return the plan that was saved when the image was built here, by the digest in the image's label."""
    digest = image_facts(runner.inspect(image)).labels.get(PLAN_LABEL)
    return load_plan(state, digest) if digest else None
