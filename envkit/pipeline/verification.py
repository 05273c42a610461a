"""Verify an image on this machine: choose its runner, plan and options in the same way for every caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble.builders import EMBEDDED
from envkit.ground import paths
from envkit.ground.errors import UsageError
from envkit.ground.state import RECORDS, read_last
from envkit.ground.store import Flights
from envkit.image.name import ImageName, InEngine, OnHost, OutputName
from envkit.pipeline.machine import gpus_here, memory_of, name_of, runner_of
from envkit.plan.store import load_plan
from envkit.run import runners
from envkit.verify.compare.launches import Subject
from envkit.verify.driver import Options, verify_image
from envkit.verify.selftest import distrusted
from envkit.verify.static import PLAN_LABEL, image_facts

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.plan.model import BuildPlan
    from envkit.run.model import Runner
    from envkit.verify.record import Record

_DEVICES = Path("/dev")
_KEPT = 50  # records


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


def check_runner(settings: Settings, *, engine: str | None = None, target: OutputName | None = None) -> None:
    """Refuse to build an image that cannot be verified here; called before any work.

    Args:
        settings: of this run.
        engine: the engine that builds; None = not known yet. Engines with a daemon also run what they build.
        target: the output of the build.

    Raises:
        EnvironmentProblem: no runner here can run what the embedded engine builds.
        UsageError: the runner is `host` or unknown.
    """
    how = settings.get("runner") or "auto"
    # `--output docker-daemon` loads the image into Docker, which then runs it.
    if engine == EMBEDDED and how != "host" and not isinstance(target, InEngine):
        runners.check_for_files(how, building=True)
    if how == "host":
        origin = settings.values["runner"].origin
        raise UsageError(
            f"runner 'host' ({origin}) verifies a Python of this machine, not an image",
            hint="ENVKIT_RUNNER=auto envkit build, or envkit build --no-verify",
        )


def plan_by_label(state: Path, runner: Runner, image: ImageName) -> BuildPlan | None:
    """Return the plan that was saved when the image was built here, by the digest in the image's label."""
    digest = image_facts(runner.inspect(image)).labels.get(PLAN_LABEL)
    return load_plan(state, digest) if digest else None
