"""`envkit run --print`: the session of an image for another machine or tool, without a runner here.

A file, a registry and the state folder say what an image needs, so no engine has to answer. The line describes its
target: whether it has a GPU follows from the image, and ports are not looked for on this machine.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground import paths
from envkit.ground.errors import UsageError
from envkit.ground.settings import ca_file
from envkit.ground.state import read_last
from envkit.image.name import PREFIX, ImageName, InArchive, InEngine, InLayout, InRegistry
from envkit.image.opening import described, open_image
from envkit.pipeline import running
from envkit.pipeline.machine import name_of
from envkit.registry.remote import Remote
from envkit.run import runners
from envkit.run.attach import CLIENTS, line
from envkit.run.command_line import apptainer_words, compose_service, engine_words, srun_words

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.ground.state import LastBuilt
    from envkit.image.opening import Opened
    from envkit.run.session import Session

HERE = "here"
"""The form of the runner that would run the session on this machine."""
FORMS = ("docker", "podman", "compose", "srun", "apptainer")
# What decides the network of a session: envkit on the node, Apptainer and bubblewrap share the machine's.
_LIKE = {"docker": "docker", "compose": "docker", "podman": "podman", "srun": "bubblewrap", "apptainer": "bubblewrap"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A session as text."""

    words: tuple[str, ...] = ()  # of a command line
    text: str = ""  # of a file
    note: str | None = None  # what has to be done first


def printed(
    request: running.RunRequest,
    form: str,
    settings: Settings,
    reporter: Reporter,
    *,
    attested: str | None = None,
    last: LastBuilt | None = None,
) -> Printed:
    """Return the session of a request in one of `FORMS`, or as `HERE`; `attested` and `last` as for `running.ready`.

    Raises:
        EngineError: the image does not exist.
        EnvironmentProblem: only an engine can know the image, and none answers.
        UsageError: the runner has no command line, or an option is invalid.
    """
    image = request.image
    if image is None:
        last = last or read_last(paths.state_dir(), command="run")
        image = name_of(last)
    opened = None if form == HERE or _answers(form) else _opened(image, settings, reporter)
    if opened is None and form in CLIENTS and not _answers(form):
        raise runners.nowhere(image, ())
    if opened is None:
        return _with_runner(request, form, settings, reporter, attested=attested, last=last)
    facts = described(opened.image, 0)
    name, note = _name(image, form, opened, last)
    known = running.is_known(opened.id, attested)
    if form == "apptainer":  # which gives no container a network of its own unless it is asked to
        request = replace(request, network=request.network or "host")
    runner = runners.make(_LIKE[form])
    ready = running.decide(request, runner, facts, name=name, known=known, elsewhere=True)
    return replace(_text(ready.session, form, here=False), note=note)


def _answers(form: str) -> bool:
    """Return whether the form is that of an engine that answers here, which then has the image or loads it."""
    return form in CLIENTS and runners.make(form).probe() is None


def _located(image: ImageName) -> ImageName:
    """Return the name of an image without an engine: of a layout that was built here, or in the registry it names."""
    found = runners.located(image)
    return (found.published() if isinstance(found, InEngine) else None) or found


def _opened(image: ImageName, settings: Settings, reporter: Reporter) -> Opened | None:
    """Open an image that is not in an engine; None for one that only an engine can know."""
    ca_bundle = ca_file(settings.get("ca_bundle"))
    return open_image(_located(image), Remote(paths.cache_dir(), ca_bundle=ca_bundle), reporter)


def _with_runner(
    request: running.RunRequest,
    form: str,
    settings: Settings,
    reporter: Reporter,
    *,
    attested: str | None,
    last: LastBuilt | None,
) -> Printed:
    # Without a stack that closes: an image that podman loads stays, because the user runs the line later.
    elsewhere = form not in (HERE, *CLIENTS)
    ready = running.ready(request, settings, reporter, None, attested=attested, last=last, elsewhere=elsewhere)
    engine = ready.runner.name
    if form == "srun":
        return _text(ready.session, form, here=True)
    if engine not in CLIENTS:
        raise UsageError(
            f"{ready.session.image.typed} runs with {engine}, which has no command line of its own",
            hint=f"--print {', '.join(FORMS[:-1])} or {FORMS[-1]}",
        )
    if form == "apptainer" and engine != "docker":
        name = ready.session.image.typed
        raise UsageError(
            f"Apptainer cannot read {name} from {engine}",
            hint=f"{engine} save --format docker-archive -o image.tar {name}, "
            "then envkit run docker-archive:image.tar --print apptainer",
        )
    return _text(ready.session, engine if form == HERE else form, here=True)


def _text(session: Session, form: str, *, here: bool) -> Printed:
    if form == "srun":
        return Printed(words=tuple(srun_words(session, _typed(session))))
    if form == "apptainer":
        return Printed(words=tuple(apptainer_words(session)))
    if form == "compose":
        return Printed(text=compose_service(session, "docker"))
    # Limits and the user namespace are those of this machine only if the engine is here.
    words = line(session, form) if here else engine_words(session, form, rootless=session.user not in (None, "0:0"))
    return Printed(words=tuple(words))


def _name(image: ImageName, form: str, opened: Opened, last: LastBuilt | None) -> tuple[ImageName, str | None]:
    """Return the image's name on the target, and what has to be done there first."""
    match _located(image):
        case (InLayout() | InArchive()) as found:
            # Without `..`, and a link stays one.
            file = replace(found, path=Path(os.path.abspath(found.path)), digest=None, typed="")  # noqa: PTH100
        case InRegistry() as found:
            return replace(found, typed=f"{PREFIX}{found.name}"), None
        case found:
            return found, None
    if form not in ("docker", "compose"):
        return file, None  # all of these read the file
    tags = (*(last.tags if last is not None else ()), *opened.image.tags)
    own = (image.name,) if isinstance(image, InEngine) else ()
    name = InEngine(name=next(iter((*own, *tags)), f"{Path(file.path.name).stem.lower() or 'image'}:latest"))
    if isinstance(file, InArchive) and opened.image.tags:
        return name, f"first: docker load -i {shlex.quote(str(file.path))}"
    return name, f"first: skopeo copy {shlex.quote(str(file))} docker-daemon:{name}"


def _typed(session: Session) -> list[str]:
    """Return the options of `envkit run` for the same session on another machine with the same folders."""
    words = [f"--shm-size={session.shm_mb}MiB", *([f"--gpus={session.gpus}"] if session.gpus else ["--gpus=none"])]
    words += [f"--network={session.network}"] if session.network != "default" else []
    workspace = [mount for mount in session.mounts if not mount.read_only]
    words += [f"--workspace={workspace[0].source}"] if workspace else ["--workspace=none"]
    words += [f"--data={mount.source}:{mount.target}" for mount in session.mounts if mount.read_only]
    words += [f"--port={port}" for port in session.ports]
    return [*words, *(f"--env={key}={value}" for key, value in session.env)]
