"""Build with the Docker engine's classic builder through its SDK. Images are identified by the engine's image ID."""

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

from envkit.engines import classic, journal
from envkit.engines.address import PATIENCE_S, docker_address, greet, refusal
from envkit.engines.failures import EngineInfo, engine_lost, translate
from envkit.engines.model import Job, LocalImage, Probe
from envkit.engines.stream import Stream
from envkit.ground import identity
from envkit.ground.errors import RAISE_TIMEOUT, EngineError, EnvironmentProblem, EnvkitError, TimeLimitError, UsageError
from envkit.image.name import split_tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from envkit.engines.log import BuildLog
    from envkit.ground.progress import Reporter

# What the SDK raises: its own errors, and those of its HTTP library, which it does not translate.
FOREIGN = (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
# The SDK raises these while connecting if the client's configuration file has unexpected content.
_ODD_CONFIGURATION = (ValueError, AttributeError, TypeError, KeyError)
_PATIENCE_S = 60  # for an ordinary request to an engine under load
_REGISTRY_PATIENCE_S = 30  # for a request to a registry, which the engine makes
_IMPORT_PATIENCE_S = 600  # the engine sends nothing while it unpacks gigabytes


class DockerEngine:
    """The engine at an address. Every request uses its own connection."""

    name = "docker"
    syntax = "classic"

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

    def info(self) -> EngineInfo:
        """Return the engine's name and storage folder."""
        try:
            with _connect(self.address) as client:
                return EngineInfo(engine=self.name, storage=client.info().get("DockerRootDir"))
        # Only messages need it, often those of an error that this one must not hide.
        except (EnvironmentProblem, *FOREIGN):
            return EngineInfo(engine=self.name)

    def make(self, context: bytes, job: Job, log: BuildLog, reporter: Reporter) -> str:
        """Build with the classic builder; see `Engine`."""
        if job.secrets:
            raise UsageError(
                "the docker engine's classic builder does not support build secrets", hint="--engine buildkit"
            )
        info, doing = self.info(), f"the build of {job.name}"
        with journal.Journal(job.state, self.name) as notes:
            events = classic.BuildEvents(log, reporter, notes.container)
            began = time.time()
            try:
                self._follow(context, job, events)
            except TimeoutError:
                raise TimeLimitError(
                    f"{doing} reached its time limit of {job.timeout_s:g} s at {events.where()}",
                    hint=RAISE_TIMEOUT,
                    details=log.details(),
                ) from None
            except docker.errors.APIError as error:
                raise translate(error.explanation or str(error), doing, info, log.details()) from error
            except FOREIGN as error:
                raise engine_lost(doing, info, log.details()) from error
            finally:
                if not events.image:
                    self._remove(notes.containers)
            if events.error is not None:
                raise self._failure(events, doing, info, log, began)
            if not events.image:
                raise engine_lost(doing, info, log.details())
            return events.image

    def digest(self, reference: str) -> str:
        """Return the digest of a reference in its registry; see `Engine`."""
        doing = f"looking up {reference}"
        try:
            with _connect(self.address, patience_s=_REGISTRY_PATIENCE_S) as client:
                digest = client.inspect_distribution(reference)["Descriptor"]["digest"]  # type: ignore[no-untyped-call]
        except docker.errors.APIError as error:
            raise translate(error.explanation or str(error), doing, self.info()) from error
        except requests.Timeout as error:
            raise EnvironmentProblem(
                f"{doing}: the registry did not answer within {_REGISTRY_PATIENCE_S} s",
                hint="set a mirror (ENVKIT_REGISTRY=host:port), or use --base bootstrap:debian/bookworm",
            ) from error
        except (*FOREIGN, KeyError, TypeError) as error:
            raise engine_lost(doing, self.info()) from error
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
            raise engine_lost(f"looking up {reference}", EngineInfo(engine=self.name)) from error
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
        repository, tag = split_tag(reference)
        changes = [f"ENV {key}={value}" for key, value in env.items()] + ['CMD ["bash"]']
        try:
            with _connect(self.address, patience_s=_IMPORT_PATIENCE_S) as client:
                output = client.import_image_from_file(str(tar), repository=repository, tag=tag, changes=changes)
        except docker.errors.APIError as error:
            raise translate(error.explanation or str(error), doing, self.info()) from error
        except FOREIGN as error:
            raise engine_lost(doing, self.info()) from error
        image = self.local(reference)
        # The SDK returns the engine's JSON stream as text, and the status is 200 even if the import fails.
        if image is None or '"error"' in output:
            raise translate(output, doing, self.info())
        return image

    def load(self, archive: Iterable[bytes]) -> None:
        """Load images from a stream in the format of `docker save`.

        Raises:
            EngineError: the engine refuses the archive.
            EnvironmentProblem: its disk is full, or the connection was lost.
        """
        doing = "loading an image"
        try:
            with _connect(self.address, patience_s=_IMPORT_PATIENCE_S) as client:
                # requests sends a generator in chunks; other iterables it may encode as a form.
                for event in client.load_image(piece for piece in archive):  # type: ignore[no-untyped-call]
                    if "error" in event:
                        raise translate(str(event["error"]), doing, self.info())
        except docker.errors.APIError as error:
            raise translate(error.explanation or str(error), doing, self.info()) from error
        except FOREIGN as error:
            raise engine_lost(doing, self.info()) from error

    def tag(self, image: str, reference: str) -> None:
        """Name an image; see `Engine`."""
        repository, tag = split_tag(reference)
        try:
            with _connect(self.address) as client:
                client.tag(image, repository, tag or "latest", force=True)
        except docker.errors.APIError as error:
            raise translate(error.explanation or str(error), f"tagging {reference}", self.info()) from error
        except FOREIGN as error:
            raise engine_lost(f"tagging {reference}", self.info()) from error

    def has_bridge(self) -> bool:
        """Return whether the engine has a bridge network."""
        try:
            with _connect(self.address) as client:
                return bool(client.networks(filters={"driver": "bridge"}))
        except FOREIGN as error:
            raise engine_lost("listing networks", self.info()) from error

    def sweep(self, state: Path) -> int:
        """Remove what killed runs left; see `Engine`."""
        try:
            with _connect(self.address) as client:
                labeled = client.containers(all=True, filters={"label": [identity.PREFIX]})
        except FOREIGN as error:
            raise engine_lost("listing containers", self.info()) from error
        dead = [row["Id"] for row in labeled if identity.abandoned(row.get("Labels") or {})]
        notes = journal.abandoned(state, self.name)
        removed = self._remove((*dead, *(ident for note in notes for ident in note.containers)))
        for note in notes:
            journal.forget(note)
        return removed

    def _follow(self, context: bytes, job: Job, events: classic.BuildEvents) -> None:
        """Send the context and read events until the build ends, the time limit is reached or a signal arrives."""
        client = _connect(self.address)
        answers: list[requests.Response] = []
        # The SDK returns only the decoded events. The hook gets the response, which `cut` needs.
        client.hooks["response"].append(lambda answer, **_: answers.append(answer))

        def source() -> Iterator[dict[str, Any]]:
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
                timeout=None,  # a step may be silent for long; `Stream` has the limit
            )

        def cut() -> None:
            # The engine cancels a classic build when the connection for its output is closed.
            for answer in answers:
                _shut(answer)

        with client, Stream(source, cut, job.timeout_s) as stream:
            for event in stream:
                events.read(event)
            events.finish()

    def _failure(
        self, events: classic.BuildEvents, doing: str, info: EngineInfo, log: BuildLog, began: float
    ) -> EnvkitError:
        """Return the error for a build that the engine reported as failed."""
        killed = events.exit_code == classic.KILLED
        if killed and self._saw_oom(events.container, began):
            return EngineError(
                f"{doing}: {events.where()} was killed because it ran out of memory",
                hint="give the engine's machine more memory, or install fewer packages at once",
                details=log.details(),
            )
        if killed and not self._keeps_running():
            return engine_lost(doing, info, log.details())
        return events.failure(doing, info)

    def _saw_oom(self, container: str | None, began: float) -> bool:
        """Return whether the kernel killed a process in this container for lack of memory, which only events show."""
        if container is None:
            return False
        try:
            with _connect(self.address) as client:
                # With `until`, the stream ends. One second later than now, because times are whole seconds.
                events = client.events(
                    since=int(began),
                    until=int(time.time()) + 1,
                    filters={"event": "oom", "type": "container"},
                    decode=True,
                )
                # The builder prints the first 12 digits of the ID, events have all of it.
                return any(str(event.get("id", "")).startswith(container) for event in events)
        except (EnvkitError, *FOREIGN):
            return False

    def _keeps_running(self) -> bool:
        """Return whether the engine keeps answering. When it shuts down, it kills build steps first (exit code 137)."""
        # For three seconds, because an engine that shuts down still answers at first.
        for _ in range(6):
            try:
                with _connect(self.address) as client:
                    client.ping()
            except (EnvkitError, *FOREIGN):
                return False
            time.sleep(0.5)
        return True

    def _remove(self, containers: tuple[str, ...]) -> int:
        """Remove containers, wait until they are gone, and return how many. What is left, the next run removes."""
        removed = 0
        for ident in containers:
            # 40 tries: ten seconds for a removal that is in progress. After a success, the next try finds nothing.
            for _ in range(40):
                try:
                    with _connect(self.address) as client:
                        client.remove_container(ident, force=True, v=True)
                except docker.errors.NotFound:
                    break
                except docker.errors.APIError:  # a removal is already in progress
                    time.sleep(0.25)
                except (EnvkitError, *FOREIGN):
                    return removed
                else:
                    removed += 1
        return removed


def _connect(address: str, *, patience_s: int | None = None) -> docker.APIClient:
    """Return a connection whose requests have this timeout; the first one, in `greet`, has a shorter one."""
    tls = docker.utils.kwargs_from_env().get("tls", False)

    def opened(version: str) -> docker.APIClient:
        return docker.APIClient(base_url=address, tls=tls, version=version, timeout=int(PATIENCE_S))

    client = greet(opened, address, (*FOREIGN, *_ODD_CONFIGURATION))
    client.timeout = _PATIENCE_S if patience_s is None else patience_s
    return client


def _shut(answer: requests.Response) -> None:
    """Wake a thread that is blocked reading this response, and close its connection."""
    # Shutdown fails if the response is at its end, and urllib3 before 2.3 has no shutdown. Then only close it.
    with contextlib.suppress(AttributeError, ValueError, OSError, RuntimeError):
        answer.raw.shutdown()
    answer.close()
