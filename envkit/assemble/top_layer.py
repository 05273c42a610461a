"""The small top layer: the frame of the virtual environment, the entry script, the user, the plan and the lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.assemble.base_files import SET_IDS, BaseFiles
from envkit.assemble.layer import LayerWriter, order, parents
from envkit.ground import paths
from envkit.image.spec import MTIME, LayerDigest
from envkit.image.tarstream import Kind
from envkit.image.tree import Node
from envkit.lock.store import to_text
from envkit.plan.copying import merged
from envkit.plan.definition import kind_of

if TYPE_CHECKING:
    from envkit.image.deflate import Writable
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan

SHARE = "usr/share/envkit"
_HOME = "/tmp/home"  # noqa: S108 - a folder of the image, not of this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One path of the layer: a folder with a mode, a link with a target, or a file with contents."""

    mode: int | None = None
    target: str | None = None
    data: bytes = b""
    executable: bool = False
    owner: tuple[int, int] = (0, 0)  # user and group


def items(plan: BuildPlan, lock: Lock, base: BaseFiles) -> dict[str, Item]:
    """Return the contents of the layer by path, without a leading slash.

    Setuid and setgid files of the base are added without those bits, so no program of the image changes its user.
    """
    uid, _, gid = plan.user.partition(":")
    entries: dict[str, Item] = {
        f"{SHARE}/plan.json": Item(data=plan.canonical()),
        f"{SHARE}/envkit.lock": Item(data=to_text(lock).encode()),
        # ssh and getpass.getuser() need a name for the user ID.
        "etc/passwd": _with_line(base.text("/etc/passwd"), f"envkit:x:{uid}:{gid}:envkit:{_HOME}:/bin/bash"),
        "etc/group": _with_line(base.text("/etc/group"), f"envkit:x:{gid}:"),
        # The mode of /tmp: with --user or a rootless engine, any user ID has to be able to write here, without removing
        # the files of others.
        plan.workdir.strip("/"): Item(mode=0o1777),
    }
    entries |= {path.strip("/"): Item(mode=0o1777) for path in plan.volumes}
    files = paths.data_folder("templates") / "files"
    for name in ("entry.sh", *(("sshd.sh",) if "ssh" in plan.features else ())):
        entries[f"{SHARE}/{name}"] = Item(data=(files / name).read_bytes())
    if kind_of(plan.template) == "wheels":
        entries |= environment(plan, lock)
    for path, node in base.set_ids().items():
        if not path.startswith(f"{plan.prefix.strip('/')}/"):
            entries.setdefault(path, _without_set_ids(node))
    entries.pop("", None)  # if the working folder is /, it keeps the mode of the base
    return entries


def copied_items(plan: BuildPlan) -> dict[str, Item]:
    """Return the copied files of the project by path, without a leading slash.

    Raises:
        UsageError: as `envkit.plan.copying.files_of`.
    """
    return {path: Item(data=file.data, executable=file.executable) for path, file in merged(plan).items()}


def environment(plan: BuildPlan, lock: Lock) -> dict[str, Item]:
    """Return the virtual environment as `python -m venv` makes it, without pip and activation scripts."""
    root, python = plan.prefix.strip("/"), f"python{lock.python}"
    config = {
        "home": "/usr/bin",
        "include-system-site-packages": "false",
        "version": interpreter_version(lock),
        "executable": f"/usr/bin/{python}",
    }
    return {
        f"{root}/bin/python": Item(target="python3"),
        f"{root}/bin/python3": Item(target=f"/usr/bin/{python}"),
        f"{root}/bin/{python}": Item(target="python3"),
        f"{root}/include/{python}": Item(mode=0o755),
        f"{root}/lib/{python}/site-packages": Item(mode=0o755),
        f"{root}/lib64": Item(target="lib"),
        f"{root}/pyvenv.cfg": Item(data="".join(f"{key} = {value}\n" for key, value in config.items()).encode()),
    }


def interpreter_version(lock: Lock) -> str:
    """Return the version of the system's Python: '3.11.2' if the lock has its package, else '3.11'."""
    packages = {package.name: package.version for package in lock.base.packages}
    # Debian puts an epoch before the version and a revision after it: 1:3.11.2-6.
    return packages.get(f"python{lock.python}", lock.python).rpartition(":")[2].partition("-")[0].partition("~")[0]


def write(entries: Mapping[str, Item], base: BaseFiles, sink: Writable) -> LayerDigest:
    """Write the layer. It has no entries for parent folders that the base has, so these keep their modes."""
    above = {path for path in parents(entries) if path not in entries and not _is_folder(base, path)}
    with LayerWriter(sink, mtime=MTIME) as writer:
        for path in sorted({*entries, *above}, key=order):
            item = entries.get(path, Item(mode=0o755))
            if item.mode is not None:
                writer.add_dir(path, mode=item.mode, owner=item.owner)
            elif item.target is not None:
                writer.add_symlink(path, item.target)
            else:
                writer.add_bytes(path, item.data, executable=item.executable, owner=item.owner)
        return writer.close()


def _without_set_ids(node: Node) -> Item:
    if node.kind is Kind.FOLDER:
        return Item(mode=node.mode & ~SET_IDS, owner=(node.uid, node.gid))
    return Item(data=node.value or b"", executable=bool(node.mode & 0o111), owner=(node.uid, node.gid))


def _is_folder(base: BaseFiles, path: str) -> bool:
    node = base.find(path)
    return node is not None and node.kind is Kind.FOLDER


def _with_line(text: str, line: str) -> Item:
    """Return a file of this text with a line appended."""
    start = text if not text or text.endswith("\n") else f"{text}\n"
    return Item(data=f"{start}{line}\n".encode(errors="surrogateescape"))
