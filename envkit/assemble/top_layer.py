"""The small layer on top: the virtual environment's frame, the entry script, the user, the plan and the lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.assemble.base_files import BaseFiles
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
_SET_IDS = 0o6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One path of the layer: a folder with a mode, a link with a target, or a file with contents."""

    mode: int | None = None
    target: str | None = None
    data: bytes = b""
    executable: bool = False
    owner: tuple[int, int] = (0, 0)  # user and group


def items(plan: BuildPlan, lock: Lock, base: BaseFiles) -> dict[str, Item]:
    """Return what the layer holds by path, without leading slash.

    What in the base would change the user or group of who runs it is in it again, without that bit.
    """
    uid, _, gid = plan.user.partition(":")
    entries: dict[str, Item] = {
        f"{SHARE}/plan.json": Item(data=plan.canonical()),
        f"{SHARE}/envkit.lock": Item(data=to_text(lock).encode()),
        "etc/passwd": _with_line(base.text("/etc/passwd"), f"envkit:x:{uid}:{gid}:envkit:{_HOME}:/bin/bash"),
        "etc/group": _with_line(base.text("/etc/group"), f"envkit:x:{gid}:"),
        # As /tmp: --user and rootless engines run the image as any user, who has to be able to write here, and must not
        # remove the files of others.
        plan.workdir.strip("/"): Item(mode=0o1777),
    }
    entries |= {path.strip("/"): Item(mode=0o1777) for path in plan.volumes}
    files = paths.data_folder("templates") / "files"
    for name in ("entry.sh", *(("sshd.sh",) if "ssh" in plan.features else ())):
        entries[f"{SHARE}/{name}"] = Item(data=(files / name).read_bytes())
    if kind_of(plan.template) == "wheels":
        entries |= environment(plan, lock)
    for path, entry in base.set_ids().items():
        if not path.startswith(f"{plan.prefix.strip('/')}/"):
            entries.setdefault(path, _without_set_ids(entry))
    entries.pop("", None)  # the root as working folder stays as the base has it
    return entries


def copied_items(plan: BuildPlan) -> dict[str, Item]:
    """Return the files of the project by path, without leading slash.

    Raises:
        UsageError: as `envkit.plan.copying.files_of`.
    """
    return {path: Item(data=file.data, executable=file.executable) for path, file in merged(plan).items()}


def environment(plan: BuildPlan, lock: Lock) -> dict[str, Item]:
    """Return the frame that `python -m venv` makes, without pip and activation scripts."""
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
    """Return the OS's Python as exactly as the lock knows it: '3.11.2', else '3.11'."""
    packages = {package.name: package.version for package in lock.base.packages}
    # Debian puts an epoch before the version and a revision behind it: 1:3.11.2-6.
    return packages.get(f"python{lock.python}", lock.python).rpartition(":")[2].partition("-")[0].partition("~")[0]


def write(found: Mapping[str, Item], base: BaseFiles, sink: Writable) -> LayerDigest:
    """Write the layer. Folders that the base has keep its modes: they are not named again."""
    above = {path for path in parents(found) if path not in found and not _is_folder(base, path)}
    with LayerWriter(sink, mtime=MTIME) as writer:
        for path in sorted({*found, *above}, key=order):
            item = found.get(path, Item(mode=0o755))
            if item.mode is not None:
                writer.add_dir(path, mode=item.mode, owner=item.owner)
            elif item.target is not None:
                writer.add_symlink(path, item.target)
            else:
                writer.add_bytes(path, item.data, executable=item.executable, owner=item.owner)
        return writer.close()


def _without_set_ids(entry: Node) -> Item:
    if entry.kind is Kind.FOLDER:
        return Item(mode=entry.mode & ~_SET_IDS, owner=(entry.uid, entry.gid))
    return Item(data=entry.value or b"", executable=bool(entry.mode & 0o111), owner=(entry.uid, entry.gid))


def _is_folder(base: BaseFiles, path: str) -> bool:
    entry = base.find(path)
    return entry is not None and entry.kind is Kind.FOLDER


def _with_line(text: str, line: str) -> Item:
    """Return a file with a line after what it has."""
    start = text if not text or text.endswith("\n") else f"{text}\n"
    return Item(data=f"{start}{line}\n".encode(errors="surrogateescape"))
