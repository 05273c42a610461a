"""Choose a runner by name, or the first that works."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.engine_names import AUTO, ENGINES, RUNNERS
from envkit.ground.errors import EngineError, EnvironmentProblem, UsageError
from envkit.image.name import (
    ARCHIVE,
    LAYOUT,
    PREFIX,
    ImageName,
    InArchive,
    InEngine,
    InLayout,
    InRegistry,
    OnHost,
    OutputName,
    with_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from envkit.assemble.layer_pool import Receive
    from envkit.ground.errors import EnvkitError
    from envkit.ground.progress import Reporter
    from envkit.run.model import Runner

_HINTS = {
    "docker": "systemctl start docker   # or: apt-get install docker.io",
    "podman": "apt-get install podman",
}
_LOADING = ("podman", "docker")  # engines that can load an image from a file; podman also reads oci:DIR
_OF_FILES = ("bubblewrap", *_LOADING, "proot")  # the best first; proot isolates weakly
# The runners that `auto` tries for each kind of name, the best first.
_CANDIDATES: Mapping[type[ImageName], tuple[str, ...]] = {
    InEngine: tuple(_HINTS),
    InRegistry: _OF_FILES,
    InLayout: _OF_FILES,
    InArchive: _OF_FILES,
    OnHost: ("host",),
}
# Why `auto` passes over a runner that works. By name, `hand_over` raises an error with a hint instead.
_UNREADABLE: Mapping[tuple[type[ImageName], str], str] = {(InLayout, "docker"): f"cannot read {LAYOUT}:DIR"}


def candidates(kind: type[ImageName], wish: str) -> tuple[str, ...]:
    """Return the names of the runners to try for a kind of name, the best first; `wish` is a runner or `auto`.

    Raises:
        UsageError: there is no runner of this name.
    """
    if wish not in (AUTO, *RUNNERS):
        raise _unknown(wish)
    return _CANDIDATES[kind] if wish == AUTO else (wish,)


def make(name: str, reporter: Reporter | None = None, *, ca_bundle: str | None = None) -> Runner:
    """Return a new runner.

    Bubblewrap and proot report to `reporter` while they open images, and trust the authorities in the PEM file
    `ca_bundle` for registries.

    Raises:
        UsageError: the name is unknown.
    """
    if name == "docker":
        from envkit.run.docker import DockerRunner  # noqa: PLC0415 - the SDK takes 0.2 s to import

        return DockerRunner()
    if name == "podman":
        from envkit.run.podman import PodmanRunner  # noqa: PLC0415

        return PodmanRunner()
    if name == "bubblewrap":
        from envkit.run.bubblewrap import BubblewrapRunner  # noqa: PLC0415

        return BubblewrapRunner(reporter, ca_bundle=ca_bundle)
    if name == "proot":
        from envkit.run.proot import ProotRunner  # noqa: PLC0415

        return ProotRunner(reporter, ca_bundle=ca_bundle)
    if name == "host":
        from envkit.run.host import HostRunner  # noqa: PLC0415

        return HostRunner()
    raise _unknown(name)


def _unknown(name: str) -> UsageError:
    return UsageError(f"{name!r:.80} is not a runner", hint=f"use one of auto, {', '.join(RUNNERS)}")


def choose(name: str, reporter: Reporter, *, image: ImageName, engine: str | None = None) -> Runner:
    """Return the runner of a name; `auto` is that of the `engine` that built the image, else the first that works.

    Raises:
        EngineError: there is no image of this name, because it was not built here and no engine is installed.
        EnvironmentProblem: no engine answers that could have the image; the details give the reason for each.
        UsageError: the runner is unknown, or the name is a path without a prefix.
    """
    if name != AUTO:
        return make(name)
    if engine is not None and engine in ENGINES:
        return make(ENGINES[engine].runner)
    reasons: list[str] = []
    for candidate in candidates(InEngine, AUTO):
        runner = make(candidate)
        reason = runner.probe()
        if reason is None:
            reporter.note(f"runner: {candidate}" + (f" ({'; '.join(reasons)})" if reasons else ""))
            return runner
        reasons.append(f"{candidate}: {reason}")
    raise nowhere(image, reasons)


def nowhere(image: ImageName, reasons: Sequence[str]) -> EnvkitError:
    """Return the error for the name of an image that only an engine could have, where none answers."""
    full, name = with_prefix(image), image.typed
    if Path(name).exists():
        return UsageError(f"{name!r:.200} is a path without a prefix for the kind of image", hint=str(full))
    forms = f"{LAYOUT}:DIR, {ARCHIVE}:FILE or {PREFIX}HOST/NAME:TAG"
    if any(shutil.which(program) for program in _HINTS) or "DOCKER_HOST" in os.environ:
        return EnvironmentProblem(
            f"there is no image {name!r:.200} that envkit built here, and no engine answers that could have it",
            hint=full or f"{_HINTS['docker']}\n      or: {forms}", details=tuple(reasons),
        )  # fmt: skip
    return EngineError(
        f"there is no image {name!r:.200}: not built here, not a file, and there is no engine on this machine",
        hint=full or f"envkit build -t {name}, or name it as {forms}",
    )


def choose_for(
    image: ImageName,
    name: str,
    reporter: Reporter,
    *,
    engine: str | None = None,
    ca_bundle: str | None = None,
    built: bool = False,
    until: ExitStack | None = None,
) -> tuple[Runner, ImageName]:
    """Return the runner for an image, and the image's name there.

    Bubblewrap runs `oci:DIR`, `docker-archive:FILE` and `registry:HOST/NAME:TAG`. If it does not work here, or if
    podman or docker is requested by name, the image is loaded into that engine. If no engine answers either, proot runs
    the image. Because proot isolates weakly, it runs only images that were built here, unless it is requested by name.

    Args:
        image: the image.
        name: the runner, as for `choose`.
        reporter: receives notes.
        engine: the engine that has the image, as for `choose`.
        ca_bundle: PEM file with the authorities to trust for registries.
        built: whether this command has just built the image.
        until: an image that podman loads from a file is removed when this closes; None: it stays.

    Raises:
        EngineError: an engine refuses the image.
        EnvironmentProblem: none works here; the details give the reason for each.
        UsageError: the runner is unknown, the requested one cannot read the image, or the name is empty.
    """
    if not image.typed.strip():
        raise UsageError("the image name is empty", hint="envkit verify NAME:TAG")
    if engine is None:
        image = located(image, name)
    if name == "host" or isinstance(image, OnHost):
        return make(candidates(OnHost, name)[0]), image
    if isinstance(image, InEngine):
        return choose(name, reporter, image=image, engine=engine), image
    reasons: list[str] = []
    for candidate in candidates(type(image), name):
        runner = make(candidate, reporter, ca_bundle=ca_bundle)
        reason = runner.probe()
        is_trusted = reason is None and (runner.isolation.level == "strong" or built or _was_built(runner, image))
        if reason is None and name == AUTO:
            reason = _unsuitable(runner, image, is_trusted=is_trusted)
        if reason is not None:
            reasons.append(f"{candidate}: {reason}")
            continue
        if not is_trusted:
            reporter.note(f"warning: {candidate} isolates weakly, and {image} was not built here")
        if reasons or runner.isolation.level != "strong":
            reporter.note(f"runner: {candidate}" + (f" ({'; '.join(reasons)})" if reasons else ""))
        return runner, _loaded(image, candidate, reporter, until) if candidate in _LOADING else image
    raise _no_runner(f"{image} cannot be run", reasons, building=built)


def _loaded(
    image: InRegistry | InLayout | InArchive, engine: str, reporter: Reporter, until: ExitStack | None
) -> InEngine:
    """Load an image into an engine and return its name there."""
    from envkit.run.rootless.handover import hand_over, pull  # noqa: PLC0415

    match image:
        case InRegistry(reference=reference):
            return pull(reference, engine, reporter)
        case InLayout() | InArchive():
            return hand_over(image, engine, reporter, until=until)


def located(image: ImageName, name: str = AUTO) -> ImageName:
    """Return the layout of an image that the embedded engine built under this name; other names are returned unchanged.

    This way the same commands work with and without a container engine. If an engine answers, the name is returned
    unchanged as well, because it then refers to the engine's image. `name` is the runner, as for `choose`.
    """
    from envkit.ground.paths import state_dir  # noqa: PLC0415
    from envkit.ground.state import own_layout  # noqa: PLC0415

    if not isinstance(image, InEngine) or name not in (AUTO, "bubblewrap", "proot"):
        return image
    layout = own_layout(state_dir(), image.name)
    if not (layout / "index.json").is_file():
        return image
    if name == AUTO and any(make(runner).probe() is None for runner in _HINTS):
        return image
    return InLayout(path=layout)


def check_for_files(name: str, *, building: bool) -> None:
    """Check that a runner for images in files works here, before such an image is built.

    Raises:
        EnvironmentProblem: none works here; the details give the reason for each.
        UsageError: the runner is unknown.
    """
    reasons: list[str] = []
    for candidate in candidates(InLayout, name):
        reason = make(candidate).probe()
        if reason is None:
            return
        reasons.append(f"{candidate}: {reason}")
    consequence = "a built image cannot be verified here" if building else "no image can be run here"
    raise _no_runner(consequence, reasons, building=building)


def ident_of(image: ImageName, runner: Runner) -> str:
    """Return the ID of a runner's image, without unpacking one in a file.

    Raises:
        EngineError: the image does not exist.
        EnvironmentProblem: the engine does not answer.
    """
    from envkit.run.rootless.runner import FileRunner  # noqa: PLC0415 - as in `make`

    return runner.identify(image) if isinstance(runner, FileRunner) else str(runner.inspect(image)["id"])


def unpacking(name: str, target: OutputName | None) -> Receive | None:
    """Return what unpacks the layers of an image while they are made; None if no runner here uses them unpacked.

    Args:
        name: the runner that will verify the image, as for `choose`.
        target: the output of the build: Docker runs what is loaded into it.
    """
    if name not in (AUTO, "bubblewrap", "proot") or isinstance(target, InEngine):
        return None
    if make("bubblewrap" if name == AUTO else name).probe() is not None:
        return None
    from envkit.ground.paths import cache_dir  # noqa: PLC0415
    from envkit.run.rootless.layers import UnpackedLayers  # noqa: PLC0415

    return UnpackedLayers(cache_dir()).receiving


def _unsuitable(runner: Runner, image: ImageName, *, is_trusted: bool) -> str | None:
    """Return why `auto` passes over a runner that works; None: it is used."""
    if is_trusted:
        return _UNREADABLE.get((type(image), runner.name))
    reason = "works here, but isolates weakly, and this image was not built here"
    return f"{reason} (--runner {runner.name} uses it anyway)"


def _was_built(runner: Runner, image: ImageName) -> bool:
    """Return whether the image was built here; a verification makes no image trusted."""
    from envkit.ground.paths import state_dir  # noqa: PLC0415
    from envkit.ground.state import was_built  # noqa: PLC0415
    from envkit.run.proot import ProotRunner  # noqa: PLC0415

    return isinstance(runner, ProotRunner) and was_built(state_dir(), runner.identify(image))


def _no_runner(consequence: str, reasons: Sequence[str], *, building: bool) -> EnvironmentProblem:
    from envkit.run import remedies  # noqa: PLC0415

    return EnvironmentProblem(
        f"{reasons[0]}, so {consequence}", hint=remedies.hint(building=building), details=tuple(reasons[1:])
    )
