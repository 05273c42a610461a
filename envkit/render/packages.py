"""Package sources of apt-get and yum in a build: the mirrors in the settings, or the archive of an old system.

The files are copied into a stage, used by one RUN and removed by it, so the image does not depend on the mirror.
"""

from __future__ import annotations

from dataclasses import dataclass

from envkit.ground.errors import UsageError
from envkit.ground.settings import Mirrors
from envkit.plan.model import BuildPlan
from envkit.render import sources

FOLDER = "/usr/share/envkit"
CA_FILE = "ca-bundle.pem"
APT_CONF, APT_SOURCES, YUM_CONF = "apt.conf", "apt-sources.list", "yum.conf"
CODENAME = "CODENAME"
"""A placeholder in the list of sources; the build inserts the image's VERSION_CODENAME, which --base may change."""

# CentOS 7 and 8 have reached their end of life, and the mirror list that their images use is offline (centos.org,
# 2024-07-01). Plain http, because the CA certificates in these images are too old for the server; yum checks the
# packages' signatures.
_VAULT = "http://vault.centos.org"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The repositories of one release on a mirror."""

    paths: tuple[tuple[str, str], ...]  # repository id, path below the mirror's root
    key: str  # a file in the image's /etc/pki/rpm-gpg
    root: str | None = None  # default URL; None = the image's own configuration


def _el(release: str, key: str, root: str | None = None) -> Layout:
    paths = tuple((name.lower(), f"{release}/{name}/$basearch/os/") for name in ("BaseOS", "AppStream"))
    return Layout(paths=paths, key=key, root=root)


def _ubi(release: int) -> Layout:
    below = f"ubi{release}/{release}/$basearch"
    return Layout(
        paths=tuple((f"ubi-{release}-{name}-rpms", f"{below}/{name}/os") for name in ("baseos", "appstream")),
        key="RPM-GPG-KEY-redhat-release",
    )


# From the *.repo files in the release package of each system.
LAYOUTS = {
    "centos7": Layout(
        paths=(("base", "7.9.2009/os/$basearch/"), ("updates", "7.9.2009/updates/$basearch/")),
        key="RPM-GPG-KEY-CentOS-7",
        root=_VAULT,
    ),
    "centos8": _el("8.5.2111", "RPM-GPG-KEY-centosofficial", _VAULT),
    "centosstream9": _el("9-stream", "RPM-GPG-KEY-centosofficial"),
    "centosstream10": _el("10-stream", "RPM-GPG-KEY-centosofficial-SHA256"),
    "rockylinux8": _el("8", "RPM-GPG-KEY-rockyofficial"),
    "rockylinux9": _el("9", "RPM-GPG-KEY-Rocky-9"),
    "rockylinux10": _el("10", "RPM-GPG-KEY-Rocky-10"),
    "almalinux8": _el("8", "RPM-GPG-KEY-AlmaLinux"),
    "almalinux9": _el("9", "RPM-GPG-KEY-AlmaLinux-9"),
    "almalinux10": _el("10", "RPM-GPG-KEY-AlmaLinux-10"),
    "ubi8": _ubi(8),
    "ubi9": _ubi(9),
    "ubi10": _ubi(10),
}


def package_files(plan: BuildPlan, mirrors: Mirrors) -> dict[str, str]:
    """Return the configuration of apt-get or yum for a mirror, by file name; empty if the image's own is used.

    Raises:
        UsageError: a mirror is not a URL, or the layout of this system's mirrors is unknown.
    """
    if plan.os_family == "deb":
        return _apt(plan.resolution.os, mirrors)
    return _yum(plan.resolution.os, plan.resolution.platform, mirrors)


def _apt(os: str, mirrors: Mirrors) -> dict[str, str]:
    pockets: tuple[str, ...]
    if os.startswith("ubuntu"):
        what, root, security = "ubuntu_mirror", mirrors.ubuntu_mirror, None
        # Ubuntu's archive includes its security fixes; Debian has a separate archive for them.
        pockets, parts, key = ("", "-updates", "-security"), "main universe", "ubuntu-archive-keyring.gpg"
    else:
        what, root, security = "debian_mirror", mirrors.debian_mirror, mirrors.debian_security_mirror
        pockets, parts, key = ("", "-updates"), "main", "debian-archive-keyring.gpg"
    if root is None:
        return {}
    suites = [(sources.url(root, what, signed=True), pocket) for pocket in pockets]
    if security is not None:
        suites.append((sources.url(security, "debian_security_mirror", signed=True), "-security"))
    signed = f"[signed-by=/usr/share/keyrings/{key}]"
    # "-" names no folder: the lists of the image in sources.list.d are not read.
    conf = [f'Dir::Etc::SourceList "{FOLDER}/{APT_SOURCES}";', 'Dir::Etc::SourceParts "-";']
    conf += [f'Acquire::https::CAInfo "{FOLDER}/{CA_FILE}";'] if mirrors.ca_bundle else []
    return {
        APT_CONF: _lines(conf),
        APT_SOURCES: _lines([f"deb {signed} {url} {CODENAME}{pocket} {parts}" for url, pocket in suites]),
    }


def _yum(os: str, platform: str, mirrors: Mirrors) -> dict[str, str]:
    layout = LAYOUTS.get(os)
    if layout is None:
        if mirrors.rpm_mirror is None:
            return {}
        raise UsageError(
            f"rpm_mirror: the layout of {os} mirrors is unknown",
            hint="unset it for this build (ENVKIT_RPM_MIRROR=), and use --base IMAGE with your own repositories",
        )
    root = layout.root if mirrors.rpm_mirror is None else sources.url(mirrors.rpm_mirror, "rpm_mirror", signed=True)
    if root is None:
        return {}
    if os == "centos7" and platform == "linux-aarch64":
        root += "/altarch"  # where CentOS 7 has its other architectures
    # An empty reposdir disables all other repositories: yum fails if any enabled one is unreachable.
    lines = ["[main]", "gpgcheck=1", f"reposdir={FOLDER}/no.repos.d"]
    lines += [f"sslcacert={FOLDER}/{CA_FILE}"] if mirrors.ca_bundle else []
    for name, path in layout.paths:
        lines += ["", f"[{name}]", f"name={name}", f"baseurl={root}/{path}", "enabled=1"]
        lines += [f"gpgkey=file:///etc/pki/rpm-gpg/{layout.key}"]
    return {YUM_CONF: _lines(lines)}


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
