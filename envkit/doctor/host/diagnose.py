"""Run the sections, each in its own thread with a time limit, so that none can block the diagnosis."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from envkit.assemble.builders import EMBEDDED
from envkit.assemble.engine import EmbeddedBuilder
from envkit.doctor.host import conda, disks, engines, gpu, libraries, limits, network, system, torch, wiring
from envkit.doctor.host.view import View
from envkit.doctor.model import Diagnosis, Evidence, Finding, Section, Severity, counts
from envkit.doctor.trees import mapping
from envkit.engines.by_name import ENGINES
from envkit.engines.model import Engine, Probe
from envkit.facts.load import load
from envkit.ground import host as host_facts
from envkit.ground.engine_names import RUNNERS
from envkit.ground.errors import EnvironmentProblem, EnvkitError
from envkit.ground.paths import cache_dir
from envkit.ground.progress import Reporter
from envkit.run import remedies
from envkit.run import runners as run_runners

LIMIT_S = 30.0
"""Seconds after which a section is abandoned. Every program that it runs has a shorter limit of its own."""
_RUNNERS = tuple(name for name in RUNNERS if name != "host")  # the host runs no image

_PROBE_S = LIMIT_S - 5  # so that the section can still report the engines that did answer
T = TypeVar("T")


def diagnose_host(
    view: View, reporter: Reporter, *, state: Path, docker_cli: str = "docker", python: str | None = None
) -> Diagnosis:
    """Diagnose this machine in at most `LIMIT_S` plus ten seconds; no root, GPU or engine is needed.

    The exit code is 9 if some commands cannot work: no engine builds, no runner runs images, or envkit's folders are
    full or not writable. Everything else, GPU errors included, is 0, because images for other machines can still be
    resolved and built here.
    """
    # Asked once, because three sections need it.
    docker_info = _docker_info(view)
    facts = load()
    host = host_facts.read()
    tasks: dict[str, tuple[str, Callable[[], Section]]] = {
        "gpu": ("GPU and driver", lambda: gpu.section(view, facts)),
        "torch": ("torch", lambda: torch.section(view, facts, python)),
        "wiring": ("GPUs in containers", lambda: wiring.section(view, docker_info)),
        "engines": ("Engines", lambda: engines_section(docker_cli, state, docker_info)),
        "limits": ("Limits", lambda: limits.section(view)),
        "disks": ("Disks", lambda: disks.section(data_folders(state, docker_info))),
        "system": ("System", lambda: system.section(view, host, uid=os.geteuid(), user=_user())),
        "conda": ("conda", lambda: conda.section(view)),
        "libraries": ("Libraries and variables", lambda: libraries.section(view)),
        "network": ("Proxies and certificates", lambda: network.section(view)),
    }
    reporter.step("check this machine")
    return conclude(run_sections(tasks, LIMIT_S))


def conclude(sections: tuple[Section, ...]) -> Diagnosis:
    """Combine the sections into a diagnosis with an exit code and a one-sentence conclusion."""
    findings = [finding for section in sections for finding in section.findings]
    blocked = [finding for finding in findings if finding.blocks]
    number = counts(findings)
    if blocked:
        works = [value for section in sections for name, value in section.facts if name == engines.WORKS]
        conclusion = f"{blocked[0].title}" + (f"; these work: {works[0]}" if works else "; other commands may work")
    elif number["error"]:
        first = next(finding for finding in findings if finding.severity is Severity.ERROR)
        conclusion = f"envkit works here, but GPU programs may not: {first.title}"
    elif number["warn"]:
        first = next(finding for finding in findings if finding.severity is Severity.WARN)
        conclusion = f"{first.title}; envkit works here"
    else:
        conclusion = "no problems found"
    code = EnvironmentProblem.exit_code if blocked else 0
    return Diagnosis(subject="host", name="this machine", sections=sections, exit_code=code, conclusion=conclusion)


def run_sections(tasks: Mapping[str, tuple[str, Callable[[], Section]]], limit_s: float) -> tuple[Section, ...]:
    """Run all sections in parallel; a section that fails or takes too long is replaced by a warning."""

    def safe(name: str, title: str, task: Callable[[], Section]) -> Section:
        try:
            return task()
        # ValueError: a program has printed something that cannot be parsed.
        except (EnvkitError, OSError, ValueError) as error:
            return _unanswered(name, title, str(error))

    answers = run_parallel({name: partial(safe, name, title, task) for name, (title, task) in tasks.items()}, limit_s)
    late = f"no answer within {limit_s:g} s"
    return tuple(answers.get(name) or _unanswered(name, title, late) for name, (title, _) in tasks.items())


def run_parallel(tasks: Mapping[str, Callable[[], T]], limit_s: float) -> dict[str, T]:
    """Run functions in parallel and return their results; those that take longer than `limit_s` are left out.

    The threads are daemons: one that hangs in the kernel (a dead NFS server) does not keep the process alive.
    """
    answers: dict[str, T] = {}

    def run(name: str, task: Callable[[], T]) -> None:
        answers[name] = task()

    threads = [threading.Thread(target=run, args=(name, task), daemon=True) for name, task in tasks.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # A copy: late threads still add to the original.
    return dict(answers)


def engines_section(docker_cli: str, state: Path, docker: Mapping[str, Any]) -> Section:
    """Probe all engines and runners in parallel; `docker` is the JSON object of `docker info`, empty without one."""
    probes: dict[str, Callable[[], Probe | str]] = {
        f"builds {name}": partial(_probe, make, docker_cli) for name, make in ENGINES.items()
    }
    probes[f"builds {EMBEDDED}"] = EmbeddedBuilder(state=state).probe
    probes |= {f"runs {name}": partial(_reason, name) for name in _RUNNERS}
    answers = run_parallel(probes, _PROBE_S)
    late = f"no answer within {_PROBE_S:g} s"
    builders: dict[str, Probe] = {}
    runners: dict[str, str | None] = {}
    for label in probes:
        kind, _, name = label.partition(" ")
        answer = answers.get(label, late)
        if kind == "builds":
            silent = Probe(name=name, available=False, detail=f"{name}: {late}")
            builders[name] = answer if isinstance(answer, Probe) else silent
        else:
            runners[name] = None if answer == "" else str(answer)
    return engines.section(builders, runners, docker, partial(_options, runners))


def _options(runners: Mapping[str, str | None]) -> list[str]:
    """Return what would make a runner of images work here: what is installed already is not in it."""
    found = remedies.options(building=False)
    if remedies.is_contained():  # an engine within a container needs more than to be installed
        return found
    has_apt = shutil.which("apt-get") is not None
    if "docker" in runners:
        is_installed = shutil.which("dockerd") is not None
        found += ["systemctl start docker"] if is_installed else ["apt-get install docker.io"] if has_apt else []
    if "podman" in runners and shutil.which("podman") is None and has_apt:
        found.append("apt-get install podman")
    return found


def _docker_info(view: View) -> dict[str, Any]:
    """Return the JSON object of `docker info`; empty if Docker does not answer."""
    answer = view.ask(["docker", "info", "--format", "{{json .}}"])
    try:
        return mapping(json.loads(answer.out)) if answer is not None and answer.code == 0 else {}
    except (ValueError, RecursionError):
        return {}


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _probe(make: Callable[[str], Engine], docker_cli: str) -> Probe:
    return make(docker_cli).probe()


def _reason(name: str) -> str:
    """Return why a runner does not work, or "" if it does."""
    return run_runners.make(name).probe() or ""


def data_folders(state: Path, docker: Mapping[str, Any]) -> dict[str, Path]:
    """Return the folders to check: envkit's own, temporary files, and Docker's root if it is on this machine."""
    folders = {"state": state, "cache": cache_dir(), "temporary files": Path(os.environ.get("TMPDIR") or "/tmp")}  # noqa: S108 - the system's own
    root = Path(str(docker.get("DockerRootDir", "")))
    if root.is_absolute() and root.exists():
        folders["Docker"] = root
    return folders


def _unanswered(name: str, title: str, why: str) -> Section:
    finding = Finding(
        id=f"{name}-unanswered",
        severity=Severity.WARN,
        title=f"{title}: could not be determined",
        evidence=(Evidence(text=why[:400]),),
    )
    return Section(id=name, title=title, findings=(finding,))
