"""The torch family as package specs, pinned so that nothing but the resolved build can satisfy them."""

from __future__ import annotations

import re

from envkit.ground.versions import minor
from envkit.resolve.model import Resolution

CONDA_SOURCES = frozenset({"conda-forge", "conda-pytorch"})
CHANNEL = "conda-forge"
# For environment.yml. Which channels conda adds to a file's own is a matter of its configuration: conda 26.7 no longer
# reads `nodefaults` in the file (conda/conda#16210), and micromamba and pixi add none.
KEEP_DEFAULTS_OUT = (
    "conda adds the channels of its configuration to these. To keep Anaconda's default channels out, once:",
    "  conda config --add channels conda-forge && conda config --remove channels defaults",
)

# Pins of the resolver that name wheels of the Python index; conda has no such packages.
_WHEEL_ONLY = ("nvidia-", "triton")
_RANGE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<range> ?(?:[<>!~]|==).*)?")


def specs(resolution: Resolution, companions: tuple[str, ...]) -> tuple[str, ...]:
    """torch, torchvision and torchaudio: conda specs for a conda source, requirements for wheels."""
    if resolution.source in CONDA_SOURCES:
        return _conda(resolution, companions)
    return _wheels(resolution, companions)


def _conda(resolution: Resolution, companions: tuple[str, ...]) -> tuple[str, ...]:
    # The build string keeps a CPU build from satisfying a CUDA request, whatever the solver believes of the machine.
    device = "cuda" if resolution.cuda else "cpu"
    if resolution.source == "conda-pytorch":
        # This channel writes the CUDA version after the Python version, and cpu as its own suffix.
        build = f"*cuda{resolution.cuda}*" if resolution.cuda else "*cpu*"
    else:
        build = f"{device}*"
    packages = [f"pytorch={resolution.torch}={build}"]
    if resolution.source == "conda-forge" and resolution.cuda:
        packages.append(f"cuda-version={resolution.cuda}")
    if resolution.selector:
        packages.append(resolution.selector)
    for name in ("torchvision", "torchaudio"):
        version = getattr(resolution, name)
        if name in companions and version:
            packages.append(f"{name}={version}")
    return tuple(packages)


def _wheels(resolution: Resolution, companions: tuple[str, ...]) -> tuple[str, ...]:
    local = resolution.local_version or ""
    # The Python index carries one variant without a local version; elsewhere the local version names the variant.
    local = "" if resolution.source == "pypi" else local
    packages = [f"torch=={resolution.torch}{local}"]
    if "torchvision" in companions and resolution.torchvision:
        packages.append(f"torchvision=={resolution.torchvision}{local}")
    if "torchaudio" in companions and resolution.torchaudio:
        # torchaudio has ended: with a newer torch its last release is used, whose variants are not known to match.
        paired = minor(resolution.torchaudio).partition(".")[2] == minor(resolution.torch).partition(".")[2]
        packages.append(f"torchaudio=={resolution.torchaudio}{local if paired else ''}")
    return tuple(packages)


def beside(resolution: Resolution, companions: tuple[str, ...]) -> tuple[str, ...]:
    """What goes into the same step as torch under a name conda and the Python index share: numpy, pinned packages."""
    pins = tuple(pin for pin in resolution.pins if not pin.startswith(_WHEEL_ONLY))
    pinned = any(pin.startswith("numpy") for pin in pins)
    return (*pins, "numpy") if "numpy" in companions and not pinned else pins


def constrained(spec: str, constraints: tuple[str, ...], *, conda: bool) -> str:
    """Return a spec with the versions that constraints leave of its package; conda's exact specs stay as they are.

    Args:
        spec: `numpy`, `numpy<2`; for conda also `numpy >=1.23`, `numpy=1.26`.
        constraints: `numpy<2`, of the Python index.
        conda: whether the spec is one of conda, whose clauses have no `===` and whose prefixes have no operator.
    """
    parts = _RANGE.fullmatch(spec)
    if parts is None or not constraints:
        return spec
    from packaging.requirements import Requirement  # noqa: PLC0415 - `envkit resolve` has no constraints to read
    from packaging.utils import canonicalize_name  # noqa: PLC0415 - as above

    from envkit.plan.requirements import ordered  # noqa: PLC0415 - as above

    clauses = [
        str(specifier)
        for wanted in map(Requirement, constraints)
        if canonicalize_name(wanted.name) == canonicalize_name(parts["name"])
        for specifier in ordered(wanted.specifier)
    ]
    if not clauses:
        return spec
    if conda:
        clauses = [re.sub(r"^==(?=.*\.\*$)", "", clause.replace("===", "==")) for clause in clauses]
    own = [parts["range"].strip()] if parts["range"] else []
    return f"{parts['name']}{' ' if conda else ''}{','.join(dict.fromkeys([*own, *clauses]))}"


def wheel_pins(resolution: Resolution) -> tuple[str, ...]:
    """The resolver's pins that only wheels have."""
    return tuple(pin for pin in resolution.pins if pin.startswith(_WHEEL_ONLY))


def constraints(specs: tuple[str, ...], resolution: Resolution, others: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Requirements that hold torch in place while other wheels are installed, and the constraints of a definition."""
    exact = tuple(spec for spec in specs if "==" in spec)
    return (*(exact or (f"torch=={resolution.torch}",)), *others)


def channels(resolution: Resolution) -> tuple[str, ...]:
    """The conda channels in order of priority; Python and everything else come from conda-forge."""
    return (*(name for name in resolution.channels if name != CHANNEL), CHANNEL)
