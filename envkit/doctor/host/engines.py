"""The engines and runners on this machine, detected as builds and runs detect them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.doctor.trees import items
from envkit.engines.model import Probe

# Commands that need no engine, and commands by what they need.
_ALWAYS = ("init", "resolve", "lock", "render", "export", "install")
_STRONG = ("docker", "podman", "bubblewrap")
_SESSIONS = (*_STRONG, "proot")  # runners of run, shell and watch
WORKS, MISSING = "commands that work", "commands that do not"
"""Names of facts."""
_ANY = "Any one of these is enough:"


def section(
    builders: Mapping[str, Probe],
    runners: Mapping[str, str | None],
    docker: Mapping[str, Any],
    options: Callable[[], Sequence[str]] = tuple,
) -> Section:
    """Summarize the engines and runners, and which commands work with them.

    Args:
        builders: the probe of each engine.
        runners: for each runner None, or why it does not work.
        docker: the JSON object of `docker info`, empty without an engine.
        options: returns what would make a runner work here; any one of them is enough.
    """
    works, missing = commands(builders, runners)
    facts = [(f"builds: {name}", probe.detail) for name, probe in builders.items()]
    facts += [(f"runs: {name}", reason or "works") for name, reason in runners.items()]
    facts += [(WORKS, ", ".join(works))] + ([(MISSING, "; ".join(missing))] if missing else [])
    return Section(
        id="engines",
        title="Engines",
        facts=tuple(facts),
        findings=(*_of_builders(builders), *_of_runners(runners, options), *_of_docker(docker)),
    )


def commands(builders: Mapping[str, Probe], runners: Mapping[str, str | None]) -> tuple[list[str], list[str]]:
    """Return the commands that work here, and those that do not, with what they need."""
    works, missing = list(_ALWAYS), []
    running = [name for name, reason in runners.items() if reason is None]
    if any(probe.available for probe in builders.values()):
        works.append("build" if running else "build --no-verify")
    else:
        missing.append("build: no engine")
    if running:
        works.append(f"verify ({', '.join(running)})")
    else:
        missing.append("verify: no runner")
    sessions = [name for name in running if name in _SESSIONS]
    if sessions:
        works.append(f"run, shell and watch of images ({', '.join(sessions)})")
    else:
        missing.append(f"run, shell and watch of images: they need {', '.join(_SESSIONS[:-1])} or {_SESSIONS[-1]}")
    return works, missing


def _of_builders(builders: Mapping[str, Probe]) -> Iterator[Finding]:
    if not any(probe.available for probe in builders.values()):
        hints = tuple(dict.fromkeys(probe.hint for probe in builders.values() if probe.hint))
        yield Finding(
            id="nothing-builds", severity=Severity.ERROR, blocks=True,
            title="no engine on this machine can build images",
            evidence=tuple(Evidence(text=f"{probe.name}: {probe.detail}") for probe in builders.values()),
            fix=_alternatives(hints),
        )  # fmt: skip


def _of_runners(runners: Mapping[str, str | None], options: Callable[[], Sequence[str]]) -> Iterator[Finding]:
    working = [name for name, reason in runners.items() if reason is None]
    evidence = tuple(Evidence(text=f"{name}: {reason}") for name, reason in runners.items() if reason is not None)
    if not working:
        yield Finding(
            id="nothing-runs", severity=Severity.ERROR, blocks=True,
            title="no runner on this machine can run an image, so no image can be verified",
            evidence=evidence, fix=_alternatives(options()),
            distinguish="Images can be built here and verified on another machine: envkit build --no-verify",
        )  # fmt: skip
    elif not set(working) & set(_STRONG):
        yield Finding(
            id="weak-isolation", severity=Severity.INFO,
            title=f"only {', '.join(working)} works here, which isolates images weakly",
            evidence=evidence, fix=_alternatives([one for one in options() if "proot" not in one]),
        )  # fmt: skip


def _alternatives(options: Sequence[str]) -> tuple[str, ...]:
    """Return what to do, with a first line if there is a choice."""
    return (_ANY, *options) if len(options) > 1 else tuple(options)


def _of_docker(tree: Mapping[str, Any]) -> Iterator[Finding]:
    if tree.get("Driver") == "vfs":
        yield Finding(
            id="docker-vfs", severity=Severity.WARN, title="Docker stores images with vfs, a full copy for each layer",
            evidence=(Evidence(text=f"storage driver vfs in {tree.get('DockerRootDir')}"),),
            fix=("Use overlay2 on a local file system; inside containers fuse-overlayfs.",),
            sources=("https://docs.docker.com/engine/storage/drivers/vfs-driver/",),
        )  # fmt: skip
    for warning in items(tree.get("Warnings")):
        if isinstance(warning, str) and ("memory limit" in warning or "cpu" in warning.lower()):
            yield Finding(
                id="docker-limits", severity=Severity.INFO, title="Docker cannot enforce some limits here",
                evidence=(Evidence(text=warning[:300]),),
                cause="The kernel's control groups here lack the needed controller.",
            )  # fmt: skip
