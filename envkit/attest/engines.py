"""An engine's image: its configuration, and its packages as a container of it shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envkit.attest import packages
from envkit.attest.access import Access
from envkit.attest.content import Content, Layer, Package, of_lock
from envkit.ground.errors import EngineError, EnvironmentProblem, TimeLimitError
from envkit.image import rpm
from envkit.image.packages import STATUS
from envkit.run.model import RunLimits
from envkit.run.runners import choose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.lock.model import Lock
    from envkit.run.model import Runner

_READ_S = 120.0  # to print one file of the image
_MARK = "--envkit--"
# Names of packages, then those that conda brought, then dpkg's own file; a part that is not there stays empty.
_LIST = f"""
find / -xdev -type f '(' -path '*/conda-meta/*.json' -o -path '*-packages/*.dist-info/METADATA' ')' -print 2>/dev/null
echo {_MARK}
find / -xdev -type f -path '*-packages/*.dist-info/INSTALLER' -exec grep -lx conda '{{}}' + 2>/dev/null
echo {_MARK}
cat /var/lib/dpkg/status 2>/dev/null
exit 0
"""


class EngineImage:
    """One image of an engine on this machine; commands run in containers without network and power."""

    def __init__(self, name: str, access: Access) -> None:
        self._access = access
        self._runner: Runner = choose(access.runner, access.reporter)
        self._found: Mapping[str, Any] = self._runner.inspect(name)
        self._name = name

    @property
    def engine(self) -> str:
        """'docker' | 'podman'."""
        return self._runner.name

    def content(self) -> Content:
        """What the engine itself tells."""
        image = self._found
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
        """A file of the image, None where it is not there or cannot be read."""
        return self._output("cat", f"/{path}")

    def packages(self, lock: Lock | None) -> tuple[Package, ...] | None:
        """The packages that a container of it shows; None where no command can be run in it.

        Those that the lock names as well have its hashes.
        """
        self._access.reporter.step(f"list the packages of {self._name}")
        data = self._output("/bin/sh", "-c", _LIST)
        if data is None:
            return None
        names, brought, status = (part.strip("\n") for part in data.decode(errors="replace").split(f"{_MARK}\n", 2))
        seen = packages.Seen()
        for paths, text in ((names, b""), (brought, b"conda")):
            relative = (line.lstrip("/") for line in paths.splitlines())
            seen.files |= {name: text for name in relative if packages.matters(name)}
        seen.files[STATUS] = status.encode()
        for path in rpm.FILES if not status else ():
            database = self.read(path)
            seen.files |= {} if database is None else {path: database}
        known = (
            {(package.kind, package.name, package.exact): package for package in of_lock(lock)}
            if lock is not None
            else {}
        )
        return tuple(
            known.get((package.kind, package.name, package.exact), package)
            for package in packages.installed(seen, None)
        )

    def _output(self, *argv: str) -> bytes | None:
        limits = RunLimits(timeout_s=_READ_S)
        image, reporter = self._found["id"], self._access.reporter
        try:
            done = self._runner.run(image, argv, {}, gpus=None, limits=limits, reporter=reporter)
        except (EngineError, EnvironmentProblem, TimeLimitError):  # no shell, another architecture, a full disk
            return None
        return None if done.exit_code or done.output_cut else done.stdout
