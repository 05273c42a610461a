"""Torch and Python that `envkit lock` chooses with the packages that need them, against uv on the same index.

    python -m benchmarks.one_solve [WORD]

Each case is a requirements.txt that names few versions, and none or an old one of torch. `envkit lock` gets only this
file (and the Python index as the source of torch); a refusal that names a command is followed once. `uv pip compile`
gets the same file, the Python that envkit chose, and the same index. Both choose torch; the table shows it, how many of
the packages in both results have the same version, and the seconds. Only metadata is downloaded.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.utils import canonicalize_name

from benchmarks._report import Figure, finish, tell
from envkit.lock.index_locations import python_index
from envkit.lock.store import read_lock
from envkit.lock.uv import binary

# What the projects' own files pin, or public questions about them.
CASES: dict[str, tuple[str, ...]] = {
    "xformers": ("xformers==0.0.33",),
    "vllm": ("vllm==0.21.0",),
    "fastai": ("fastai==2.7.19",),
    "web ui": (
        "accelerate==1.13.*", "bitsandbytes==0.49.*", "diffusers==0.37.*", "einops", "flash-linear-attention==0.4.*",
        "huggingface-hub==1.5.*", "numpy==2.2.*", "peft==0.18.*", "safetensors==0.7.*", "scipy", "sentencepiece",
        "torchao==0.15.*", "transformers==5.5.*", "xformers==0.0.33.post2",
    ),
    "numpy": ("numpy==1.23.5",),
    "old numpy, torch": ("torch==2.4.0", "numpy==1.23.5"),
    "data, triton": ("torch>=2.0.1", "torchdata==0.6.1", "triton==2.0.0"),
}  # fmt: skip
# The case whose Python the OS does not have: the refusal has to name what has.
_SYSTEMS = {"old numpy, torch": "ubuntu24.04"}
_FLAGS = ("--source", "pypi", "--template", "wheels", "--base", "none")
_HINT = re.compile(r"^hint: envkit lock (.+)$", re.MULTILINE)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
_LIMIT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one tool chose."""

    versions: dict[str, str]
    seconds: float
    python: str = ""
    followed: str = ""  # the options of a hint


def by_envkit(folder: Path, system: str | None) -> Answer | str:
    """Return what `envkit lock` chooses for a folder's requirements.txt, or why it refuses."""
    options = (*_FLAGS, *(("--os", system) if system else ()))
    began = time.monotonic()
    done = _envkit(folder, "requirements.txt", *options)
    hint = _HINT.search(done.stderr)
    followed = ""
    if done.returncode != 0 and hint is not None:
        words = [word for word in shlex.split(hint[1]) if word != "requirements.txt"]
        followed = " ".join(words)
        rest = [word for pair in zip(options[::2], options[1::2], strict=True) if pair[0] not in words for word in pair]
        done = _envkit(folder, "requirements.txt", *rest, *words)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        return done.stderr
    lock = read_lock(folder / "envkit.lock")
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    return Answer(versions=versions, seconds=seconds, python=lock.python, followed=followed)


def _envkit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "envkit", "lock", *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False)


def by_uv(folder: Path, python: str, *options: str) -> Answer | str:
    """Return what uv chooses for a folder's requirements.txt and a Python, or why it refuses."""
    argv = [binary(), "pip", "compile", "--no-config", "--only-binary", ":all:", "--no-header", "--no-annotate"]
    argv += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_36", *options, "requirements.txt"]
    index = python_index(os.environ)
    env = dict(os.environ) | ({"UV_DEFAULT_INDEX": index} if index else {})
    began = time.monotonic()
    done = subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )  # fmt: skip
    if done.returncode != 0:
        return done.stderr
    versions = {str(canonicalize_name(name)): version for name, version in _PIN.findall(done.stdout)}
    return Answer(versions=versions, seconds=time.monotonic() - began)


def compared(own: Answer, other: Answer) -> tuple[int, list[str]]:
    """Return how many packages both have in the same version, and the others with both versions."""
    common = own.versions.keys() & other.versions.keys()
    differing = sorted(name for name in common if own.versions[name] != other.versions[name])
    return len(common) - len(differing), [f"{n} {own.versions[n]} / {other.versions[n]}" for n in differing]


def main() -> int:
    """Compare every case; return 0 if torch is the same in each."""
    word = sys.argv[1] if sys.argv[1:] else ""
    equal = asked = 0
    for name, lines in CASES.items():
        if word not in name:
            continue
        asked += 1
        with TemporaryDirectory() as scratch:
            folder = Path(scratch)
            (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            own = by_envkit(folder, _SYSTEMS.get(name))
            other = by_uv(folder, own.python) if isinstance(own, Answer) else own
        if isinstance(own, str) or isinstance(other, str):
            tell(f"{name}: {other}")
            continue
        same, differing = compared(own, other)
        # uv adds no torch to packages that need none; envkit does, which is what it is for.
        torches = own.versions["torch"], other.versions.get("torch", "-")
        equal += torches[1] in (torches[0], "-")
        tell(
            f"{name}: Python {own.python}, torch {torches[0]}, uv {torches[1]}; {same} packages equal, "
            f"{len(differing)} not; {own.seconds:.0f} s, uv {other.seconds:.0f} s"
        )
        if own.followed:
            tell(f"  refused at first; its hint: {own.followed}")
        if differing:
            tell(f"  envkit / uv: {', '.join(differing)}")
    against = "uv pip compile with the same Python"
    return finish(
        "one_solve",
        [Figure(name="same torch", figure=equal, unit="", better="higher", goal=max(asked, 1), against=against)],
    )


if __name__ == "__main__":
    sys.exit(main())
