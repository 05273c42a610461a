"""The runners by name, and which one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.ground.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from envkit.ground.progress import Reporter
    from envkit.image.reference import FileReference
    from envkit.run.model import Runner

NAMES = ("docker", "podman", "bubblewrap", "proot", "host")
_OF_ENGINE = {"docker": "docker", "buildkit": "docker", "podman": "podman", "embedded": "bubblewrap"}
_HINTS = {
    "docker": "systemctl start docker   # or: apt-get install docker.io",
    "podman": "apt-get install podman",
}
_ENGINES = ("podman", "docker")  # that can load an image from a file, the better one first
_OF_FILES = ("bubblewrap", *_ENGINES, "proot")  # runners of images that are files, the strongest first


def make(name: str) -> Runner:
    """The runner of a name.

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

        return BubblewrapRunner()
    if name == "proot":
        from envkit.run.proot import ProotRunner  # noqa: PLC0415

        return ProotRunner()
    if name == "host":
        from envkit.run.host import HostRunner  # noqa: PLC0415

        return HostRunner()
    raise _unknown(name)


def _unknown(name: str) -> UsageError:
    return UsageError(f"{name!r:.80} is not a runner", hint=f"use one of auto, {', '.join(NAMES)}")


def choose(name: str, reporter: Reporter, *, engine: str | None = None) -> Runner:
    """The runner of a name; `auto` is the one of the `engine` that built the image, else the first that works.

    Raises:
        EnvironmentProblem: none works here; the details say why for each.
        UsageError: the runner is unknown.
    """
    if name != "auto":
        return make(name)
    if engine is not None and engine in _OF_ENGINE:
        return make(_OF_ENGINE[engine])
    reasons: list[str] = []
    for candidate in _HINTS:
        runner = make(candidate)
        reason = runner.probe()
        if reason is None:
            reporter.note(f"runner: {candidate}" + (f" ({'; '.join(reasons)})" if reasons else ""))
            return runner
        reasons.append(f"{candidate}: {reason}")
    raise EnvironmentProblem(
        "no container engine answers here, so no image can be run",
        hint=_HINTS["docker"],
        details=tuple(reasons),
    )


def choose_for(
    image: str,
    name: str,
    reporter: Reporter,
    *,
    engine: str | None = None,
    ca_bundle: str | None = None,
    built: bool = False,
    until: ExitStack | None = None,
) -> tuple[Runner, str]:
    """The runner for an image, and what the image is called there; `name` and `engine` as for `choose`.

    `oci:DIR`, `docker-archive:FILE` and `registry:HOST/NAME:TAG` are bubblewrap's. Where it does not work they are
    loaded into podman or docker, as also when one of these is asked for by name. Where no engine answers either, proot
    runs what this command has just built (`built`) or what a kept record names; any other image only when proot is
    asked for by name, because it isolates weakly. `ca_bundle` is a PEM file of the authorities that registries are to
    be trusted by. What podman loads of a file is removed when `until` closes; without it, it stays.

    Raises:
        EngineError: an engine refuses the image.
        EnvironmentProblem: none works here; the details say why for each.
        UsageError: the runner is unknown, the one asked for cannot read the image, or the name is empty.
    """
    from envkit.image.reference import is_remote, parse_file, parse_remote  # noqa: PLC0415

    if not image.strip():
        raise UsageError("the image name is empty", hint="envkit verify NAME:TAG")
    file = parse_file(image)
    if file is None and not is_remote(image) and engine is None:
        image = stored(image, name)
        file = parse_file(image)
    if (file is None and not is_remote(image)) or name == "host":
        return choose(name, reporter, engine=engine), image
    if name not in (*NAMES, "auto"):
        raise _unknown(name)
    remote = None if file is not None else parse_remote(image)
    reasons: list[str] = []
    for candidate in _OF_FILES if name == "auto" else (name,):
        runner = _for_files(candidate, reporter, ca_bundle)
        reason = runner.probe() or _unfit(runner, image, file, name, built=built)
        if reason is not None:
            reasons.append(f"{candidate}: {reason}")
            continue
        if candidate == "proot" and name != "auto" and not (built or _recorded(runner, image)):
            reporter.note(f"warning: proot isolates weakly, and no record here is of {file or image}")
        if reasons or runner.isolation.level != "strong":
            reporter.note(f"runner: {candidate}" + (f" ({'; '.join(reasons)})" if reasons else ""))
        if candidate not in _ENGINES:
            return runner, image
        from envkit.run.rootless.handover import hand_over, pull  # noqa: PLC0415

        if remote is not None:
            return runner, pull(remote, candidate, reporter)
        assert file is not None
        return runner, hand_over(file, candidate, reporter, until=until)
    raise _none(f"nothing can be run in {file or image}", reasons, building=built)


