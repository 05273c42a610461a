"""A base image from a distribution's own signed packages, made with mmdebstrap: for where no registry answers."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.build.journal import Journal
from envkit.engine.failures import disk_full
from envkit.engine.process import ask, follow
from envkit.errors import EngineError, SurroundingsError, UsageError

if TYPE_CHECKING:
    from envkit.build.log import BuildLog
    from envkit.build.model import Engine, LocalImage
    from envkit.progress import Reporter

REPOSITORY = "localhost/envkit-base"  # a registry is written out: no engine ever looks for it elsewhere
SUITES = {("debian", "bookworm"): "debian12"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_EPOCH = "1735689600"  # 2025-01-01: one date for every file that the making itself writes
_LIMIT_S = 1800.0
_RECIPE = (
    "--variant=minbase",
    "--include=ca-certificates",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--customize-hook=rm -rf $1/var/lib/apt/lists/* $1/var/cache/apt/*.bin $1/var/log/*.log $1/var/log/apt",
)
# apt's own options that decide whether a mirror can be used at all.
_CARRIED = re.compile(
    r"Acquire::(?:Check-Valid-Until|Check-Date|https?::Proxy|https?::Verify-Peer|https::CaInfo) \"[^\"]+\""
)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the packages come from: `sources.list` lines, and whether a setting named the mirror or apt did."""

    lines: tuple[str, ...]
    kind: str  # 'mirror' | 'host'


def parse(base: str) -> tuple[str, str]:
    """Distribution and suite of `bootstrap:debian/bookworm`.

    Raises:
        UsageError: it names nothing that can be bootstrapped.
    """
    distribution, _, suite = base.removeprefix("bootstrap:").partition("/")
    if (distribution, suite) not in SUITES:
        known = ", ".join(f"bootstrap:{'/'.join(pair)}" for pair in SUITES)
        raise UsageError(f"--base {base!r:.100} cannot be bootstrapped", hint=f"--base {known}, or an image's name")
    return distribution, suite


def bootstrap(
    suite: str,
    mirror: str | None,
    engine: Engine,
    log: BuildLog,
    reporter: Reporter,
    *,
    state: Path,
    anew: bool = False,
) -> tuple[str, LocalImage]:
    """The name and image of a bootstrapped base in the engine; made once and kept there, unless `anew`.

    Raises:
        SurroundingsError: not root, no mmdebstrap, no package source, or it failed for want of disk or network.
        EngineError: mmdebstrap failed otherwise.
    """
    sources = Sources((f"deb {mirror} {suite} main",), "mirror") if mirror else _host_sources(suite)
    recipe = "\n".join((suite, sources.kind, *sources.lines, *_RECIPE))
    name = f"{REPOSITORY}:debian-{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    kept = None if anew else engine.local(name)
    if kept is not None:
        reporter.note(f"base image: {name}, made on {kept.created[:10]} (--no-cache makes it anew)")
        return name, kept
    reporter.step(f"make the base image from Debian's {suite} packages")
    with Journal(state, engine.name) as notes, tempfile.TemporaryDirectory(prefix="envkit-") as folder:
        notes.folder(Path(folder))
        # The engine's client and apt's own user have to reach what is inside.
        Path(folder).chmod(0o755)
        tar = Path(folder) / "base.tar"
        _mmdebstrap(suite, sources, tar, log, notes)
        reporter.note(f"base image: {name}, {tar.stat().st_size / 1e6:.0f} MB, from {sources.lines[0].split()[1]}")
        return name, engine.import_base(tar, name, {"PATH": _PATH})


def _mmdebstrap(suite: str, sources: Sources, tar: Path, log: BuildLog, notes: Journal) -> None:
    if os.geteuid() != 0:
        raise SurroundingsError(
            "making a base image with mmdebstrap needs root",
            hint="run as root, or name a registry: ENVKIT_REGISTRY=host:port, or give --base IMAGE",
        )
    program = shutil.which("mmdebstrap")
    if program is None:
        raise SurroundingsError(
            "no registry and no mmdebstrap: there is nothing to make a base image from",
            hint="apt-get install mmdebstrap",
        )
    keyring = [f"--keyring={_KEYRING}"] if Path(_KEYRING).exists() else []
    options = [f"--aptopt={option}" for option in _apt_options()]
    ended = follow(
        [program, "--mode=root", "--format=tar", *_RECIPE, *keyring, *options, suite, str(tar), *sources.lines],
        log.write,
        env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH, "TMPDIR": str(tar.parent), "LC_ALL": "C.UTF-8"},
        limit_s=_LIMIT_S,
        on_start=notes.process,
    )
    if ended.code == 0 and not ended.timed_out:
        return
    tail = "\n".join(log.tail())
    if disk_full(tail):
        raise SurroundingsError(
            f"making the base image: disk full on {tar.parent.parent} (it needs about 400 MB)",
            hint="export TMPDIR=/a/larger/disk",
            details=log.details(),
        )
    if ended.timed_out or re.search(r"Could not (?:resolve|connect)|Temporary failure|Failed to fetch", tail):
        raise SurroundingsError(
            "making the base image: the Debian mirror cannot be reached",
            hint="ENVKIT_DEBIAN_MIRROR=URL names another mirror",
            details=log.details(),
        )
    raise EngineError(f"making the base image: mmdebstrap ended with code {ended.code}", details=log.details())


def _host_sources(suite: str) -> Sources:
    """The host's own Debian repositories of this suite, as apt tells them."""
    form = "$(SITE)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(CODENAME)"
    rows = _output(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows.splitlines():
        site, release, component, origin, codename = row.split("|")
        if origin == "Debian" and codename.partition("-")[0] == suite:
            components = found.setdefault((site, release), [])
            if component not in components:
                components.append(component)
    lines = tuple(f"deb {site} {release} {' '.join(sorted(parts))}" for (site, release), parts in sorted(found.items()))
    if not any(line.split()[2] == suite for line in lines):
        raise SurroundingsError(
            f"apt here knows no Debian {suite} to make a base image from",
            hint="ENVKIT_DEBIAN_MIRROR=URL names one (on Debian, apt-get update first); or give --base IMAGE",
        )
    return Sources(lines, "host")


def _apt_options() -> list[str]:
    return _CARRIED.findall(_output(["apt-config", "dump"]))


def _output(argv: list[str]) -> str:
    """What a tool of apt prints; empty where there is no apt."""
    try:
        answer = ask(argv, patience_s=30.0)
    except SurroundingsError:
        return ""
    return answer.out if answer.code == 0 else ""
