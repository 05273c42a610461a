"""What NVIDIA's container hook does: give the container that is being made the nodes and libraries of its GPUs.

Docker adds the hook to containers with GPUs if it finds the program when it starts; runc calls it after the container's
mounts are made and before its root is entered. The state is read from stdin, and the GPUs from the container's variable
NVIDIA_VISIBLE_DEVICES. Argument: the folder of a `GpuMachine`.
Source: Open Containers runtime specification 1.2, "POSIX-platform Hooks"; NVIDIA's user guide of the Container Toolkit,
"Specialized configurations with Docker".
"""

import json
import platform
import subprocess
import sys
from pathlib import Path

_BIND = 'mkdir -p "${2%/*}" && : > "$2" && mount --bind $3 "$1" "$2"'


def main(folder: Path) -> None:
    """Bind what the container is to have into its root."""
    state = json.load(sys.stdin)
    settings = json.loads(Path(state["bundle"], "config.json").read_text())
    variables = dict(entry.partition("=")[::2] for entry in settings["process"]["env"])
    wanted = variables.get("NVIDIA_VISIBLE_DEVICES", "void")
    if wanted in ("", "void", "none"):
        return
    nodes = sorted(path.name for path in (folder / "nodes.d").iterdir())
    gpus = [name for name in nodes if name.removeprefix("nvidia").isdigit()]
    if wanted != "all":
        gpus = [f"nvidia{number}" for number in wanted.split(",")]
    for name in gpus:
        if name not in nodes:
            sys.exit(f"nvidia-container-cli: device error: {name.removeprefix('nvidia')}: unknown device")
    root = settings["root"]["path"]
    for name in [*(name for name in nodes if not name.removeprefix("nvidia").isdigit()), *gpus]:
        bind(state["pid"], folder / "nodes.d" / name, f"{root}/dev/{name}", "")
    for library in sorted((folder / "lib").iterdir()):
        bind(state["pid"], library, f"{root}/usr/lib/{platform.machine()}-linux-gnu/{library.name}", "-o ro")


def bind(pid: int, source: Path, target: str, options: str) -> None:
    """Bind a file in the mount namespace of the container."""
    words = ["nsenter", f"--target={pid}", "--mount", "sh", "-euc", _BIND, "sh", str(source), target, options]
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
