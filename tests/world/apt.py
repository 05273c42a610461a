"""Install Debian packages, and read the host's own package sources."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from tests.world.places import UnavailableError, say

_CARRIED = ("Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::http::Proxy", "Acquire::https::Proxy")


@dataclass(frozen=True, slots=True)
class Source:
    """One Debian repository of the host's own apt configuration."""

    uri: str
    suite: str
    components: tuple[str, ...]

    def line(self) -> str:
        """Return it as a one-line `sources.list` entry."""
        return f"deb {self.uri} {self.suite} {' '.join(self.components)}"


def install(*packages: str) -> None:
    """Install Debian packages as root on Debian or Ubuntu.

    Raises:
        UnavailableError: packages cannot be installed here; the message has the command.
    """
    wanted = " ".join(packages)
    if not shutil.which("apt-get"):
        raise UnavailableError(f"missing: {wanted} (this is not Debian or Ubuntu; install them by hand)")
    if os.geteuid() != 0:
        raise UnavailableError(f"missing: {wanted} (as root: apt-get install {wanted})")
    _update()
    say(f"apt-get install {wanted}")
    _apt("install", "--yes", "--no-install-recommends", *packages)


def require(command: str, package: str) -> str:
    """Return the path of a command, and install its package first if it is missing."""
    path = shutil.which(command)
    if not path:
        install(package)
        path = shutil.which(command)
    if not path:
        raise UnavailableError(f"package {package} is installed, but there is no command {command}")
    return path


def download(package: str, folder: Path) -> Path:
    """Download a package file without installing it and return its path."""
    if not shutil.which("apt-get"):
        raise UnavailableError(f"cannot download {package}: no apt-get here")
    if os.geteuid() == 0:
        _update()
    for old in folder.glob(f"{package}_*.deb"):
        old.unlink()
    done = subprocess.run(
        ["apt-get", "download", "-o", "APT::Sandbox::User=root", package],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    files = sorted(folder.glob(f"{package}_*.deb"))
    if done.returncode or not files:
        raise UnavailableError(f"apt-get download {package}: {_last_line(done.stderr)}")
    return files[0]


def debian_sources(codename: str = "bookworm") -> list[Source]:
    """Return the host's repositories of a Debian release, as apt resolves them.

    Raises:
        UnavailableError: the host has none, because it is another distribution or release.
    """
    if not shutil.which("apt-get"):
        raise UnavailableError("no apt-get here: the Debian base image is built from apt's own configuration")
    sources = _index_targets(codename)
    if not sources and os.geteuid() == 0:
        _update()
        sources = _index_targets(codename)
    if not any("-" not in source.suite for source in sources):  # updates and security alone do not make a base
        raise UnavailableError(f"apt's configuration here has no Debian {codename}")
    return sources


def carried_options() -> list[str]:
    """Return the host's apt options that its mirror may need (proxy, validity dates)."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    return [row.rstrip(";") for row in dump.splitlines() if row.split(" ")[0] in _CARRIED and not row.endswith('"";')]


def _index_targets(codename: str) -> list[Source]:
    form = "$(SITE)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(CODENAME)"
    command = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    repositories: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        uri, suite, component, origin, code = row.split("|")
        if origin == "Debian" and code.split("-")[0] == codename:
            components = repositories.setdefault((uri, suite), [])
            if component not in components:
                components.append(component)
    return [Source(uri, suite, tuple(components)) for (uri, suite), components in sorted(repositories.items())]


@once
def _update() -> None:
    say("apt-get update")
    try:
        _apt("update", "-qq")
    except UnavailableError as failure:  # one broken third-party repository must not stop the others
        say(str(failure))


def _apt(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-q", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
    )
    if done.returncode:
        raise UnavailableError(f"apt-get {' '.join(arguments)}: {_last_line(done.stderr or done.stdout)}")


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "failed without any output"
