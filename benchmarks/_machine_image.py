"""An image made of this machine's own Python and torch, as an OCI layout, for machines without a network.

It has the interpreter with its environment and the packages that torch needs, at their own paths, and `/opt/env` as a
link to the environment, where envkit's images have theirs. Of the system it has a shell, a few programs and the
libraries that all of these load, or whole folders with a C compiler. The driver's libraries stay out: runners add them.
The Python has to be that of a virtual environment.
"""

# Paths are text here: there are tens of thousands of them, and with pathlib most of the time went into it.
# ruff: noqa: PTH112, PTH113, PTH114, PTH115, PTH118, PTH119, PTH120, PTH123

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import stat
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from envkit.ground.naming import LABEL_PREFIX
from envkit.plan.model import PREFIX

_PROGRAMS = ("sh", "bash", "cat", "env", "grep", "head", "id", "ls", "mkdir", "nproc", "rm", "sed", "sleep", "timeout")
# A compiler needs headers, object files and linker scripts from many packages, so it gets the folders as they are.
_FOLDERS = (
    "/usr/bin",
    "/usr/include",
    "/usr/lib/gcc",
    "/usr/libexec/gcc",
    "/usr/sbin/ldconfig",
    "/usr/sbin/ldconfig.real",
)
_MULTIARCH = f"/usr/lib/{platform.machine()}-linux-gnu"
_MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")  # links into /usr on merged systems
_DRIVER = ("libcuda.so", "libcudadebugger.so", "libnvidia-", "libnvcuvid.so", "libnvoptix.so")
_TOP = ("torch", "torchvision", "torchaudio", "numpy", "pillow", "triton", "pytorch-triton", "setuptools")
_PIECE = 1 << 20  # bytes that are hashed and written at a time
_USER = "1000:1000"
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
# What the image's Python says of itself and of the files of torch and of everything that torch requires.
_ASK = r"""
import importlib.metadata as m, json, re, sys, sysconfig, torch
seen, asked, waiting = {}, set(), [(name, "") for name in sys.argv[1:]]
while waiting:
    name, extra = waiting.pop()
    name = re.sub(r"[-_.]+", "-", name).lower()
    if (name, extra) in asked:
        continue
    asked.add((name, extra))
    try:
        found = m.distribution(name)
    except m.PackageNotFoundError:
        continue
    seen[name] = sorted({str(found.locate_file(file)) for file in found.files or ()})
    for line in found.requires or ():
        # torch 2.11 requires "cuda-toolkit[nvrtc,cusolver]", whose own requirements all belong to an extra.
        only = re.search(r"extra == ['\"]([^'\"]+)", line)
        if only is None or only[1] == extra:
            wanted = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", line)
            waiting += [(wanted[1], part.strip()) for part in ["", *(wanted[2] or "").split(",")]]
cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
print(json.dumps({
    "files": sorted({file for files in seen.values() for file in files}),
    "prefix": sys.prefix, "executable": sys.executable, "base": sys.base_prefix, "stdlib": sysconfig.get_path("stdlib"),
    "torch": str(torch.__version__), "cuda": torch.version.cuda, "archs": torch.cuda.get_arch_list(),
    "python": "%d.%d" % sys.version_info[:2],
    "cudnn": None if cudnn is None else "%d.%d.%d" % ((cudnn // 10000, cudnn // 100 % 100, cudnn % 100)
        if cudnn >= 90000 else (cudnn // 1000, cudnn // 100 % 10, cudnn % 100)),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineImage:
    """The image: its layout's folder, its size in bytes, and how long it took to make."""

    folder: Path
    size: int
    seconds: float

    @property
    def reference(self) -> str:
        """How envkit's commands name it."""
        return f"oci:{self.folder}"


