"""The runners by name, and which one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.errors import SurroundingsError, UsageError

if TYPE_CHECKING:
    from envkit.progress import Reporter
    from envkit.run.model import Runner

NAMES = ("docker", "podman", "bubblewrap", "proot", "host")
_OF_ENGINE = {"docker": "docker", "buildkit": "docker", "podman": "podman", "embedded": "bubblewrap"}
_HINTS = {
    "docker": "systemctl start docker   # or: apt-get install docker.io",
    "podman": "apt-get install podman",
}
_READ_FILES = ("podman", "docker")  # engines that can load an image from a file, the better one first


def make(name: str) -> Runner:
    """The runner of a name.

    Raises:
        UsageError: there is none.
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
    return UsageError(f"{name!r:.80} is not a runner", hint=f"one of auto, {', '.join(NAMES)}")


def choose(name: str, reporter: Reporter, *, engine: str | None = None) -> Runner:
    """The runner of a name; `auto` is the one of the `engine` that built the image, else the first that works.

    Raises:
        SurroundingsError: none works here; the details say why for each.
        UsageError: there is no such runner.
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
    raise SurroundingsError(
        "no container engine answers here, so nothing can be run in an image",
        hint=_HINTS["docker"],
        details=tuple(reasons),
    )


def choose_for(
    image: str, name: str, reporter: Reporter, *, engine: str | None = None, ca_bundle: str | None = None
) -> tuple[Runner, str]:
    """The runner for an image, and what the image is called there; `name` and `engine` as for `choose`.

    `oci:DIR`, `docker-archive:FILE` and `registry:HOST/NAME:TAG` are bubblewrap's. Where it does not work they are
    loaded into podman or docker, as also when one of these is asked for by name. `ca_bundle` is a PEM file of the
    authorities that registries are to be trusted by.

    Raises:
        EngineError: an engine refuses the image.
        SurroundingsError: none works here; the details say why for each.
        UsageError: there is no such runner, the one asked for cannot read the image, or the name is empty.
    """
    from envkit.run.rootless.reference import LAYOUT, parse_reference  # noqa: PLC0415
    from envkit.run.rootless.remote import is_remote, parse_remote  # noqa: PLC0415

    if not image.strip():
        raise UsageError("the name of the image is empty", hint="envkit verify NAME:TAG")
    file = parse_reference(image)
    if (file is None and not is_remote(image)) or name == "host":
        return choose(name, reporter, engine=engine), image
    from envkit.run.bubblewrap import BubblewrapRunner  # noqa: PLC0415
    from envkit.run.rootless.handover import hand_over, pull  # noqa: PLC0415

    if name not in (*NAMES, "auto"):
        raise _unknown(name)
    remote = None if file is not None else parse_remote(image)
    reasons: list[str] = []
    if name in ("auto", "bubblewrap"):
        own = BubblewrapRunner(reporter, ca_bundle=ca_bundle)
        reason = own.probe()
        if reason is None:
            return own, image
        reasons.append(f"bubblewrap: {reason}")
    for candidate in _READ_FILES if name == "auto" else (name,) if name in _READ_FILES else ():
        runner = make(candidate)
        reason = runner.probe()
        if reason is not None:
            reasons.append(f"{candidate}: {reason}")
        elif name == "auto" and candidate == "docker" and file is not None and file.kind == LAYOUT:
            reasons.append(f"docker: cannot read {file.kind}:DIR")
        else:
            reporter.note(f"runner: {candidate}" + (f" ({'; '.join(reasons)})" if reasons else ""))
            if remote is not None:
                return runner, pull(remote, candidate, reporter)
            assert file is not None
            return runner, hand_over(file, candidate, reporter)
    raise SurroundingsError(
        f"{reasons[0] if reasons else name + ' cannot run it'}, so nothing can be run in {file or image}",
        hint="apt-get install bubblewrap",
        details=tuple(reasons[1:]),
    )
