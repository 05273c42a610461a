"""A program that creates namespaces, mounts the layers and /sys, and then replaces itself with bubblewrap.

The mounts have to be made before bubblewrap starts, in namespaces that it then uses: versions before 0.11 do not
support overlays, and no version mounts a sysfs of its own, without which a container sees the host's network devices.
Only the standard library is imported, because this runs without site packages.

Argument: one JSON object
    parent    process ID of the process that starts this
    folder    the run's folder; `merged` and `sys` in it become mount points
    lowers    names in the folder, uppermost first
    overlay, sysfs    whether to mount them
    uid, gid  the host's user that the container runs as; used only by root
    shift     a container's ID is the host's ID minus this; 0: the IDs are the same
    network   whether the container gets its own, empty network
    mounts    name in the folder -> a folder of the host; for root, each becomes a mount point at which owners are the
              host's IDs minus `shift`
    status    a descriptor that receives one JSON object with `error` if this fails; null: the error goes to stderr
    argv      the command to execute; for root, `--userns FD --sync-fd FD` is inserted after its first word
Source: namespaces(7), user_namespaces(7), mount(2), mount_setattr(2); Linux Documentation/filesystems/overlayfs.rst;
netdevice(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NEW_MOUNTS, _NEW_USERS, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
# MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
# The same numbers on x86-64 and arm64.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
# OPEN_TREE_CLONE, AT_RECURSIVE, AT_EMPTY_PATH, MOVE_MOUNT_F_EMPTY_PATH, MOUNT_ATTR_IDMAP
_AT_FDCWD, _CLONE, _RECURSE, _EMPTY_PATH, _FROM_EMPTY_PATH, _ID_MAPPED = -100, 1, 0x8000, 0x1000, 4, 0x00100000
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_GET_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
_MOUNT_ROOTS = ("/mnt", "/media", "/srv", "/home")  # the first that this run does not use is hidden by a tmpfs
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(text: str) -> None:
    """Set up the namespaces and execute bubblewrap. Returns only by an exception."""
    task = json.loads(text)
    uid, gid = os.geteuid(), os.getegid()
    root = uid == 0
    _die_with(task["parent"])
    _call("unshare", _NEW_MOUNTS | (_NEW_NETWORK if task["network"] else 0) | (0 if root else _NEW_USERS))
    if not root:
        _map_self(uid, gid)
    # systemd makes / a shared mount, and a new namespace inherits that. Without this, the mounts below would appear on
    # the machine as well (mount_namespaces(7)).
    _mount("none", "/", None, _RECURSIVE | _PRIVATE, None)
    if task["network"]:
        _loopback_up()
    # Relative names for the layers: mount(2) limits its options to one page of memory, which the absolute paths of many
    # layers would exceed.
    os.chdir(task["folder"])
    # Clone before the overlay is mounted. A folder that contains the cache would otherwise include the overlay, which
    # does not support idmapped mounts.
    trees = {name: _clone(source) for name, source in task["mounts"].items()} if root else {}
    if task["overlay"]:
        # Opaque folders are marked with `user.overlay.*`: only root may write the usual `trusted.overlay.*`
        # (overlayfs.rst).
        _mount("overlay", "merged", "overlay", _READ_ONLY, f"userxattr,lowerdir={':'.join(task['lowers'])}")
    if task["sysfs"]:
        _mount("sysfs", "sys", "sysfs", _READ_ONLY | _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS, None)
    argv = task["argv"]
    if root:
        descriptor = _users(task["uid"], task["gid"], task["shift"])
        os.set_inheritable(descriptor, True)
        # Bubblewrap would leak the namespace's descriptor to the command, but it closes the one named by `--sync-fd`.
        argv = [argv[0], "--userns", str(descriptor), "--sync-fd", str(descriptor), *argv[1:]]
        for name, tree in trees.items():
            _attach(tree, name, descriptor if task["shift"] else None, task["mounts"][name])
        argv = _moved(argv, task["folder"], ("merged", "sys", *task["mounts"]))
        _become(task["uid"], task["gid"])
        _die_with(task["parent"])  # again, because changing the user clears it
    os.execve(argv[0], argv, {})  # noqa: S606 - a full path, no shell


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, as bubblewrap does once it has started."""
    _call("prctl", _SET_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))
    # A parent that ended before the call above sends no signal.
    if os.getppid() != parent:
        raise OSError(3, "the parent process has ended")


def _map_self(uid: int, gid: int) -> None:
    """Map the caller to root in the new user namespace, as its only user."""
    # An unprivileged process may map a group only after denying setgroups (user_namespaces(7)).
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")


