"""The system: kernel, WSL, the container around this process, user namespaces, NUMA."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.ground import namespaces
from envkit.ground.host import Host

_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
_USERNS_DOCS = ("https://docs.kernel.org/admin-guide/sysctl/user.html",)


def section(view: View, host: Host, *, uid: int, user: str) -> Section:
    """Describe the system; `uid` and `user` are the user that runs envkit."""
    kernel = view.text("/proc/sys/kernel/osrelease").strip()
    wsl = is_wsl(kernel)
    nodes = numa_nodes(view)
    facts = (
        ("system", f"{host.os_title or host.os or 'unknown'}, {host.machine}"),
        ("kernel", kernel + (" (WSL)" if wsl else "")),
        ("inside a container", inside(view) or "no"),
        ("user", f"{user} ({uid})"),
        ("user namespaces", _namespaces(view, uid)),
        ("NUMA nodes", ", ".join(f"{name} (CPUs {cpus})" for name, cpus in nodes) or "unknown"),
    )
    findings = (
        *_of_platform(host),
        *_of_wsl(wsl=wsl),
        *_of_namespaces(view, uid),
        *_of_ids(view, uid, user),
        *_of_numa(view, nodes),
    )
    return Section(id="system", title="System", facts=facts, findings=findings)


def is_wsl(kernel: str) -> bool:
    """Return whether a kernel release is from the Windows Subsystem for Linux."""
    return "microsoft" in kernel.lower()


def inside(view: View) -> str | None:
    """Return the engine of the container that this process runs in; None outside a container."""
    for name, engine in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        if view.exists(name):
            return engine
    if "KUBERNETES_SERVICE_HOST" in view.environ:
        return "kubernetes"
    # systemd writes the container manager's name into it: `lxc`, `systemd-nspawn`.
    if named := view.text("/run/systemd/container").strip():
        return named
    # containerd leaves no file. Its root is an overlay, as in live systems, but with layers of its own.
    for row in view.text("/proc/self/mounts").splitlines():
        words = row.split()
        if words[1:3] == ["/", "overlay"]:
            return "containerd" if "containerd" in row else "an overlay as its root: probably a container"
    return "a chroot" if namespaces.in_chroot(view.root) else None


def numa_nodes(view: View) -> tuple[tuple[str, str], ...]:
    """Return the names of the NUMA nodes with their CPU lists, such as `0-15`."""
    folder = "/sys/devices/system/node"
    names = [name for name in view.names(folder) if re.fullmatch(r"node\d+", name)]
    return tuple((name, view.text(f"{folder}/{name}/cpulist").strip()) for name in names)


def _namespaces(view: View, uid: int) -> str:
    closed = namespaces.closed_by(view.root, uid=uid)
    if closed:
        return "; ".join(f"{setting.name}={setting.value}: {setting.why}" for setting in closed)
    if namespaces.in_chroot(view.root):
        return "not in a chroot"
    most = namespaces.settings(view.root).get("user.max_user_namespaces")
    # The settings allow them; a filter of the container may not.
    filtered = ", if the container's filter of system calls allows them" if namespaces.is_filtered(view.root) else ""
    return f"available ({most} at most){filtered}" if most else "unknown"


def _of_platform(host: Host) -> Iterator[Finding]:
    if host.platform is None:
        yield Finding(
            id="platform", severity=Severity.WARN, title=f"envkit has no builds for {host.machine}",
            cause="Images are built for x86_64 and aarch64; other machines run them only by emulation.",
            fix=("Build and verify on a machine with the image's architecture.",),
        )  # fmt: skip


def _of_wsl(*, wsl: bool) -> Iterator[Finding]:
    if wsl:
        yield Finding(
            id="wsl", severity=Severity.WARN, title="this is WSL: page-locked memory is limited to about 0.5 to 1 GB",
            cause="pin_memory and cudaHostAlloc fail above that with an out-of-memory error, whatever ulimit says.",
            check=("envkit verify IMAGE --only C09",),
            fix=("Use fewer workers and prefetched batches, or pin_memory=False. Keep data in the Linux file system.",),
            sources=("microsoft/WSL#14078", "NVIDIA/nvidia-container-toolkit#226"),
        )  # fmt: skip


def _of_namespaces(view: View, uid: int) -> Iterator[Finding]:
    closed = namespaces.closed_by(view.root, uid=uid)
    if not closed:
        return
    yield Finding(
        id="userns", severity=Severity.WARN, title="user namespaces are closed to this user",
        evidence=tuple(Evidence(text=f"{name} = {value}") for name, value in namespaces.settings(view.root).items()),
        cause="; ".join(f"{setting.name}={setting.value}: {setting.why}" for setting in closed)
        + ". bubblewrap and rootless podman need them; proot, and engines with a daemon, do not.",
        fix=tuple(f"as root: {setting.command}" for setting in closed)
        + (
            ("bubblewrap has an AppArmor profile here, so it may work as it is: envkit doctor lists it under Engines",)
            if namespaces.has_profile("bwrap", view.root) and [one.name for one in closed] == [_APPARMOR]
            else ()
        ),
        sources=_USERNS_DOCS,
    )  # fmt: skip


def _of_ids(view: View, uid: int, user: str) -> Iterator[Finding]:
    """Check the subordinate ID ranges onto which rootless podman maps the IDs of an image."""
    if uid == 0 or not view.exists("/usr/bin/podman"):
        return
    files = ("/etc/subuid", "/etc/subgid")
    owners = {name: {line.partition(":")[0] for line in view.text(name).splitlines()} for name in files}
    missing = [name for name, users in owners.items() if not {user, str(uid)} & users]
    if missing:
        yield Finding(
            id="subuid", severity=Severity.WARN, title=f"{user} has no subordinate ID range for rootless podman",
            evidence=tuple(Evidence(text=f"{name} has no line for {user}") for name in missing),
            cause="Most images have files of several users; podman cannot unpack them without a range.",
            check=("podman unshare cat /proc/self/uid_map",),
            fix=(f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}",),
            distinguish="bubblewrap and the embedded engine need no range.",
            sources=("containers/podman#12715", "containers/podman#22092"),
        )  # fmt: skip


def _of_numa(view: View, nodes: tuple[tuple[str, str], ...]) -> Iterator[Finding]:
    if len(nodes) < 2:  # noqa: PLR2004 - with one node there is nothing to choose
        return
    allowed = os.sched_getaffinity(0)
    for name in view.names("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{name}"
        # NVIDIA's vendor ID and the PCI class of display controllers; graphics cards also have an audio function.
        if view.text(f"{folder}/vendor").strip() != "0x10de" or not view.text(f"{folder}/class").startswith("0x03"):
            continue
        node = view.text(f"{folder}/numa_node").strip()
        cpus = cpu_set(dict(nodes).get(f"node{node}", ""))
        # numa_node is -1 if the firmware does not say.
        if node.isdigit() and cpus and not cpus & allowed:
            yield Finding(
                id="numa-remote", severity=Severity.WARN, title=f"this process may not use a CPU near the GPU {name}",
                evidence=(
                    Evidence(text=f"the GPU is at node {node}; its CPUs {dict(nodes)[f'node{node}']} are not allowed"),
                ),
                cause="In one measurement, copies through the other socket reached a third of the bandwidth.",
                fix=(f"numactl --cpunodebind={node} --membind={node} COMMAND, or --cpuset-cpus for containers",),
                sources=("mpicbg-scicomp/gearshifft#82",),
            )  # fmt: skip


def cpu_set(text: str) -> set[int]:
    """Parse a kernel CPU list such as `0-3,8`."""
    cpus: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            cpus.update(range(int(low), int(high) + 1 if high.isdigit() else int(low) + 1))
    return cpus