class _Tree:
    """The files of the image by path. Links on the way to a file are taken over with it."""

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        self.paths: set[str] = set()
        self._without = without
        self._real: dict[str, str] = {"/": "/"}

    def add(self, path: str) -> None:
        """Add a file, a link with what it leads to, or a folder with everything in it."""
        above, name = os.path.split(os.path.normpath(path))
        whole = os.path.join(self._folder(above), name)
        if whole in self.paths or not os.path.lexists(whole) or whole.endswith(self._without):
            return
        self.paths.add(whole)
        if os.path.islink(whole):
            self.add(os.path.join(os.path.dirname(whole), os.readlink(whole)))
        elif os.path.isdir(whole):
            for entry in os.scandir(whole):
                self.add(entry.path)

    def _folder(self, path: str) -> str:
        """Return a folder without links in its path; add each link on the way."""
        if path not in self._real:
            above, name = os.path.split(path)
            whole = os.path.join(self._folder(above), name)
            if os.path.islink(whole):
                self.paths.add(whole)
                whole = self._folder(os.path.normpath(os.path.join(os.path.dirname(whole), os.readlink(whole))))
            self._real[path] = whole
        return self._real[path]


def make(folder: Path, python: str, *, compiler: bool = False, more: Mapping[str, bytes] | None = None) -> MachineImage:
    """Write the image of a Python to a new folder, with `more` files by their path below the environment.

    Raises:
        RuntimeError: this Python cannot import torch, or is not that of a virtual environment.
    """
    begin = time.monotonic()
    asked = subprocess.run([python, "-c", _ASK, *_TOP], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise RuntimeError(f"{python} cannot import torch: {asked.stderr.strip().splitlines()[-1:]}")
    told: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    if told["prefix"] == told["base"]:
        raise RuntimeError(f"{python} is not the Python of a virtual environment")
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    own = _own(told) | {f"{told['prefix'].lstrip('/')}/{name}": data for name, data in (more or {}).items()}
    layer = _layer(blobs, sorted(_paths(told, compiler=compiler)), own)
    env = {"PATH": f"{PREFIX}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
    if told["cuda"]:
        env |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in env.items()],
            "Cmd": ["python3"],
            "User": _USER,
            "WorkingDir": "/tmp",
            "Labels": _labels(told),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _blob(blobs, config, "config.v1+json"),
        "layers": [layer],
    }
    index = {"schemaVersion": 2, "manifests": [_blob(blobs, manifest, "manifest.v1+json")]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return MachineImage(folder=folder, size=layer["size"], seconds=time.monotonic() - begin)


def _labels(told: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels by which the image is verified: it promises what this Python says of itself."""
    archs = sorted({arch.partition("_")[2] for arch in told["archs"] if arch.startswith("sm_")})
    values = {
        "torch": told["torch"].partition("+")[0],
        "python": told["python"],
        "cuda": told["cuda"] or "none",
        "cudnn": told["cudnn"],
        "gpu.archs": " ".join(f"{arch.rstrip('af')[:-1]}.{arch.rstrip('af')[-1]}" for arch in archs),
        "shm-mb": "1024",
    }
    return {f"{LABEL_PREFIX}.{name}": value for name, value in values.items() if value}


def _paths(told: Mapping[str, Any], *, compiler: bool) -> set[str]:
    """Return the paths of this machine that are in the image."""
    # Headers are for a compiler alone.
    tree, prefix = _Tree(() if compiler else ("/torch/include",)), told["prefix"]
    for file in told["files"]:
        if compiler or "/torch/include/" not in file:
            tree.add(file)
    for name in ("pyvenv.cfg", "bin/python", "bin/python3", f"bin/python{told['python']}"):
        tree.add(f"{prefix}/{name}")
    tree.add(told["executable"])
    for entry in os.scandir(told["stdlib"]):
        if entry.name not in ("site-packages", "dist-packages", "test", "idlelib", "tkinter"):
            tree.add(entry.path)
    programs = [found for name in _PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin:/usr/sbin"))]
    for path in ("/etc/ld.so.cache", *programs):
        tree.add(path)
    # The links alone, because what they lead to is everything.
    tree.paths |= {path for path in (*_MERGED, f"{prefix}/lib64") if os.path.islink(path)}
    for path in (*_FOLDERS, _MULTIARCH) if compiler else ():
        tree.add(path)
    # Of the folders that are there as a whole, the libraries are there, too.
    whole = (*_FOLDERS, _MULTIARCH) if compiler else ()
    outside = (path for path in tree.paths if not path.startswith(whole))
    own = sorted(path for path in outside if ".so" in path or os.access(path, os.X_OK))
    for path in _libraries([path for path in own if os.path.isfile(path) and _is_elf(path)]):
        tree.add(path)
    return {path for path in tree.paths if not os.path.basename(path).startswith(_DRIVER)}


def _is_elf(path: str) -> bool:
    with open(path, "rb") as stream:
        return stream.read(4) == b"\x7fELF"


def _libraries(files: list[str]) -> Iterator[str]:
    """Yield the paths of all libraries that files load, as the loader finds them."""
    for begin in range(0, len(files), 200):
        said = subprocess.run(["ldd", *files[begin : begin + 200]], capture_output=True, text=True, check=False).stdout
        for line in said.splitlines():
            words = line.split()
            found = words[2] if len(words) > 2 and words[1] == "=>" else words[0] if words else ""
            if line.startswith("\t") and found.startswith("/"):
                yield found


def _own(told: Mapping[str, Any]) -> dict[str, str | bytes]:
    """Return what the image has and this machine does not: files by path, and links as text that begins with `->`."""
    links = {PREFIX.lstrip("/"): f"->{told['prefix']}"}
    if not os.path.lexists(f"{told['prefix']}/bin/python"):
        links[f"{told['prefix'].lstrip('/')}/bin/python"] = "->python3"
    return {**{name: text.encode() for name, text in _FILES.items()}, **links}


def _layer(blobs: Path, paths: Iterable[str], own: Mapping[str, str | bytes]) -> dict[str, Any]:
    """Write the layer, uncompressed, and return its descriptor. Its digest is computed while it is written."""
    temporary = blobs / "layer"
    with temporary.open("wb") as stream:
        sink = _Hashing(stream)
        with tarfile.open(fileobj=cast("BinaryIO", sink), mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PIECE) as tar:
            names = {path.lstrip("/"): path for path in paths}
            folders = {str(parent) for name in (*names, *own, "tmp/x", "var/x") for parent in Path(name).parents} - {
                "."
            }
            for name in sorted(folders - {name for name, path in names.items() if os.path.islink(path)}):
                tar.addfile(_entry(name, tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755))
            for name, path in names.items():
                _add(tar, name, path)
            for name, value in own.items():
                if isinstance(value, str):
                    tar.addfile(_entry(name, tarfile.SYMTYPE, 0o777, target=value.removeprefix("->")))
                else:
                    tar.addfile(_entry(name, tarfile.REGTYPE, 0o644, size=len(value)), io.BytesIO(value))
    digest = sink.hash.hexdigest()
    temporary.rename(blobs / digest)
    kind = "application/vnd.oci.image.layer.v1.tar"
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": sink.size}


def _add(tar: tarfile.TarFile, name: str, path: str) -> None:
    """Add a file of this machine, readable by everybody. Folders have entries; sockets and devices stay out."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        tar.addfile(_entry(name, tarfile.SYMTYPE, 0o777, target=os.readlink(path)))
    elif stat.S_ISREG(found.st_mode):
        mode = 0o755 if found.st_mode & 0o111 else 0o644
        with open(path, "rb") as stream:
            tar.addfile(_entry(name, tarfile.REGTYPE, mode, size=os.fstat(stream.fileno()).st_size), stream)


def _entry(name: str, kind: bytes, mode: int, *, size: int = 0, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, mode, size, target
    return info


class _Hashing:
    """A sink that counts and hashes what is written to it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.hash, self.size = stream, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write and hash."""
        self.hash.update(data)
        self.size += len(data)
        return self._stream.write(data)


def _blob(blobs: Path, tree: Mapping[str, Any], kind: str) -> dict[str, Any]:
    data = json.dumps(tree).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}