def _become(uid: int, gid: int) -> None:
    """Change to this user and group, and leave all other groups."""
    # The user last: only root may change groups.
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _users(uid: int, gid: int, shift: int) -> int:
    """Return a descriptor of a new user namespace whose user 0 is the host's user `shift`, so that files keep owners.

    The namespace belongs to the container's user, so that bubblewrap can run as that user and enter it.
    """
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, the child must not return into this program's code.
        with contextlib.suppress(BaseException):
            _become(uid, gid)
            _call("unshare", _NEW_USERS)
            os.write(ready[1], b"1")
            # Its own copy of the writing end, so that the read ends when the parent does.
            os.close(done[1])
            os.read(done[0], 1)
        os._exit(0)
    os.close(ready[1])
    try:
        if not os.read(ready[0], 1):
            raise OSError(1, "no user namespace can be created (user.max_user_namespaces)")
        # The parent writes the maps: without capabilities in this namespace, the child may map only its own ID.
        for name in ("uid_map", "gid_map"):
            ranges = [tuple(map(int, line.split())) for line in Path(f"/proc/self/{name}").read_text().splitlines()]
            _write(f"/proc/{child}/{name}", "".join(_rows(ranges, shift)))
        # The open descriptor keeps the namespace when its only process ends (namespaces(7)).
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _rows(ranges: list[tuple[int, ...]], shift: int) -> Iterator[str]:
    """Yield the lines of an ID map that maps the IDs from `shift` on, as far as this process has them, to 0 and up."""
    for first, _, count in ranges:
        begin, end = max(first, shift), first + count
        if begin < end:
            yield f"{begin - shift} {begin} {end - begin}\n"


def _clone(source: str) -> int:
    """Return a descriptor of a detached copy of a folder's mount and of all mounts below it."""
    tree = int(_LIBC.syscall(_OPEN_TREE, _AT_FDCWD, source.encode(), ctypes.c_uint(_CLONE | os.O_CLOEXEC | _RECURSE)))
    if tree < 0:
        _fail("open_tree", source)
    return tree


def _attach(tree: int, target: str, users: int | None, source: str) -> None:
    """Attach a cloned mount tree at a folder, with owners mapped by the user namespace `users` if there is one."""
    if users is not None:
        # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
        attributes = struct.pack("=QQQQ", _ID_MAPPED, 0, 0, users)
        flags = ctypes.c_uint(_EMPTY_PATH | _RECURSE)
        if _LIBC.syscall(_MOUNT_SETATTR, tree, b"", flags, attributes, ctypes.c_size_t(len(attributes))):
            _fail("this file system does not support idmapped mounts", source)
    if _LIBC.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), ctypes.c_uint(_FROM_EMPTY_PATH)):
        _fail("move_mount", source)
    os.close(tree)


def _moved(argv: list[str], folder: str, names: tuple[str, ...]) -> list[str]:
    """Move the run's mounts out of root's cache, which the run's user may not enter; return the updated arguments."""
    unused = [
        path
        for path in _MOUNT_ROOTS
        if Path(path).is_dir()
        and not Path(path).is_symlink()
        and not any(f"{word}/".startswith(f"{path}/") and not word.startswith(f"{folder}/") for word in argv)
    ]
    if not unused:
        raise OSError(2, f"the run needs one of {', '.join(_MOUNT_ROOTS)}, but each is missing, a link, or used by it")
    mount_root = unused[0]
    # Opened before the tmpfs is mounted, because it may hide the run's folder (a cache below /home).
    descriptors = [os.open(name, os.O_PATH | os.O_DIRECTORY) for name in names]
    _mount("tmpfs", mount_root, "tmpfs", _NO_SETUID | _NO_DEVICES, "mode=0755,size=64k")
    for name, descriptor in zip(names, descriptors, strict=True):
        Path(mount_root, name).mkdir(0o755)
        _mount(f"/proc/self/fd/{descriptor}", f"{mount_root}/{name}", None, _BIND | _RECURSIVE, None)
        os.close(descriptor)
    os.chdir("/")
    targets = {f"{folder}/{name}": f"{mount_root}/{name}" for name in names}
    return [targets.get(word, word) for word in argv]


def _loopback_up() -> None:
    """Bring up the loopback device, the only device of the new network, as in every container."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # struct ifreq with the name and the flags
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _IS_UP))


def _write(path: str, text: str) -> None:
    # In one call: the kernel accepts an ID map only once and as a whole.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    _call("mount", *(_bytes(text) for text in (source, target, kind)), ctypes.c_ulong(flags), _bytes(data))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _fail(what: str, path: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{path}: {what}: {os.strerror(number)}")


def _call(name: str, *arguments: Any) -> None:
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        shown = [argument.decode() for argument in arguments if isinstance(argument, bytes)]
        raise OSError(number, f"{' '.join([name, *shown[:3]])}: {os.strerror(number)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as failure:
        status = json.loads(sys.argv[1])["status"]
        if status is None:
            sys.exit(f"enter: {failure.strerror}")
        os.write(status, json.dumps({"error": failure.strerror}).encode() + b"\n")
        sys.exit(1)
