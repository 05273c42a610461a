"""Choose the Debian packages of a bootstrapped base with apt, in separate folders: no root, no changes to the host."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from envkit.ground import addresses, paths, platforms
from envkit.ground.errors import EnvironmentProblem
from envkit.lock import child
from envkit.lock.model import DebPackage

_PATIENCE_S = 180.0  # to download the package lists and to choose
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# The packages of mmdebstrap's variant minbase, as apt patterns, and the certificates that envkit adds.
_MINBASE = ("?essential", "?priority(required)", "apt", "ca-certificates")
# Options without which a mirror may not be usable at all.
# For example `Acquire::http::Proxy "http://proxy.example.com:3128";` in the output of apt-config.
_CARRIED = re.compile(
    r"Acquire::(?:Check-Valid-Until|Check-Date|https?::Proxy|https?::Verify-Peer|https::CaInfo) \"[^\"]+\""
)
# `Inst libc6 (2.36-9+deb12u10 Debian:12.10/stable [amd64])`
_INST = re.compile(r"^Inst (\S+) \((\S+) .*\[([a-z0-9]+)\]\)", re.MULTILINE)


def packages(suite: str, platform: str, mirror: str | None, extra: Sequence[str] = ()) -> tuple[DebPackage, ...]:
    """Return every package of a minimal base that includes `extra`, sorted by name.

    Args:
        suite: 'bookworm'.
        platform: 'linux-64' or 'linux-aarch64'.
        mirror: URL of a Debian mirror; None = the host's own apt configuration.
        extra: names of further packages.

    Raises:
        EnvironmentProblem: apt is not installed or has no such suite, or the mirror does not answer.
        TimeLimitError: apt did not finish in time.
    """
    if shutil.which("apt-get") is None:
        raise EnvironmentProblem(
            "apt is not installed; envkit needs it to choose Debian packages", hint="--base IMAGE, or --base none"
        )
    lines = sources(suite, mirror)
    with paths.scratch() as folder:
        options = _private(folder, lines, platforms.platform(platform).architecture)
        _apt(["apt-get", *options, "update", "-qq"], "the Debian mirror is unreachable", folder)
        wanted = [*_MINBASE, *extra]
        output = _apt(
            ["apt-get", *options, "install", "--simulate", "-qq", *wanted], f"apt cannot choose the packages of {suite}"
        )
        chosen = {(match[1], match[2]) for match in _INST.finditer(output)}
        stanzas = _apt(
            ["apt-cache", *options, "show", *(f"{name}={version}" for name, version in sorted(chosen))],
            "apt-cache cannot show the chosen packages",
        )
        return parse(stanzas, chosen)


def parse(stanzas: str, chosen: set[tuple[str, str]]) -> tuple[DebPackage, ...]:
    """Return the rows of the chosen packages (name, version) from the stanzas of `apt-cache show`."""
    rows: dict[tuple[str, str], DebPackage] = {}
    for stanza in stanzas.split("\n\n"):
        # Continuation lines of a field begin with a blank, so the pattern skips them.
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, re.MULTILINE))
        key = (fields.get("Package", ""), fields.get("Version", ""))
        if key in chosen:
            rows[key] = DebPackage(
                name=key[0],
                version=key[1],
                arch=fields["Architecture"],
                sha256=fields.get("SHA256"),
                size=int(fields["Size"]),
            )
    missing = sorted(chosen - rows.keys())
    if missing:
        raise EnvironmentProblem(f"apt has no metadata for {missing[0][0]} {missing[0][1]}", hint="apt-get update")
    return tuple(rows[key] for key in sorted(rows))


def sources(suite: str, mirror: str | None) -> tuple[str, ...]:
    """Return the lines of a `sources.list` for a suite: the mirror's, else those of the host's own apt.

    Raises:
        EnvironmentProblem: the host's apt has no such suite.
        UsageError: the mirror is not a URL.
    """
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    if mirror:
        # apt verifies signatures, so plain http is safe, and many Debian mirrors serve nothing else.
        return (f"deb {signed}{addresses.mirror(mirror, 'debian_mirror', plain=True)} {suite} main",)
    # One row is `http://mirror.example.com/debian|bookworm-updates|main|Debian|bookworm-updates`.
    form = "$(SITE)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(CODENAME)"
    output = _apt(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], "the apt configuration is invalid"
    )
    sites: dict[tuple[str, str], set[str]] = {}
    for row in output.splitlines():
        site, release, component, origin, codename = row.split("|")
        # The host's other repositories must not change the image. `bookworm-updates` and `bookworm-security` belong to
        # the suite `bookworm`.
        if origin == "Debian" and codename.partition("-")[0] == suite:
            sites.setdefault((site, release), set()).add(component)
    # Updates and security fixes alone are no complete system.
    if not any(release == suite for _, release in sites):
        raise EnvironmentProblem(
            f"apt on this machine has no sources for Debian {suite}",
            hint="set a mirror with ENVKIT_DEBIAN_MIRROR=URL (on Debian, run apt-get update first)",
        )
    return tuple(f"deb {signed}{site} {rel} {' '.join(sorted(parts))}" for (site, rel), parts in sorted(sites.items()))


def carried_options() -> tuple[str, ...]:
    """Return the options of the host's apt that its mirrors may need, each as `Name "value"`; none without apt."""
    try:
        output = _apt(["apt-config", "dump"], "the apt configuration is invalid")
    except EnvironmentProblem:
        return ()
    return tuple(_CARRIED.findall(output))


def _private(folder: Path, lines: Sequence[str], architecture: str) -> list[str]:
    """Return options that confine apt to a folder without installed packages or the host's sources and preferences."""
    for name in ("lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/apt.conf.d"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    folder.chmod(0o755)
    values = {
        "Dir::State": str(folder),
        "Dir::State::lists": str(folder / "lists"),
        "Dir::State::status": str(folder / "status"),
        "Dir::Cache": str(folder / "cache"),
        "Dir::Etc::sourcelist": str(folder / "sources.list"),
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": architecture,
        # Only this one: a multiarch host has others, too.
        "APT::Architectures": architecture,
        # As mmdebstrap, which installs the packages.
        "APT::Install-Recommends": "false",
        # As root, apt would download as the user _apt, who may not be able to enter the temporary folder.
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        # No translated descriptions, which are separate downloads.
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Acquire::http::Timeout": "30",
        "Acquire::https::Timeout": "30",
    }
    return [f"-o{key}={value}" for key, value in values.items()]


def _apt(argv: list[str], failed: str, folder: Path | None = None) -> str:
    """Run apt and return its output; `folder` is its TMPDIR, because an apt that is killed leaves temporary files."""
    env = child.environment(None, {"TMPDIR": str(folder)} if folder else {})
    done = child.run(argv, env=env, what="choosing Debian packages with apt", limit_s=_PATIENCE_S)
    if done.returncode != 0:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.startswith(("E:", "W:"))]
        raise EnvironmentProblem(
            failed, details=tuple(lines[:10]), hint="set another mirror with ENVKIT_DEBIAN_MIRROR=URL"
        )
    return done.stdout.decode(errors="replace")
