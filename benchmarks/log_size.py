"""Time and memory of `envkit doctor --log` for a log of 2 GB, and for one line of 200 MB.

    python -m benchmarks.log_size [GB]

The log is a training's: steps with changing numbers, progress bars, warnings of several ranks, lines of NCCL, and the
error in its last lines. The command is started as users start it; its time contains the start of Python. The files are
removed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._report import Figure, finish

LAST = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 79 GiB\n"
BLOCKS = 4000  # different blocks, which then repeat


def block(number: int) -> str:
    """Return lines of a training, with numbers of their own."""
    rank, step = number % 8, number * 40
    lines = [
        f"[rank{rank}]: 2026-05-02 10:{number % 60:02}:{number % 53:02},{number % 1000:03} INFO step {step + i} "
        f"loss {3 / (1 + number + i):.6f} grad_norm {number * 7 % 97 / 31:.4f} lr {1e-4 / (1 + i):.3e} error 0.{i:02}"
        for i in range(36)
    ]
    lines.append(
        f"\r {number % 100}%|████      | {number}/40000 [{number % 60:02}:10<1:10:01, 9.{number % 10}it/s]" * 20
    )
    lines.append(
        f"node{rank}:{4711 + rank}:{4800 + rank} [{rank}] NCCL INFO Channel {number % 24:02}/24 : 0[0] -> 1[1] via P2P"
    )
    lines.append(
        f"/env/lib/python3.12/site-packages/torch/utils/data/dataloader.py:{number % 900}: UserWarning: slow {number}"
    )
    lines.append(f"checkpoint {number} written to /out/step_{step}.pt, val_error 0.{number % 997:03}")
    return "\n".join(lines) + "\n"


def write(path: Path, size: int) -> None:
    """Write a log of about this many bytes."""
    blocks = [block(number).encode() for number in range(BLOCKS)]
    written = 0
    with path.open("wb") as file:
        while written < size:
            for part in blocks:
                written += file.write(part)
                if written >= size:
                    break
        file.write(LAST.encode())


def measure(path: Path) -> tuple[float, float, str]:
    """Return seconds, peak memory in MB and the first finding of `envkit doctor --log`."""
    command = [sys.executable, "-m", "envkit", "doctor", "--log", str(path), "--json"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answer = json.loads(process.stdout.read())
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    seconds = time.monotonic() - began
    findings = answer["sections"][0]["findings"]
    return seconds, usage.ru_maxrss * 1024 / 1e6, findings[0]["id"] if findings else "none"


def main() -> int:
    """Run the benchmark; return 0 if both goals hold and both errors were found."""
    size = int(float(sys.argv[1]) * 1e9) if len(sys.argv) > 1 else 2 * 10**9
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        write(path, size)
        seconds, memory, first = measure(path)
        # In pieces: the peak of a child contains that of the process that started it.
        with path.open("wb") as file:
            for _ in range(200):
                file.write(b"x" * 10**6)
            file.write(b"\n" + LAST.encode())
        line_seconds, line_memory, line_first = measure(path)
    print(
        f"{size / 1e9:.1f} GB: {seconds:.1f} s, {memory:.0f} MB, {first}; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    )
    print(f"one line of 200 MB: {line_seconds:.1f} s, {line_memory:.0f} MB, {line_first}")
    against = f"a log of {size / 1e9:.1f} GB with an error in its last line, and a line of 200 MB"
    both = [first, line_first].count("cuda-oom")
    return finish(
        "log_size",
        [
            Figure(name="seconds", figure=seconds, unit="s", better="lower", goal=30, against=against),
            Figure(
                name="memory", figure=max(memory, line_memory), unit="MB", better="lower", goal=200, against=against
            ),
            Figure(name="errors found", figure=both, unit="", better="higher", goal=2, against=against),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
