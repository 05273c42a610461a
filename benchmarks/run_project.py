"""Seconds of `envkit run .` for projects in five forms, the first and the second time.

    python -m benchmarks.run_project [NAME ...]

Each project has one kind of file: requirements.txt, environment.yml, pyproject.toml, a Dockerfile, cog.yaml. The first
`envkit run . -- python train.py` reads it, resolves for this machine, locks, builds, verifies and runs; train.py
imports every package of the project. The second run, of `true`, shows what envkit itself takes when nothing is left to
do; the goal is one second. `proot` is a second run where no sandbox works, as in a plain container.

torch and Python come from the local channel of the tests (`python -m tests.world up registry base channel`), other
packages from the Python index of this machine; the caches are empty for the first project only.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._report import Figure, finish, tell
from tests.world.world import up

GOAL_S = 1.0
_AGAIN = 5
# The files of each project, and what it imports.
PROJECTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "requirements": (
        {"requirements.txt": "torch\nnumpy>=1.26\ntqdm\npillow>=10 ; python_version > '3'\n"},
        ("torch", "numpy", "tqdm", "PIL"),
    ),
    "environment": (
        {
            "environment.yml": "name: train\nchannels: [conda-forge]\n"
            "dependencies:\n- python=3.11\n- pytorch\n- numpy\n- pip:\n  - einops>=0.7\n"
        },
        ("torch", "numpy", "einops"),
    ),
    "pyproject": (
        {
            "pyproject.toml": "[project]\nname = 'speech'\nversion = '0.1'\nrequires-python = '>=3.10,<3.13'\n"
            "dependencies = ['torch>=2.5', 'soundfile>=0.12', \"tqdm; sys_platform != 'emscripten'\"]\n"
        },
        ("torch", "soundfile", "tqdm"),
    ),
    "dockerfile": (
        {
            "Dockerfile": "FROM python:3.11-slim\nENV PYTHONUNBUFFERED=1\nWORKDIR /app\nCOPY requirements.txt .\n"
            "RUN pip install --no-cache-dir torch && pip install -r requirements.txt\n"
            'COPY train.py .\nCMD ["python", "train.py"]\n',
            "requirements.txt": "numpy\nmatplotlib>=3.8\n",
        },
        ("torch", "numpy", "matplotlib"),
    ),
    "cog": (
        {
            "cog.yaml": 'build:\n  python_version: "3.11"\n  python_packages:\n    - torch\n    - pillow>=10\n'
            "predict: train.py:Predictor\n"
        },
        ("torch", "PIL"),
    ),
}


def run(folder: Path, env: dict[str, str], *argv: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a command in the project's image; return the seconds and the result."""
    command = [sys.executable, "-m", "envkit", "run", ".", "--", *argv]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=env, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return time.monotonic() - began, done


def main() -> int:
    """Measure the projects; return 0 if every goal holds."""
    wanted = sys.argv[1:] or list(PROJECTS)
    found = up(("registry", "base", "channel"))
    found.require("registry", "base", "channel")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "XDG_"))}
    figures = []
    with tempfile.TemporaryDirectory(prefix="run-project-") as home:
        env = {**kept, **found.env(), "HOME": home, "ENVKIT_ENGINE": "embedded", "ENVKIT_PYTHON_INDEX": ""}
        env = {name: value for name, value in env.items() if value}
        for name in wanted:
            files, modules = PROJECTS[name]
            folder = Path(home, name)
            folder.mkdir()
            for file, text in {**files, "train.py": f"import {', '.join(modules)}\nprint('imported')\n"}.items():
                (folder / file).write_text(text)
            first, done = run(folder, env, "python", "train.py")
            tell(f"{name}: exit {done.returncode}, {first:.0f} s, {done.stdout.strip()}")
            if done.returncode != 0 or done.stdout != "imported\n":
                raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stderr[-3000:]}")
            again = statistics.median(_second(folder, env) for _ in range(_AGAIN))
            weak = _second(folder, {**env, "ENVKIT_RUNNER": "proot"})
            tell(f"{name}: again {again:.2f} s; under proot {weak:.2f} s")
            against = f"first {first:.0f} s; under proot {weak:.2f} s"
            figures.append(Figure(name=name, figure=again, unit="s", better="lower", goal=GOAL_S, against=against))
    return finish("run_project", figures)


def _second(folder: Path, env: dict[str, str]) -> float:
    seconds, done = run(folder, env, "true")
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode}\n{done.stderr[-3000:]}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
