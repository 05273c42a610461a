"""A machine with simulated GPUs: a mount namespace with device nodes, the driver's libraries and what names them.

Everything that envkit reads of a machine's GPUs is really there: nodes in /dev, libraries in the loader's cache, or a
CDI specification in /etc/cdi. The machine itself is not changed. The nodes have the numbers of /dev/null and /dev/zero,
which any control group allows; an ioctl that they do not know is not a refusal.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import standin
from tests.support.another_user import python_for, site_packages, words_for
from tests.world.places import REPOSITORY, UnavailableError

NODES = {"nvidiactl": 3, "nvidia0": 5, "nvidia1": 5, "nvidia-uvm": 3}  # name -> minor number of a memory device
STARTED = "cuInit 0, devices {}, context 0"
"""What `cuda-start` prints when CUDA starts with this number of GPUs."""
_MEMORY_DEVICES = 1  # the major number of /dev/null and /dev/zero
_OWN_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0),
              "ptmx": (5, 2)}  # fmt: skip
_ENTER = r"""
cd "$1"; source=$2; shift 2
mount -t tmpfs -o mode=0755 tmpfs own
mkdir own/upper own/work own/dev own/dev/pts own/dev/shm
mount -t overlay overlay -o lowerdir=/etc,upperdir=own/upper,workdir=own/work /etc
rm -rf /etc/cdi
if [ "$source" = cdi ]; then mkdir /etc/cdi && cp nvidia.yaml /etc/cdi/nvidia.yaml; fi
if [ "$source" = loader ]; then
    echo "$PWD/lib" > /etc/ld.so.conf.d/000-standin.conf
    ldconfig
    while read -r name major minor; do mknod -m 0666 "own/dev/$name" c "$major" "$minor"; done < nodes
    mount --rbind /dev/pts own/dev/pts
    mount --rbind /dev/shm own/dev/shm
    ln -s /proc/self/fd own/dev/fd
    mount --rbind own/dev /dev
fi
cd /
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """A folder with the nodes, the driver and the CDI specification of simulated GPUs."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path, compiler: str) -> GpuMachine:
        """Fill a folder, which every user may enter; raises UnavailableError where no device node can be made."""
        for name in ("lib", "nodes.d", "own"):
            (folder / name).mkdir()
        for library in standin.LIBRARIES:
            standin.build_driver(compiler, folder, soname=library).rename(folder / "lib" / library)
        for name, minor in NODES.items():
            try:
                os.mknod(folder / "nodes.d" / name, stat.S_IFCHR | 0o666, os.makedev(_MEMORY_DEVICES, minor))
            except PermissionError as error:
                raise UnavailableError(f"no device node can be made here: {error.strerror}") from error
            (folder / "nodes.d" / name).chmod(0o666)
        start = folder / "cuda-start"
        source, driver = Path(__file__).with_name("cuda_start.c"), folder / "lib" / "libcuda.so.1"
        subprocess.run([compiler, "-O1", "-nostartfiles", "-o", start, source, driver], check=True)
        machine = cls(folder)
        machine.list_nodes(NODES)
        machine.specify(machine.cdi())
        done = machine.run("cdi", ["true"])
        if done.returncode:
            raise UnavailableError(
                f"no mount namespace with other files in /etc can be made here: {done.stderr[-200:]}"
            )
        return machine

    def list_nodes(self, names: Sequence[str] | Mapping[str, int]) -> None:
        """Choose the GPU nodes of /dev on the machine without a CDI specification."""
        rows = [f"{name} {major} {minor}" for name, (major, minor) in _OWN_NODES.items()]
        rows += [f"{name} {_MEMORY_DEVICES} {NODES[name]}" for name in names]
        (self.folder / "nodes").write_text("\n".join(rows) + "\n")

    def cdi(self) -> dict[str, Any]:
        """Return the CDI specification as `nvidia-ctk cdi generate` writes it."""

        def nodes(*names: str) -> dict[str, Any]:
            return {
                "deviceNodes": [{"path": f"/dev/{name}", "hostPath": f"{self.folder}/nodes.d/{name}"} for name in names]
            }

        folder = f"/usr/lib/{platform.machine()}-linux-gnu"
        options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
        mounts = [
            {"hostPath": f"{self.folder}/lib/{name}", "containerPath": f"{folder}/{name}", "options": options}
            for name in standin.LIBRARIES
        ]
        gpus = {"0": nodes("nvidia0"), "1": nodes("nvidia1"), "all": nodes("nvidia0", "nvidia1")}
        return {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": name, "containerEdits": edits} for name, edits in gpus.items()],
            "containerEdits": {
                **nodes("nvidiactl", "nvidia-uvm"),
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "mounts": mounts,
            },
        }

    def specify(self, tree: Mapping[str, Any]) -> None:
        """Write the CDI specification of the machine."""
        (self.folder / "nvidia.yaml").write_text(json.dumps(tree))

    def words(self, source: str, user: pwd.struct_passwd | None = None) -> list[str]:
        """Return the arguments that run a command on the machine: `cdi`, `loader` or `none` names its GPUs."""
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _ENTER, "sh", str(self.folder), source]
        return [*words, *(words_for(user) if user else ())]

    def run(
        self, source: str, argv: Sequence[str], *, user: pwd.struct_passwd | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine and return how it ended."""
        return subprocess.run(
            [*self.words(source, user), *argv], env={**os.environ, **variables(user)}, cwd="/",
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=180,
        )  # fmt: skip

    def hook(self) -> Path:
        """Return a folder with `nvidia-container-runtime-hook`, which Docker calls for containers with GPUs."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "nvidia-container-runtime-hook"
        hook = Path(__file__).with_name("nvidia_hook.py")
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{hook}" "{self.folder}"\n')
        program.chmod(0o755)
        return folder


def python(user: pwd.struct_passwd | None) -> str:
    """Return a Python that has envkit with `variables`."""
    return sys.executable if user is None else python_for(user)


def variables(user: pwd.struct_passwd | None) -> dict[str, str]:
    """Return the environment variables of a process that has envkit, in a home of its own if it is another user's."""
    home = {"HOME": user.pw_dir, "XDG_CACHE_HOME": f"{user.pw_dir}/cache"} if user else {}
    home |= {"XDG_STATE_HOME": f"{user.pw_dir}/state"} if user else {}
    return {**home, "PYTHONPATH": f"{REPOSITORY}:{site_packages()}", "PYTHONDONTWRITEBYTECODE": "1"}


def require_compiler() -> str:
    """Return a C compiler; raises UnavailableError without one."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        raise UnavailableError("no C compiler here")
    return found
