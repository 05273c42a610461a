"""The files of the build context that pass values to the build: package lists, pins, URLs, configuration."""

from __future__ import annotations

from collections.abc import Sequence

from envkit.ground import paths
from envkit.ground.settings import Mirrors
from envkit.lock.model import FILE as LOCK_FILE
from envkit.lock.model import Lock
from envkit.lock.store import to_text
from envkit.plan.definition import kind_of
from envkit.plan.family import constraints
from envkit.plan.model import BuildPlan
from envkit.render import locked, sources
from envkit.render.context import has_constraints, pip_lines, wheel_lines
from envkit.render.packages import CA_FILE, package_files
from envkit.render.quoting import yaml

_HOME = "/tmp/home"  # noqa: S108 - a folder of the image, not of this machine


def context_files(
    plan: BuildPlan, lock: Lock | None, *, mirrors: Mirrors, values: dict[str, object]
) -> dict[str, bytes]:
    """Return the files of the build context except the rendered templates and .dockerignore.

    Raises:
        UsageError: a mirror is not a URL.
    """
    uid, _, gid = plan.user.partition(":")
    texts = {
        "plan.json": plan.canonical().decode(),
        # ssh and getpass.getuser() need a name for the UID.
        "passwd": f"envkit:x:{uid}:{gid}:envkit:{_HOME}:/bin/bash\n",
        "group": f"envkit:x:{gid}:\n",
    }
    static = ["check.py", "seal.py", "drop_setuid.py", "entry.sh"]
    static += ["sshd.sh"] if "ssh" in plan.features else []
    folder = paths.data_folder("templates") / "files"
    texts |= {name: (folder / name).read_text(encoding="utf-8") for name in static}
    if plan.system or plan.build_system:
        texts |= package_files(plan, mirrors)
    if plan.system:
        texts["system.txt"] = _lines(locked.system(plan, lock))
    if lock:
        texts |= locked.files(plan, lock, mirrors) | {LOCK_FILE: to_text(lock)}
    elif plan.pip:
        texts["requirements.txt"] = _lines(pip_lines(plan, mirrors))
    if not lock and has_constraints(plan):
        texts["constraints.txt"] = _lines(constraints(plan.family, plan.resolution, plan.constraints))
    if kind_of(plan.template) == "wheels":
        if not lock:
            texts["torch.txt"] = _lines(wheel_lines(plan, mirrors))
        texts["build-system.txt"] = _lines(plan.build_system)
        return _encoded(texts)
    texts["condarc"] = _condarc(plan, mirrors)
    if values["installer"]:
        texts["build-system.txt"] = _lines(plan.build_system)
        texts |= _fetch(plan, mirrors)
    return _encoded({name: text for name, text in texts.items() if text})


def dockerignore(names: list[str]) -> bytes:
    """Return a .dockerignore that excludes everything except these files."""
    return _lines(["**", *(f"!{name}" for name in sorted(names))]).encode()


def _condarc(plan: BuildPlan, mirrors: Mirrors) -> str:
    lines = ["channels:", *(f"  - {yaml(name)}" for name in plan.channels)]
    lines += [
        # Whatever names the channel `defaults` gets nothing from it.
        "default_channels: []",
        "channel_priority: strict",
        "safety_checks: enabled",
        "extra_safety_checks: true",
        "auto_update_conda: false",
        "show_channel_urls: true",
        "always_yes: true",
    ]
    if mirrors.conda_channel_alias:
        lines.append(f"channel_alias: {yaml(sources.url(mirrors.conda_channel_alias, 'conda_channel_alias'))}")
    if mirrors.ca_bundle:
        lines.append(f"ssl_verify: /build/{CA_FILE}")
    return _lines(lines)


def _fetch(plan: BuildPlan, mirrors: Mirrors) -> dict[str, str]:
    """Return curl's configuration for the installer's download, and the file with its SHA-256."""
    url = sources.installer_url(plan, mirrors)
    if plan.installer is None or url is None:
        return {}
    # proto also limits redirects, so a download over https does not continue over http.
    protocol = "=http" if url.startswith("http:") else "=https"
    # max-time is in seconds.
    options = ["fail", "silent", "show-error", "location", "retry = 3", f'proto = "{protocol}"', "max-time = 1800"]
    options += [f'cacert = "{CA_FILE}"'] if mirrors.ca_bundle else []
    return {
        "miniconda.curl": _lines([*options, f'url = "{url}"', 'output = "miniconda.sh"']),
        "miniconda.sha256": f"{plan.installer.sha256}  miniconda.sh\n",
    }


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _encoded(texts: dict[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in texts.items()}