def stored(image: str, name: str = "auto") -> str:
    """Return `oci:DIR` for an image that the embedded engine built under this name, where no other engine can mean it.

    The same commands then work with an engine and without one. `image` is a name as an engine knows it, `name` the
    runner as for `choose`. Every other image is returned as it is: an engine that answers decides what its names mean.
    """
    from envkit.ground.paths import state_dir  # noqa: PLC0415
    from envkit.ground.state import own_layout  # noqa: PLC0415
    from envkit.image.reference import LAYOUT  # noqa: PLC0415

    layout = own_layout(state_dir(), image)
    if name not in ("auto", "bubblewrap", "proot") or not (layout / "index.json").is_file():
        return image
    if name == "auto" and any(make(runner).probe() is None for runner in _HINTS):
        return image
    return f"{LAYOUT}:{layout}"


def is_for_files(image: str) -> bool:
    """Whether an image is a file or in a registry, rather than in an engine's storage."""
    from envkit.image.reference import is_remote, parse_file  # noqa: PLC0415

    return is_remote(image) or parse_file(image) is not None


def check_for_files(name: str, *, building: bool) -> None:
    """Refuse images that are files where no runner of this name works, before there is one.

    Raises:
        EnvironmentProblem: none works here; the details say why for each.
        UsageError: the runner is unknown.
    """
    reasons: list[str] = []
    for candidate in _OF_FILES if name == "auto" else (name,):
        reason = make(candidate).probe()
        if reason is None:
            return
        reasons.append(f"{candidate}: {reason}")
    so = "what is built cannot be verified here" if building else "nothing can be run here"
    raise _none(so, reasons, building=building)


def _for_files(name: str, reporter: Reporter, ca_bundle: str | None) -> Runner:
    if name == "bubblewrap":
        from envkit.run.bubblewrap import BubblewrapRunner  # noqa: PLC0415

        return BubblewrapRunner(reporter, ca_bundle=ca_bundle)
    if name == "proot":
        from envkit.run.proot import ProotRunner  # noqa: PLC0415

        return ProotRunner(reporter, ca_bundle=ca_bundle)
    return make(name)


def _unfit(runner: Runner, image: str, file: FileReference | None, asked: str, *, built: bool) -> str | None:
    """Why a runner that works is not taken under `auto`; None: it is taken."""
    from envkit.image.reference import LAYOUT  # noqa: PLC0415

    if asked == "auto" and runner.name == "docker" and file is not None and file.kind == LAYOUT:
        return f"cannot read {file.kind}:DIR"
    if asked == "auto" and runner.isolation.level != "strong" and not (built or _recorded(runner, image)):
        return "works here, but isolates weakly, and no record here is of this image (--runner proot uses it anyway)"
    return None


def _recorded(runner: Runner, image: str) -> bool:
    """Whether a kept record judges the image of a runner of files."""
    from envkit.ground.paths import state_dir  # noqa: PLC0415
    from envkit.ground.state import records_of  # noqa: PLC0415
    from envkit.run.proot import ProotRunner  # noqa: PLC0415

    return isinstance(runner, ProotRunner) and any(records_of(state_dir(), (runner.identify(image),)))


def _none(so: str, reasons: Sequence[str], *, building: bool) -> EnvironmentProblem:
    from envkit.run import remedies  # noqa: PLC0415

    return EnvironmentProblem(
        f"{reasons[0]}, so {so}", hint=remedies.hint(building=building), details=tuple(reasons[1:])
    )
