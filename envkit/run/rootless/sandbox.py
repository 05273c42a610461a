"""Prepare one run: its folder, and bubblewrap's arguments, which decide what the container sees.

CACHE/runs/NAME/top       mount points and files above the image's layers
CACHE/runs/NAME/merged    mount point of the overlay, or a tree of hard links
CACHE/runs/NAME/sys       mount point of the container's own sysfs
CACHE/runs/NAME/0, 1 ...  links to the layers, uppermost first: the kernel limits mount options to one page
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from envkit.ground.errors import EnvironmentProblem
from envkit.run.model import DATA, RunLimits
from envkit.run.rootless.gpu_devices import GpuEdits
from envkit.run.rootless.kernel_files import empty, proc_words, sys_words
from envkit.run.rootless.layered_tree import LayeredTree, Top, inside, link_layers, make_top
from envkit.run.rootless.user import User
from envkit.run.session import Mount

HOSTNAME = "envkit"
_HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n".encode()
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # Docker's default
_MOUNT_POINTS = ("/proc", "/dev", "/sys", "/tmp")  # noqa: S108 - a file system inside the container


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How containers can be made on this machine, as `start.probe` found out."""

    entered: bool  # `enter.py` runs before bubblewrap
    overlay: bool  # it mounts the layers as an overlay
    sysfs: bool  # it mounts a sysfs of the container's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A container that is ready to be started."""

    folder: Path
    lowers: tuple[str, ...]
    overlay: bool
    user: User
    words: tuple[str, ...]  # bubblewrap's arguments, without descriptors
    network: bool = True  # whether it has its own, empty network
    mounts: Mapping[str, str] = field(default_factory=dict)  # name in the folder -> a folder of the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The contents and settings of a container."""

    files: Mapping[str, bytes]
    user: User
    env: Mapping[str, str]
    workdir: str
    gpus: GpuEdits | None
    data: Path | None = None  # the user's folder, mounted at `DATA`
    mounts: tuple[Mount, ...] = ()
    volumes: tuple[str, ...] = ()  # writable folders, empty at the start
    network: bool = True  # whether it gets its own, empty network instead of the machine's
    terminal: bool = False  # whether it leads its own terminal


def prepare(folder: Path, stack: LayeredTree, means: Means, run: Inside, limits: RunLimits) -> Sandbox:
    """Fill a run's folder and return the container to start.

    Raises:
        EnvironmentProblem: the folder cannot be written.
    """
    # Without the kernel's whiteouts in a layer, an overlay would show the files that it removes.
    overlay = means.overlay and all(layer.contents.overlay for layer in stack.layers)
    mounts, gpus = host_mounts(run.gpus, run.data), run.gpus
    workdir = inside(run.workdir)
    folders = (*_MOUNT_POINTS, workdir, *run.volumes, *(bind.target for bind in run.mounts))
    links = gpus.links if gpus else {}
    lay_out(folder, stack, files=run.files, folders=folders, links=links, mounts=mounts)
    lowers: tuple[str, ...] = ()
    if overlay:
        lowers = _link_layers(folder, stack)
    else:
        merge(folder, stack)
    words = [*_isolation(means, run), *_mounts(folder, limits)]
    for volume in run.volumes:
        # For any user, because the image's USER may be any.
        words += ["--perms", "1777", "--tmpfs", inside(volume)]
    # With shifted IDs these mounts have to be mapped, which `enter.py` does before bubblewrap starts.
    mapped = {f"mount{number}": str(bind.source) for number, bind in enumerate(run.mounts)} if _maps(means) else {}
    for name in mapped:
        (folder / name).mkdir()
    for number, mount in enumerate(run.mounts):
        source = f"{folder}/mount{number}" if mapped else str(mount.source)
        words += ["--ro-bind" if mount.read_only else "--bind", source, inside(mount.target)]
    for host, path in gpus.devices if gpus else ():
        words += ["--dev-bind", host, path]
    for host, path in mounts:
        words += ["--ro-bind", host, path]
    words += [*proc_words(), *_sys(folder, means, run), "--remount-ro", "/dev"]
    for key, value in environment(run.user, run.env, gpus).items():
        words += ["--setenv", key, value]
    return Sandbox(
        folder=folder,
        lowers=lowers,
        overlay=overlay,
        user=run.user,
        words=(*words, "--chdir", workdir),
        network=run.network,
        mounts=mapped,
    )


def _maps(means: Means) -> bool:
    """Return whether `enter.py` runs as root, so that the container's IDs differ from the host's."""
    return means.entered and os.geteuid() == 0


