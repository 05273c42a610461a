"""The bootstrapped base of a lock: exactly its Debian packages, installed by mmdebstrap, kept as one layer.

Every archive's SHA-256 is compared with the lock. The layer is cached under what the lock says, so mmdebstrap runs
once for each list of packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.build.embedded import oci
from envkit.build.embedded.model import MTIME, WRITER_VERSION, LayerDigest
from envkit.build.embedded.root import write_root
from envkit.build.journal import Journal
from envkit.engine.failures import disk_full
from envkit.engine.process import ask, follow
from envkit.errors import EngineError, IntegrityError, LockError, SurroundingsError, TimeLimitError
from envkit.lock import apt

if TYPE_CHECKING:
    from envkit.build.embedded.cache import Cached, LayerCache
    from envkit.build.log import BuildLog
    from envkit.lock.model import LockedBase
    from envkit.progress import Reporter

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EPOCH = "1735689600"  # 2025-01-01: one date for every file that the packages' scripts write
_LIMIT_S = 1800.0
_OPTIONS = (
    "--format=tar",
    "--variant=minbase",
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
)
_SUMS = 'sha256sum "$1"/var/cache/apt/archives/*.deb >> "$ENVKIT_SUMS"'
# Bytecode differs from run to run; name servers and the host's name are this machine's.
_CLEAN = (
    'find "$1/usr" -xdev -name __pycache__ -prune -exec rm -r {} +; '
    'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/log/*.log "$1"/var/log/apt '
    '"$1"/etc/resolv.conf "$1"/etc/hostname "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old'
)
_CARRIED = re.compile(
    r"Acquire::(?:Check-Valid-Until|Check-Date|https?::Proxy|https?::Verify-Peer|https::CaInfo) \"[^\"]+\""
)
_MOVED = re.compile(r"Version '[^']*' for '[^']*' was not found|unmet dependencies|held broken packages")
_AWAY = re.compile(r"Could not (?:resolve|connect)|Temporary failure|Failed to fetch|Unable to connect")


def from_packages(
    base: LockedBase,
    *,
    mirror: str | None,
    cache: LayerCache,
    log: BuildLog,
    reporter: Reporter,
    state: Path | None,
    anew: bool = False,
    limit_s: float | None = None,
) -> tuple[oci.Base, str, Cached]:
    """The base of one layer that a lock's Debian packages make, the layer's key in the cache, and the layer.

    Args:
        base: of the lock, kind 'bootstrap'.
        mirror: URL of a Debian mirror; None = the host's own apt configuration.
        cache: where the layer is kept.
        log: takes mmdebstrap's lines.
        reporter: hears the step.
        state: folder for the note of what is being made.
        anew: make it although it is kept.
        limit_s: time limit in seconds.

    Raises:
        LockError: the mirror does not have these versions any more.
        IntegrityError: an archive's SHA-256 is not that of the lock.
        SurroundingsError: no mmdebstrap, no permission, no disk, no mirror.
        EngineError: mmdebstrap failed otherwise.
        TimeLimitError: it found no end.
    """
    key = layer_key(base)

    def write(sink: IO[bytes]) -> LayerDigest:
        with Journal(state, "embedded") as notes, tempfile.TemporaryDirectory(prefix="envkit-") as folder:
            notes.folder(Path(folder))
            Path(folder).chmod(0o755)  # apt's own user has to reach what is inside
            reporter.step(f"make the base of {len(base.packages)} Debian packages")
            limit = min(limit_s or _LIMIT_S, _LIMIT_S)
            tar = _mmdebstrap(base, mirror, Path(folder), log=log, notes=notes, limit_s=limit)
            return write_root(tar, sink, mtime=MTIME)

    cached = (None if anew else cache.get(key)) or cache.make(key, write)
    layer = oci.layer(cached.layer, cached.path, f"envkit: {base.reference}")
    return oci.Base(name=base.reference, layers=(layer,), config={"Env": [f"PATH={_PATH}"]}), key, cached


def layer_key(base: LockedBase) -> str:
    """The name in the layer cache of what these packages make."""
    rows = [(one.name, one.version, one.arch, one.sha256) for one in base.packages]
    recipe = (*_OPTIONS, _CLEAN, _EPOCH)
    tree = {"recipe": recipe, "writer": WRITER_VERSION, "mtime": MTIME, "suite": base.suite, "packages": rows}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def compare(base: LockedBase, sums: str) -> None:
    """Compare `sha256sum`'s lines about the archives that were installed with the lock.

    Raises:
        IntegrityError: another archive was used, or one of the lock's was not.
    """
    found = {line.split()[0]: Path(line.split(maxsplit=1)[1]).name for line in sums.splitlines() if line.strip()}
    promised = {one.sha256: one for one in base.packages if one.sha256}
    hint = "envkit lock writes the base's packages anew; if it repeats, look at the Debian mirror"
    for digest, one in promised.items():
        if digest not in found:
            file = next((file for file in found.values() if file.startswith(f"{one.name}_")), "no archive")
            raise IntegrityError(
                f"{one.name} {one.version}: the mirror gives {file} with another SHA-256 than the lock's", hint=hint
            )
    names = {one.name for one in base.packages}
    for digest, file in found.items():
        if digest not in promised and file.partition("_")[0] not in names:
            raise IntegrityError(f"{file} was installed, and the lock does not name it", hint=hint)


def _mmdebstrap(
    base: LockedBase, mirror: str | None, folder: Path, *, log: BuildLog, notes: Journal, limit_s: float
) -> Path:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise SurroundingsError(
            f"there is no mmdebstrap here to make {base.reference} with", hint="apt-get install mmdebstrap"
        )
    tar, sums = folder / "base.tar", folder / "sums"
    assert base.suite is not None
    wanted = ",".join(f"{one.name}={one.version}" for one in base.packages)
    hooks = [f"--extract-hook={_SUMS}", f"--customize-hook={_SUMS}", f"--customize-hook={_CLEAN}"]
    mode = "root" if os.geteuid() == 0 else "unshare"
    argv = [program, f"--mode={mode}", *_OPTIONS, f"--include={wanted}", *hooks, *_apt_options()]
    own = {"SOURCE_DATE_EPOCH": _EPOCH, "TMPDIR": str(folder), "LC_ALL": "C.UTF-8", "ENVKIT_SUMS": str(sums)}
    sums.touch()
    sums.chmod(0o666)  # the hooks' root is another user where user namespaces are used
    ended = follow(
        [*argv, base.suite, str(tar), *apt.sources(base.suite, mirror)],
        log.write,
        env={**os.environ, **own},
        limit_s=limit_s,
        on_start=notes.process,
    )
    if ended.timed_out:
        raise TimeLimitError(f"making {base.reference} did not end within {limit_s:.0f} s", details=log.details())
    if ended.code != 0:
        raise _failure(base, ended.code, folder, log)
    compare(base, sums.read_text(encoding="utf-8"))
    return tar


def _apt_options() -> list[str]:
    """Options of this host's apt that decide whether a mirror can be used at all."""
    try:
        said = ask(["apt-config", "dump"], patience_s=30.0)
    except SurroundingsError:
        return []
    return [f"--aptopt={option}" for option in _CARRIED.findall(said.out)] if said.code == 0 else []


def _failure(base: LockedBase, code: int, folder: Path, log: BuildLog) -> LockError | SurroundingsError | EngineError:
    text, details = "\n".join(log.tail()), log.details()
    doing = f"making {base.reference}"
    if disk_full(text):
        return SurroundingsError(
            f"{doing}: disk full on {folder.parent} (it needs about 600 MB)",
            hint="export TMPDIR=/a/larger/disk",
            details=details,
        )
    if _MOVED.search(text):
        return LockError(
            f"{doing}: the Debian mirror has other versions than the lock",
            hint="envkit lock writes the base's packages anew",
            details=details,
        )
    if _AWAY.search(text):
        return SurroundingsError(
            f"{doing}: the Debian mirror cannot be reached",
            hint="ENVKIT_DEBIAN_MIRROR=URL names another mirror",
            details=details,
        )
    if os.geteuid() != 0 and re.search(r"newuidmap|subuid|unshare", text):
        return SurroundingsError(
            f"{doing}: this user may not use user namespaces with subordinate ids",
            hint="apt-get install uidmap and a line in /etc/subuid and /etc/subgid; or run as root; or --base IMAGE",
            details=details,
        )
    return EngineError(f"{doing}: mmdebstrap ended with code {code}", details=details)
