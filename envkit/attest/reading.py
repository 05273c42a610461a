"""Read the contents of an image from files, a registry or an engine, or from the file of a lock or plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from envkit.attest import packages
from envkit.attest.access import Access
from envkit.attest.content import Content, Layer, Package, json_of, of_lock
from envkit.ground import foreign, trees
from envkit.ground.errors import (
    EngineError,
    EnvironmentProblem,
    EnvkitError,
    IntegrityError,
    TimeLimitError,
    UsageError,
)
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.platforms import platform
from envkit.ground.sizes import shown_size
from envkit.image import rpm
from envkit.image.document import exposed_ports
from envkit.image.name import ImageName, InEngine, InRegistry
from envkit.image.opening import Opened
from envkit.image.packages import LOCK, PLAN, STATUS
from envkit.lock.model import SCHEMA as LOCK_SCHEMA
from envkit.lock.model import Lock
from envkit.lock.reading import lock_from_json
from envkit.lock.store import digest_of, load_lock, read_lock
from envkit.plan.labels import plan_labels
from envkit.plan.model import SCHEMA as PLAN_SCHEMA
from envkit.plan.model import BuildPlan
from envkit.plan.store import load_plan, plan_from_json
from envkit.run.model import RunLimits, Runner
from envkit.run.runners import choose

PLAN_LABEL, LOCK_LABEL = f"{LABEL_PREFIX}.plan", f"{LABEL_PREFIX}.lock"
_OWN_LAYER = 8 << 20  # bytes; larger layers of a registry image are not downloaded to look for the lock
_MOST_FILE = 64 << 20  # bytes of a lock or plan
_COMMAND_S = 120.0  # for one command in a container
_MARK = "--envkit--"
# Package metadata; then the INSTALLER files of distributions from conda; then dpkg's status. Any part may be empty.
# -xdev leaves out /proc and other mounts. find fails if it may not read a folder, hence `exit 0`.
_LIST = f"""
find / -xdev -type f '(' -path '*/conda-meta/*.json' -o -path '*-packages/*.dist-info/METADATA' ')' -print 2>/dev/null
echo {_MARK}
find / -xdev -type f -path '*-packages/*.dist-info/INSTALLER' -exec grep -lx conda '{{}}' + 2>/dev/null
echo {_MARK}
cat /var/lib/dpkg/status 2>/dev/null
exit 0
"""

Document = TypeVar("Document", Lock, BuildPlan)


def read_content(name: ImageName, access: Access) -> Content:
    """Read the contents of an image, or of the file of a lock or plan.

    Raises:
        EngineError: the image does not exist, or an engine or registry refuses.
        IntegrityError: the image does not match its digests or labels.
        EnvironmentProblem: no engine or registry answers.
        UsageError: the name matches no image, or several.
    """
    if isinstance(name, InEngine) and Path(name.name).exists():
        return _of_file(Path(name.name))
    opened = access.open(name)
    return _of_engine(name, access) if opened is None else _of_layers(name.typed, opened, access)


def of_plan(plan: BuildPlan, name: str) -> Content:
    """Return the contents of an image built from a plan, as far as the plan determines them."""
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
        notes=(f"{name} is a plan, which has no list of packages; compare a lock instead",),
    )


def _of_file(path: Path) -> Content:
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"for an OCI layout use oci:{path}")
    try:
        with foreign.stream(path) as file:
            data = file.read(_MOST_FILE + 1)
    except OSError as error:
        raise foreign.unreadable(path, error) from error
    try:
        tree = trees.from_json(data, str(path)) if len(data) <= _MOST_FILE else None
    except UsageError:
        tree = None  # some other file
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if schema == LOCK_SCHEMA:
        lock = read_lock(path)
        return Content(
            name=str(path), kind="lock", architecture=platform(lock.platform).architecture, lock=lock,
            packages=of_lock(lock), packages_from="lock",
        )  # fmt: skip
    if schema == PLAN_SCHEMA:
        return of_plan(plan_from_json(tree, str(path)), str(path))
    raise UsageError(
        f"{path} is neither a lock ({LOCK_SCHEMA}) nor a plan ({PLAN_SCHEMA})",
        hint=f"for an archive of `docker save` use docker-archive:{path}",
    )


def _of_layers(text: str, opened: Opened, access: Access) -> Content:
    content = Content(
        name=text,
        kind=opened.name.kind,
        id=opened.id,
        digest=opened.digest,
        architecture=str(opened.config.get("architecture") or "") or None,
        layers=tuple(
            Layer(diff_id=layer.diff_id, digest=layer.digest or None, size=layer.descriptor.size, made_by=layer.made_by)
            for layer in opened.layers
        ),
        config=opened.config,
        size=opened.size,
        **settings_of(opened.image.settings),
    )
    by_envkit = PLAN_LABEL in content.labels or LOCK_LABEL in content.labels
    # An image of another builder has no lock, so no layer is worth a download: -1.
    at_most = None if not isinstance(opened.name, InRegistry) or access.layers else _OWN_LAYER if by_envkit else -1
    notes: list[str] = []
    locks: list[Lock] = []

    def is_valid(data: bytes) -> bool:
        embedded = _embedded(content, LOCK, data, _lock, notes)
        locks.extend([embedded] if embedded is not None else [])
        return embedded is not None

    listed = packages.read_from_top(opened, at_most=at_most, is_valid=is_valid)
    lock = locks[0] if locks else None
    plan = _embedded(content, PLAN, listed.files.get(PLAN), _plan, notes)
    content = replace(content, lock=lock, plan=plan, fetched=opened.fetched)
    current_lock = None if listed.folder_removed else lock
    if current_lock is None and listed.read < len(opened.layers):
        left = sum(opened.cost(index) for index in range(len(opened.layers)))
        why = "no longer matches its lock" if listed.folder_removed else "has no lock in its small layers"
        notes.append(
            f"{text} {why}, so its packages were not read (--layers reads them and downloads {shown_size(left)})"
        )
        return replace(content, notes=tuple(notes))
    if packages.unlisted(listed.files):
        notes.append(f"{text}: the database of its RPM packages cannot be read, so they are not listed")
    origin = "layers" if current_lock is None else "lock and layers" if packages.changes_packages(listed) else "lock"
    return replace(content, packages=packages.installed(listed, current_lock), packages_from=origin, notes=tuple(notes))


class _EngineImage:
    """An image in an engine on this machine; commands run in containers without network or privileges."""

    def __init__(self, name: ImageName, access: Access) -> None:
        self._access = access
        self._runner: Runner = choose(access.runner, access.reporter, image=name)
        self._details: Mapping[str, Any] = self._runner.inspect(name)
        self._name = name.typed

    @property
    def engine(self) -> str:
        """'docker' | 'podman'."""
        return self._runner.name

    def content(self) -> Content:
        """Return what the engine reports."""
        image = self._details
        return Content(
            name=self._name,
            kind="engine",
            id=image["id"],
            architecture=image["architecture"] or None,
            labels=image["labels"],
            env=image["env"],
            user=image["user"],
            workdir=image["workdir"],
            entrypoint=image["entrypoint"],
            cmd=image["cmd"],
            size=image["size"],
            ports=image["ports"],
            layers=tuple(Layer(diff_id=diff_id, digest=None, size=None, made_by="") for diff_id in image["layers"])
            or None,
        )

    def read(self, path: str) -> bytes | None:
        """Return a file of the image; None if it does not exist or cannot be read."""
        return self._output("cat", f"/{path}")

    def packages(self, lock: Lock | None) -> tuple[Package, ...] | None:
        """List the packages in a container; None if no command can run in it. The lock adds hashes and URLs."""
        self._access.reporter.step(f"list the packages of {self._name}")
        data = self._output("/bin/sh", "-c", _LIST)
        if data is None:
            return None
        # Split at most twice, because the descriptions in dpkg's status may contain any text.
        names, from_conda, status = (part.strip("\n") for part in data.decode(errors="replace").split(f"{_MARK}\n", 2))
        listed = packages.PackageFiles()
        for paths, text in ((names, b""), (from_conda, b"conda")):
            relative = (line.lstrip("/") for line in paths.splitlines())
            listed.files |= {name: text for name in relative if packages.is_relevant(name)}
        listed.files[STATUS] = status.encode()
        # An image has either dpkg or rpm, and each of these files takes a container.
        for path in rpm.FILES if not status else ():
            database = self.read(path)
            listed.files |= {} if database is None else {path: database}
        locked = {
            (package.kind, package.name, package.exact): package
            for package in (of_lock(lock) if lock is not None else ())
        }
        return tuple(
            locked.get((package.kind, package.name, package.exact), package)
            for package in packages.installed(listed, None)
        )

    def _output(self, *argv: str) -> bytes | None:
        limits = RunLimits(timeout_s=_COMMAND_S)
        image, reporter = InEngine(name=self._details["id"]), self._access.reporter
        try:
            result = self._runner.run(image, argv, {}, gpus=None, limits=limits, reporter=reporter)
        except (EngineError, EnvironmentProblem, TimeLimitError):  # no shell, another architecture, a full disk
            return None
        return None if result.exit_code or result.output_cut else result.stdout


def _of_engine(engine_name: ImageName, access: Access) -> Content:
    """Read an image in an engine: its configuration, its lock from this machine or the image, and its packages."""
    image, name = _EngineImage(engine_name, access), engine_name.typed
    content, notes = image.content(), list[str]()
    lock: Lock | None = None
    plan: BuildPlan | None = None
    if PLAN_LABEL in content.labels:
        # From this machine first: reading it from the image takes a container.
        lock = load_lock(access.state, content.labels.get(LOCK_LABEL, "")) if access.state else None
        lock = lock or _embedded(content, LOCK, image.read(LOCK), _lock, notes)
        plan = load_plan(access.state, content.labels[PLAN_LABEL]) if access.state else None
        plan = plan or _embedded(content, PLAN, image.read(PLAN), _plan, notes)
    content = replace(content, lock=lock, plan=plan)
    installed = image.packages(lock)
    if installed is not None:
        return replace(content, packages=installed, packages_from="container", notes=tuple(notes))
    if lock is not None:
        notes.append(f"no command runs in {name}, so its packages are those of its lock")
        return replace(content, packages=of_lock(lock), packages_from="lock", notes=tuple(notes))
    command = f"{image.engine} save -o image.tar {name}, then docker-archive:image.tar"
    notes.append(f"no command runs in {name}, so its packages were not read ({command})")
    return replace(content, notes=tuple(notes))


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Content` that come from the `config` member of an image's configuration."""
    env, labels = settings.get("Env"), settings.get("Labels")
    return {
        "labels": {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {},
        "env": dict(str(item).partition("=")[::2] for item in env) if isinstance(env, list) else {},
        "user": str(settings.get("User") or ""),
        "workdir": str(settings.get("WorkingDir") or ""),
        "entrypoint": _strings(settings.get("Entrypoint")),
        "cmd": _strings(settings.get("Cmd")),
        "ports": exposed_ports(settings),
    }


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _embedded(
    content: Content, path: str, data: bytes | None, read: Callable[[bytes, str], tuple[Document, str, str]],
    notes: list[str],
) -> Document | None:  # fmt: skip
    """Read a document in the image and compare its digest with the label; add a note if it cannot be read."""
    if data is None:
        return None
    where = f"{content.name}: /{path}"
    try:
        document, digest, label = read(data, where)
    except EnvkitError as error:
        if isinstance(error, IntegrityError):
            raise
        notes.append(f"{error.message}; it is ignored")
        return None
    expected = content.labels.get(label)
    if expected is not None and expected != digest:
        raise IntegrityError(
            f"{where} has the digest {digest}, but the label {label} has {expected}",
            hint="one of the two was changed: build the image again",
        )
    return document


def _lock(data: bytes, where: str) -> tuple[Lock, str, str]:
    lock = lock_from_json(json_of(data, where), where)
    return lock, digest_of(lock), LOCK_LABEL


def _plan(data: bytes, where: str) -> tuple[BuildPlan, str, str]:
    plan = plan_from_json(json_of(data, where), where)
    return plan, plan.digest, PLAN_LABEL
