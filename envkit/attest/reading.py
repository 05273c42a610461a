"""A name in, what the image carries out: files, registries, engines, and the files of locks and plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from envkit.attest import packages
from envkit.attest.access import Access
from envkit.attest.content import Content, Layer, json_of, of_lock
from envkit.attest.engines import EngineImage
from envkit.ground.errors import EnvkitError, IntegrityError, UsageError
from envkit.ground.platforms import platform
from envkit.image.document import exposed_ports
from envkit.image.opening import Opened
from envkit.image.packages import LOCK, PLAN
from envkit.image.reference import REGISTRY, is_file_reference
from envkit.lock.model import SCHEMA as LOCK_SCHEMA
from envkit.lock.model import UNSEALED, Lock
from envkit.lock.reading import lock_from_json
from envkit.lock.store import digest_of, read_lock
from envkit.plan.labels import plan_labels
from envkit.plan.model import SCHEMA as PLAN_SCHEMA
from envkit.plan.model import BuildPlan
from envkit.plan.names import LABEL_PREFIX
from envkit.plan.store import load_plan, plan_from_json

PLAN_LABEL, LOCK_LABEL = f"{LABEL_PREFIX}.plan", f"{LABEL_PREFIX}.lock"
_OWN_LAYER = 8 << 20  # bytes of a registry's layer that is fetched to look for the lock in it
_MOST_FILE = 64 << 20  # bytes of an envelope, a record or a list of packages

Document = TypeVar("Document", Lock, BuildPlan)


def read_content(text: str, access: Access) -> Content:
    """What is in the image, lock or plan that a text names.

    Raises:
        EngineError: the image does not exist, or an engine or registry refuses.
        IntegrityError: its bytes are not what digests and labels promise.
        EnvironmentProblem: nothing answers that could have it.
        UsageError: the text names none, or several.
    """
    if not is_file_reference(text) and Path(text).exists():
        return _of_file(Path(text))
    opened = access.open(text)
    return _of_engine(text, access) if opened is None else _of_layers(text, opened, access)


def of_plan(plan: BuildPlan, name: str) -> Content:
    """What an image of a plan would carry, as far as the plan decides it."""
    return Content(
        name=name,
        kind="plan",
        architecture=platform(plan.resolution.platform).architecture,
        labels=plan_labels(plan),
        env=dict(plan.env),
        user=plan.user,
        workdir=plan.workdir,
        entrypoint=plan.entrypoint,
        cmd=plan.cmd,
        plan=plan,
        notes=(f"{name} is a plan: which packages it leads to is settled by a lock",),
    )


def _of_file(path: Path) -> Content:
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"an OCI layout is named oci:{path}")
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_FILE + 1)
        tree = json.loads(data) if len(data) <= _MOST_FILE else None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint=f"ls -l {path}") from error
    except (ValueError, RecursionError):
        tree = None
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if schema in (LOCK_SCHEMA, UNSEALED):
        lock = read_lock(path)
        return Content(
            name=str(path), kind="lock", architecture=platform(lock.platform).architecture, lock=lock,
            packages=of_lock(lock), packages_from="lock",
        )  # fmt: skip
    if schema == PLAN_SCHEMA:
        return of_plan(plan_from_json(tree, str(path)), str(path))
    raise UsageError(
        f"{path} is neither a lock ({LOCK_SCHEMA}) nor a plan ({PLAN_SCHEMA})",
        hint=f"an image in an archive of `docker save` is named docker-archive:{path}",
    )


def _of_layers(text: str, opened: Opened, access: Access) -> Content:
    content = Content(
        name=text,
        kind=opened.kind,
        id=opened.id,
        digest=opened.digest,
        architecture=str(opened.config.get("architecture") or "") or None,
        layers=tuple(
            Layer(diff_id=layer.diff_id, digest=layer.digest or None, size=layer.descriptor.size, made_by=layer.made_by)
            for layer in opened.layers
        ),
        config=opened.config,
        size=opened.size,
        **started(opened.image.settings),
    )
    ours = PLAN_LABEL in content.labels or LOCK_LABEL in content.labels
    at_most = None if opened.kind != REGISTRY or access.layers else _OWN_LAYER if ours else -1
    notes: list[str] = []
    locks: list[Lock] = []

    def sound(data: bytes) -> bool:
        carried = _carried(content, LOCK, data, _lock, notes)
        locks.extend([carried] if carried is not None else [])
        return carried is not None

    seen = packages.look(opened, at_most=at_most, sound=sound)
    lock = locks[0] if locks else None
    plan = _carried(content, PLAN, seen.files.get(PLAN), _plan, notes)
    content = replace(content, lock=lock, plan=plan, fetched=opened.fetched)
    valid_lock = None if seen.swept else lock  # the packages by the lock
    if valid_lock is None and seen.read < len(opened.layers):
        left = sum(opened.cost(index) for index in range(len(opened.layers)))
        why = "is not what its lock says any more" if seen.swept else "carries no lock in its small layers"
        notes.append(
            f"{text} {why}, so its packages were not read ({left / 1e6:.0f} MB of layers"
            " would have to be fetched; --layers does that)"
        )
        return replace(content, notes=tuple(notes))
    if packages.unlisted(seen.files):
        notes.append(f"{text}: its database of RPM packages cannot be read, so they are not listed")
    origin = "layers" if valid_lock is None else "lock and layers" if packages.touched(seen) else "lock"
    return replace(content, packages=packages.installed(seen, valid_lock), packages_from=origin, notes=tuple(notes))


def _of_engine(name: str, access: Access) -> Content:
    """An engine's image: what it tells, the lock that this machine or the image keeps, and what a container shows."""
    image = EngineImage(name, access)
    content, notes = image.content(), list[str]()
    lock: Lock | None = None
    plan: BuildPlan | None = None
    if PLAN_LABEL in content.labels:
        lock = _kept_lock(access.state, content.labels.get(LOCK_LABEL))
        lock = lock or _carried(content, LOCK, image.read(LOCK), _lock, notes)
        plan = load_plan(access.state, content.labels[PLAN_LABEL]) if access.state else None
        plan = plan or _carried(content, PLAN, image.read(PLAN), _plan, notes)
    content = replace(content, lock=lock, plan=plan)
    installed = image.packages(lock)
    if installed is not None:
        return replace(content, packages=installed, packages_from="container", notes=tuple(notes))
    if lock is not None:
        notes.append(f"no command runs in {name}, so its lock alone tells its packages")
        return replace(content, packages=of_lock(lock), packages_from="lock", notes=tuple(notes))
    command = f"{image.engine} save -o image.tar {name}, then docker-archive:image.tar"
    notes.append(f"no command runs in {name}, so its packages were not read ({command})")
    return replace(content, notes=tuple(notes))


