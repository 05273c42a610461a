"""The Docker engine through its SDK: the classic builder, streamed. Every image is named by the id the engine gave."""

from __future__ import annotations

import contextlib
import io
import time
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import docker.utils
import requests
import urllib3.exceptions

from envkit.build import classic, journal
from envkit.build.model import Job, LocalImage, Probe, split_tag
from envkit.engine.address import PATIENCE_S, docker_address, greet, refusal
from envkit.engine.failures import Place, engine_lost, translate
from envkit.engine.stream import Stream
from envkit.ground import identity
from envkit.ground.errors import RAISE_TIMEOUT, EngineError, EnvironmentProblem, EnvkitError, TimeLimitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from envkit.build.log import BuildLog
    from envkit.ground.progress import Reporter

# What the SDK raises: its own errors, and those of its HTTP library, which it lets through.
FOREIGN = (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
# A client's configuration file that is not what the SDK expects shows as one of these while connecting.
_ODD_CONFIGURATION = (ValueError, AttributeError, TypeError, KeyError)
_PATIENCE_S = 60  # of an ordinary question: an engine under load may think for a while
_REGISTRY_PATIENCE_S = 30  # one question to a registry, which the engine asks for us
_IMPORT_PATIENCE_S = 600  # the engine is silent while it unpacks gigabytes


class DockerEngine:
    """The engine at an address; every question has a connection of its own, closed when it is answered."""

    name = "docker"
    flavour = "classic"

    def __init__(self, address: str | None = None) -> None:
        self.address = address or docker_address()

    def probe(self) -> Probe:
        """Return whether the engine answers; see `Engine`."""
        try:
            with _connect(self.address) as client:
                version = client.version()["Version"]
        except EnvkitError as error:
            return Probe(name=self.name, available=False, detail=error.message, hint=error.hint)
        except FOREIGN as error:
            problem = refusal(self.address, error)
            return Probe(name=self.name, available=False, detail=problem.message, hint=problem.hint)
        return Probe(name=self.name, available=True, detail=f"Docker {version} at {self.address}")

    def place(self) -> Place:
        """Return the engine's name and storage folder."""
        try:
            with _connect(self.address) as client:
                return Place(engine=self.name, storage=client.info().get("DockerRootDir"))
        except (EnvironmentProblem, *FOREIGN):
            return Place(engine=self.name)

    def make(self, context: bytes, job: Job, log: BuildLog, reporter: Reporter) -> str:
        """Build with the classic builder; see `Engine`."""
        if job.secrets:
            raise UsageError("the docker engine's classic builder has no build secrets", hint="--engine buildkit")
        place, doing = self.place(), f"the build of {job.name}"
        with journal.Journal(job.state, self.name) as notes:
            narration = classic.Narration(log, reporter, notes.container)
            began = time.time()
            try:
                self._follow(context, job, narration)
            except TimeoutError:
                raise TimeLimitError(
                    f"{doing} reached its time limit of {job.timeout_s:g} s at {narration.where()}",
                    hint=RAISE_TIMEOUT,
                    details=log.details(),
                ) from None
            except docker.errors.APIError as error:
                raise translate(error.explanation or str(error), doing, place, log.details()) from error
            except FOREIGN as error:
                raise engine_lost(doing, place, log.details()) from error
            finally:
                if not narration.image:
                    self._remove(notes.containers)
            if narration.error is not None:
                raise self._failed(narration, doing, place, log, began)
            if not narration.image:
                raise engine_lost(doing, place, log.details())
            return narration.image

    def digest(self, reference: str) -> str:
        """Return the digest of a reference in its registry; see `Engine`."""
        doing = f"looking up {reference}"
        try:
            with _connect(self.address, patience_s=_REGISTRY_PATIENCE_S) as client:
                digest = client.inspect_distribution(reference)["Descriptor"]["digest"]  # type: ignore[no-untyped-call]
        except docker.errors.APIError as error:
            raise translate(error.explanation or str(error), doing, self.place()) from error
        except requests.Timeout as error:
            raise EnvironmentProblem(
                f"{doing}: the registry did not answer within {_REGISTRY_PATIENCE_S} s",
                hint="set a mirror (ENVKIT_REGISTRY=host:port), or use --base bootstrap:debian/bookworm",
            ) from error
        except (*FOREIGN, KeyError, TypeError) as error:
            raise engine_lost(doing, self.place()) from error
        return str(digest)

    def local(self, reference: str) -> LocalImage | None:
        """Return an image of the engine's storage; see `Engine`."""
        try:
            with _connect(self.address) as client:
                tree = client.inspect_image(reference)  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            return None
        except docker.errors.APIError as error:
            raise EngineError(
                f"{reference!r:.200} is not an image name: {error.explanation or error}", hint="write NAME:TAG"
            ) from error
        except FOREIGN as error:
            raise engine_lost(f"looking up {reference}", Place(engine=self.name)) from error
        return LocalImage(
            id=tree["Id"],
            digests=tuple(tree.get("RepoDigests") or ()),
            size=tree.get("Size"),
            labels=(tree.get("Config") or {}).get("Labels") or {},
            created=tree.get("Created", ""),
        )

    def import_base(self, tar: Path, reference: str, env: Mapping[str, str]) -> LocalImage:
        """Import a root file system; see `Engine`."""
        doing = f"importing {reference}"
        repository, _, tag = reference.rpartition(":")
        changes = [f"ENV {key}={value}" for key, value in env.items()] + ['CMD ["bash"]']
        try:
            with _connect(self.address, patience_s=_IMPORT_PATIENCE_S) as client:
                said = client.import_image_from_file(str(tar), repository=repository, tag=tag, changes=changes)
        except docker.errors.APIError as error:
            raise translate(error.explanation or str(error), doing, self.place()) from error
        except FOREIGN as error:
            raise engine_lost(doing, self.place()) from error
        image = self.local(reference)
        if image is None or '"error"' in said:
            raise translate(said, doing, self.place())
        return image

    def load(self, archive: Iterable[bytes]) -> None:
        """Take images from an archive in the format of `docker save`, streamed.

        Raises:
            EngineError: the engine refuses the archive.
            EnvironmentProblem: its disk is full, or it went away.
        """
        doing = "loading an image"
        try:
            with _connect(self.address, patience_s=_IMPORT_PATIENCE_S) as client:
                for event in client.load_image(piece for piece in archive):  # type: ignore[no-untyped-call]
                    if "error" in event:
                        raise translate(str(event["error"]), doing, self.place())
        except docker.errors.APIError as error:
            raise translate(error.explanation or str(error), doing, self.place()) from error
        except FOREIGN as error:
            raise engine_lost(doing, self.place()) from error

    def tag(self, image: str, reference: str) -> None:
        """Name an image; see `Engine`."""
        repository, tag = split_tag(reference)
        try:
            with _connect(self.address) as client:
                client.tag(image, repository, tag, force=True)
        except docker.errors.APIError as error:
            raise translate(error.explanation or str(error), f"tagging {reference}", self.place()) from error
        except FOREIGN as error:
            raise engine_lost(f"tagging {reference}", self.place()) from error

    def has_bridge(self) -> bool:
        """Return whether the engine has a bridge network."""
        try:
            with _connect(self.address) as client:
                return bool(client.networks(filters={"driver": "bridge"}))
        except FOREIGN as error:
            raise engine_lost("listing networks", self.place()) from error

    def sweep(self, state: Path) -> int:
        """Remove what dead runs left; see `Engine`."""
        try:
            with _connect(self.address) as client:
                labeled = client.containers(all=True, filters={"label": [identity.PREFIX]})
        except FOREIGN as error:
            raise engine_lost("listing containers", self.place()) from error
        dead = [row["Id"] for row in labeled if identity.abandoned(row.get("Labels") or {})]
        notes = journal.abandoned(state, self.name)
        removed = self._remove((*dead, *(ident for note in notes for ident in note.containers)))
        for note in notes:
            journal.forget(note)
        return removed

    def _follow(self, context: bytes, job: Job, narration: classic.Narration) -> None:
        """Send the context and listen until the engine is done, the limit is reached or a signal comes."""
        client = _connect(self.address)
        answers: list[requests.Response] = []
        client.hooks["response"].append(lambda answer, **_: answers.append(answer))

        def events() -> Iterator[dict[str, Any]]:
            return client.build(
                fileobj=io.BytesIO(context),
                custom_context=True,
                decode=True,
                rm=True,
                forcerm=True,
                pull=False,
                nocache=job.no_cache,
                network_mode=job.network,
                labels=dict(job.labels) or None,
                timeout=None,
            )

        def cut() -> None:
            # The engine cancels a classic build when the connection that carries its output is gone.
            for answer in answers:
                _shut(answer)

        with client, Stream(events, cut, job.timeout_s) as stream:
            for event in stream:
                narration.hear(event)
            narration.finish()

    def _failed(
        self, narration: classic.Narration, doing: str, place: Place, log: BuildLog, began: float
    ) -> EnvkitError:
        """Return the error for a build that the engine itself reported as failed."""
        killed = narration.exit_code == classic.KILLED
        if killed and self._saw_oom(narration.container, began):
            return EngineError(
                f"{doing}: {narration.where()} was killed for want of memory",
                hint="give the engine's machine more memory, or install fewer packages at once",
                details=log.details(),
            )
        if killed and not self._stays():
            return engine_lost(doing, place, log.details())
        return narration.failure(doing, place)

    def _saw_oom(self, container: str | None, began: float) -> bool:
        """Return whether the kernel killed something in this container for want of memory: only an event tells."""
        if container is None:
            return False
        try:
            with _connect(self.address) as client:
                events = client.events(
                    since=int(began),
                    until=int(time.time()) + 1,
                    filters={"event": "oom", "type": "container"},
                    decode=True,
                )
                return any(str(event.get("id", "")).startswith(container) for event in events)
        except (EnvkitError, *FOREIGN):
            return False

    def _stays(self) -> bool:
        """Return whether the engine goes on answering: one that shuts down kills its build steps first (137)."""
        for _ in range(6):
            try:
                with _connect(self.address) as client:
                    client.ping()
            except (EnvkitError, *FOREIGN):
                return False
            time.sleep(0.5)
        return True

    def _remove(self, containers: tuple[str, ...]) -> int:
        """Remove containers and wait until they are gone; an engine that is gone keeps them for the next run."""
        removed = 0
        for ident in containers:
            for _ in range(40):
                try:
                    with _connect(self.address) as client:
                        client.remove_container(ident, force=True, v=True)
                except docker.errors.NotFound:
                    break
                except docker.errors.APIError:  # its removal is already going on
                    time.sleep(0.25)
                except (EnvkitError, *FOREIGN):
                    return removed
                else:
                    removed += 1
        return removed


def _connect(address: str, *, patience_s: int | None = None) -> docker.APIClient:
    """Return a connection of which every call has this patience, while the first one must be answered at once."""
    environment = docker.utils.kwargs_from_env()

    def opened(version: str) -> docker.APIClient:
        return docker.APIClient(
            base_url=environment.get("base_url") or address,
            tls=environment.get("tls", False),
            version=version,
            timeout=int(PATIENCE_S),
        )

    client = greet(opened, address, (*FOREIGN, *_ODD_CONFIGURATION))
    client.timeout = _PATIENCE_S if patience_s is None else patience_s
    return client


def _shut(answer: requests.Response) -> None:
    """Wake a thread that is blocked in reading this answer, and close its connection."""
    # It may be at its end already, or the HTTP library be older than 2.3: then closing has to do.
    with contextlib.suppress(AttributeError, ValueError, OSError, RuntimeError):
        answer.raw.shutdown()
    answer.close()