def lay_out(
    folder: Path,
    stack: LayeredTree,
    *,
    files: Mapping[str, bytes],
    folders: Sequence[str],
    links: Mapping[str, str],
    mounts: Sequence[tuple[str, str]],
) -> None:
    """Write the uppermost folder of a run, for an overlay or for `merge`.

    Raises:
        EnvironmentProblem: the folder cannot be written.
    """
    top = Top(
        folders=(*folders, *(path for host, path in mounts if Path(host).is_dir())),
        files={
            **{path: b"" for host, path in mounts if not Path(host).is_dir()},
            "/etc/hosts": _HOSTS,
            "/etc/hostname": f"{HOSTNAME}\n".encode(),
            "/etc/resolv.conf": b"",
            **files,
        },
        links=links,
    )
    with _filled(folder):
        make_top(folder / "top", stack, top)
        (folder / "sys").mkdir()


def merge(folder: Path, stack: LayeredTree, *, keep_from: int | None = None) -> None:
    """Merge the layers and the uppermost folder into a tree of hard links; for `keep_from` see `link_layers`.

    Raises:
        EnvironmentProblem: the folder cannot be written.
    """
    with _filled(folder):
        link_layers(stack.layers, folder / "top", folder / "merged", keep_from=keep_from)


def _link_layers(folder: Path, stack: LayeredTree) -> tuple[str, ...]:
    """Make the mount point of an overlay, and links to its trees; return their names, uppermost first."""
    trees = [folder / "top", *(layer.tree for layer in reversed(stack.layers))]
    names = tuple(map(str, range(len(trees))))
    with _filled(folder):
        (folder / "merged").mkdir()
        for name, tree in zip(names, trees, strict=True):
            (folder / name).symlink_to(tree.absolute())
    return names


@contextmanager
def _filled(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"{folder} cannot be written: {error.strerror or error}",
            hint="free disk space, or set XDG_CACHE_HOME to another disk",
        ) from error


def host_mounts(gpus: GpuEdits | None, data: Path | None) -> tuple[tuple[str, str], ...]:
    """Return the read-only mounts for GPUs and data: (path on the machine, path in the container)."""
    own = () if data is None else ((str(data), DATA),)
    # After an update of the driver, a CDI specification may list files that no longer exist.
    return (*((host, path) for host, path in (gpus.mounts if gpus else ()) if Path(host).exists()), *own)


def environment(user: User, env: Mapping[str, str], gpus: GpuEdits | None) -> dict[str, str]:
    """Return the environment of a run whose image sets `env`."""
    variables = {"PATH": _PATH, "HOME": user.home, "HOSTNAME": HOSTNAME, **env, **(gpus.env if gpus else {})}
    # The kernel accepts `=value` in an image's Env, but setenv(3), which bubblewrap calls, does not.
    return {key: value for key, value in variables.items() if key}


def _isolation(means: Means, run: Inside) -> list[str]:
    # `try`: kernels before Linux 4.6 have no cgroup namespaces.
    words = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--hostname", HOSTNAME, "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    # A new session has no terminal. A command with its own terminal leads a session already.
    words += [] if run.terminal else ["--new-session"]
    # `enter.py` has already made the network namespace and, as root, a user namespace with all users.
    words += [] if means.entered or not run.network else ["--unshare-net"]
    words += [] if means.entered and os.geteuid() == 0 else ["--unshare-user"]
    return [*words, "--uid", str(run.user.uid), "--gid", str(run.user.gid)]


def _mounts(folder: Path, limits: RunLimits) -> list[str]:
    words = ["--ro-bind", str(folder / "merged"), "/", "--proc", "/proc", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(limits.shm_mb << 20), "--tmpfs", "/dev/shm"]  # noqa: S108
    size = [] if limits.tmp_mb is None else ["--size", str(limits.tmp_mb << 20)]
    return [*words, "--perms", "1777", *size, "--tmpfs", "/tmp"]  # noqa: S108 - a file system inside the container


def _sys(folder: Path, means: Means, run: Inside) -> list[str]:
    """Return the arguments for /sys: the container's own, else the machine's where a run needs it, else none."""
    if means.sysfs:
        return ["--ro-bind", str(folder / "sys"), "/sys", *sys_words()]
    if run.network and run.gpus is None:
        return []  # the machine's shows the names of its network devices, which the container does not have
    # CUDA fails with error 304 if it cannot read /sys/devices/system/node and /sys/bus/pci/devices.
    return ["--ro-bind", "/sys", "/sys", *sys_words(), *(empty("/sys/class/net") if run.network else ())]