def started(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Content` that the `config` member of an image's configuration decides."""
    env, labels = settings.get("Env"), settings.get("Labels")
    return {
        "labels": {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {},
        "env": dict(str(item).partition("=")[::2] for item in env) if isinstance(env, list) else {},
        "user": str(settings.get("User") or ""),
        "workdir": str(settings.get("WorkingDir") or ""),
        "entrypoint": _words(settings.get("Entrypoint")),
        "cmd": _words(settings.get("Cmd")),
        "ports": exposed_ports(settings),
    }


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def _carried(
    content: Content, path: str, data: bytes | None, read: Callable[[bytes, str], tuple[Document, str, str]],
    notes: list[str],
) -> Document | None:  # fmt: skip
    """A document that the image carries, if its label names this very one; a note where it cannot be read."""
    if data is None:
        return None
    where = f"{content.name}: /{path}"
    try:
        document, digest, label = read(data, where)
    except EnvkitError as error:
        if isinstance(error, IntegrityError):
            raise
        notes.append(f"{error.message}: left out")
        return None
    promised = content.labels.get(label)
    if promised is not None and promised != digest:
        raise IntegrityError(
            f"{where} has the digest {digest}, and the label {label} promises {promised}",
            hint="one of the two was changed: build the image again",
        )
    return document


def _lock(data: bytes, where: str) -> tuple[Lock, str, str]:
    lock = lock_from_json(json_of(data, where), where)
    return lock, digest_of(lock), LOCK_LABEL


def _plan(data: bytes, where: str) -> tuple[BuildPlan, str, str]:
    plan = plan_from_json(json_of(data, where), where)
    return plan, plan.digest, PLAN_LABEL


def _kept_lock(state: Path | None, digest: str | None) -> Lock | None:
    """The lock of this digest if a build of this machine kept it."""
    if state is None or digest is None:
        return None
    path = state / "locks" / f"{digest.removeprefix('sha256:')}.json"
    if "/" in digest or not path.is_file():
        return None
    lock = read_lock(path)
    return lock if digest_of(lock) == digest else None
