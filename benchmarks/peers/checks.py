"""Checks of answers: each reads what the commands printed and wrote, and returns what is wrong, '' if nothing is."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _wheel_fit
from benchmarks._small import checked_digest
from benchmarks.peers import fixtures
from benchmarks.peers.model import Ran
from envkit.facts.load import load

_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True, slots=True)
class Given:
    """The input of a check: the folder of the commands, how they ended, and how the control commands ended."""

    folder: Path
    ran: Sequence[Ran]
    control: Sequence[Ran] = ()


def fitting_wheel(given: Given) -> str:
    """Check that the torch in the output is a 2.4 and runs on the machine."""
    pick = _wheel_fit.picked(given.ran[-1].output)
    if pick is None:
        return "it names no wheel"
    return _fits(pick) or ("" if pick.torch.startswith("2.4.") else f"it is torch {pick.torch}")


def installed_torch(given: Given) -> str:
    """Check that the torch in .venv runs on the machine."""
    module = next((given.folder / ".venv").rglob("torch/version.py"), None)
    if module is None:
        return f"no torch in .venv: {_last(given.ran)}"
    version = re.search(r"__version__ = '([^'+]+)(\+\w+)?'", module.read_text())
    return _fits(_wheel_fit.Pick(version[1], version[2] or "")) if version else "a torch without version"


def pinned_dockerfile(given: Given) -> str:
    """Check that torch, CUDA 11.8 and miniconda are pinned in the files written, and that hadolint has no error."""
    dockerfile = next(given.folder.rglob("Dockerfile"), None)
    if dockerfile is None:
        return f"no Dockerfile: {_last(given.ran)}"
    text = "".join(path.read_text() for path in dockerfile.parent.iterdir() if path.is_file())
    wanted = {
        "torch": r"torch==?\d+\.\d+\.\d+",
        "CUDA 11.8": r"\+cu118|pytorch-cuda=11\.8",
        "miniconda": r"Mini(conda|forge)3-(py\d+_)?\d+\.\d+",
    }
    missing = [name for name, pattern in wanted.items() if not re.search(pattern, text)]
    errors = [line for line in _hadolint(dockerfile) if "error" in line]
    return "; ".join([*(f"{name} is not pinned" for name in missing), *errors])


def names_cpu_build(given: Given) -> str:
    """Check that a line says that torch has no CUDA."""
    pattern = r"(?i)torch.*(cpu[- ]only|cpu build|without cuda|no cuda)|(cpu[- ]only|cpu build|without cuda).*torch"
    return "" if re.search(pattern, given.ran[-1].output) else f"it does not say so: {_last(given.ran)}"


def locked(given: Given) -> str:
    """Check that one file has each package with its version, and at least as many hashes as packages."""
    before = {"requirements.txt", "train.py", "image.yaml"}
    texts = [path.read_text() for path in given.folder.iterdir() if path.is_file() and path.name not in before]
    for text in texts:
        packages = fixtures.REQUIREMENTS.items()
        named = all(re.search(f"{name}\\W.*?{version}", text, re.DOTALL) for name, version in packages)
        if named and len(set(_SHA256.findall(text))) >= len(packages):
            return ""
    return f"no file has them all: {_last(given.ran)}"


def image_with_torch(given: Given) -> str:
    """Check that the layout in `image` is complete, and that a layer has torch."""
    try:
        checked_digest(given.folder / "image")
    except ValueError:
        return f"no image: {_last(given.ran)}"
    for blob in (given.folder / "image" / "blobs" / "sha256").iterdir():
        if tarfile.is_tarfile(blob):
            with tarfile.open(blob) as layer:
                if any(name.endswith("site-packages/torch/__init__.py") for name in layer.getnames()):
                    return ""
    return "no torch in it"


def regression(given: Given) -> str:
    """Check that the command ends with the exit code of a regression."""
    return "" if given.ran[-1].code == 7 else f"exit code {given.ran[-1].code}: {_last(given.ran)}"


def lists_packages(given: Given) -> str:
    """Check that each package is on a line with its version."""
    lines = given.ran[-1].output.splitlines()
    missing = [
        name
        for name, version in fixtures.PACKAGES.items()
        if not any(name in line and version in line for line in lines)
    ]
    return f"it does not list {', '.join(missing)}" if missing else ""


def judges_files(given: Given) -> str:
    """Check that both mistakes are reported, and that the right files pass."""
    output = "\n".join(ran.output for ran in given.ran)
    wrong = []
    if not re.search(r"(?i)whl/cpu|cpu[- ]only (wheel|build|torch)|cuda version mismatch|without cuda", output):
        wrong.append("the wheels without CUDA are not found")
    if not re.search(r"(?i)missing gpu|no gpu|gpu.*(reserv|device)", output):
        wrong.append("the missing reservation is not found")
    wrong += [f"right file refused: {_last([ran])}" for ran in given.control if ran.code]
    return "; ".join(wrong)


def fewest_images(given: Given) -> str:
    """Check that there are as many images as an exhaustive search finds, and that one runs on each machine."""
    try:
        tree: Any = json.loads(given.ran[-1].output)
    except ValueError:
        return f"no JSON: {_last(given.ran)}"
    facts = load()
    kinds = [line.split(",") for line in (given.folder / "hosts.csv").read_text().splitlines()[1:]]
    capability = {"V100": "7.0", "A100": "8.0", "B200": "10.0"}
    runs = [
        {number for number, row in enumerate(kinds) if not _wheel_fit.faults(build, capability[row[1]], row[2], facts)}
        for build in facts.builds
        if build.source == "pytorch" and build.platform == "linux-64" and build.archs
    ]
    every = set(range(len(kinds)))
    fewest = next(
        count
        for count in range(1, 4)
        if any(set().union(*chosen) == every for chosen in itertools.combinations(runs, count))
    )
    images = tree["images"]
    resolutions = [image["resolution"] for image in images]
    picks = [_wheel_fit.Pick(resolution["torch"], resolution["local_version"]) for resolution in resolutions]
    builds = [_wheel_fit.published(pick, facts) for pick in picks]
    if any(build is None for build in builds):
        return "an image has a wheel that does not exist"
    served = [
        any(build and not _wheel_fit.faults(build, capability[row[1]], row[2], facts) for build in builds)
        for row in kinds
    ]
    return (
        "" if all(served) and len(images) == fewest else f"{len(images)} images instead of {fewest}, served: {served}"
    )


def refuses_driver(given: Given) -> str:
    """Check that CUDA 12.4 is refused for driver 470, with the lowest driver that runs it."""
    last = given.ran[-1]
    return "" if last.code == 3 and "525.60.13" in last.output else f"exit code {last.code}: {_last(given.ran)}"


def reads_conda_file(given: Given) -> str:
    """Check that the definition has the torch and the CUDA of environment.yml, and its other packages."""
    written = given.folder / "image.yaml"
    text = written.read_text() if written.is_file() else ""
    missing = [what for what in ("2.4.1", "12.4", "scipy", "einops") if what not in text]
    return f"image.yaml lacks {', '.join(missing)}" if missing else ""


def names_interface(given: Given) -> str:
    """Check that the answer names the interface that NCCL chose, and the variable that excludes it."""
    output = given.ran[-1].output
    missing = [word for word in ("docker0", "NCCL_SOCKET_IFNAME") if word not in output]
    return f"it does not name {', '.join(missing)}" if missing else ""


def model_fits(given: Given) -> str:
    """Check that the lines of fp32 and fp16 say no and yes."""
    marks = re.findall(r"(?m)^\s*(\S+)\s+(FP32|FP16)\b", given.ran[-1].output)
    by_precision = {precision: mark for mark, precision in marks}
    right = by_precision.get("FP32") == "❌" and by_precision.get("FP16") == "✅"
    return "" if right else f"it says {by_precision or 'nothing'}"


def _fits(pick: _wheel_fit.Pick) -> str:
    facts = load()
    build = _wheel_fit.published(pick, facts)
    if build is None:
        return f"torch {pick} does not exist"
    return "; ".join(_wheel_fit.faults(build, fixtures.CAPABILITY, fixtures.DRIVER, facts))


def _hadolint(dockerfile: Path) -> list[str]:
    """Return the output of the development environment's hadolint."""
    command = Path(sys.executable).with_name("hadolint")
    argv = [str(command), "--no-color", str(dockerfile)]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()


def _last(ran: Sequence[Ran]) -> str:
    """Return the error line, or else the last line, of the first command that failed or else of the last command."""
    chosen = next((command for command in ran if command.code), ran[-1])
    lines = [line.strip() for line in chosen.output.splitlines() if line.strip()] or [""]
    message = next((line for line in lines if re.search(r"(?i)error\b[:=]", line)), lines[-1])
    return re.sub(r'^time="[^"]*" ', "", message)[:160]
