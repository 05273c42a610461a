"""This machine's part of running an image: the settings, the runner, the GPUs and the memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import UsageError
from envkit.ground.settings import ca_file, load
from envkit.ground.sizes import parse_size
from envkit.image.name import ImageName, InArchive, InEngine, InLayout, InRegistry, image_name
from envkit.run import runners

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import ExitStack

    from envkit.engines.model import BuiltImage
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.ground.state import LastBuilt
    from envkit.plan.model import BuildPlan
    from envkit.run.model import Runner

_DEVICES = Path("/dev")


def settings_here(runner: str | None, memory: str | None = None) -> Settings:
    """Load the settings in the current folder; `runner` and `memory` are the values of flags."""
    return load({"runner": runner, "run_memory": memory}, os.environ, Path.cwd())


def name_of(last: LastBuilt) -> ImageName:
    """Return the image that the state folder keeps.

    Raises:
        UsageError: it is not the name of an image.
    """
    return image_name(last.image)


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
