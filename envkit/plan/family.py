"""The torch family as package specs, pinned so that only the resolved build satisfies them."""

from __future__ import annotations

import re

from envkit.resolve.model import Resolution

CONDA_SOURCES = frozenset({"conda-forge", "conda-pytorch"})
CHANNEL = "conda-forge"
# For environment.yml. conda's configuration decides which channels it adds to those of the file: conda 26.7 no longer
# reads `nodefaults` in the file (conda/conda#16210). micromamba and pixi add none.
KEEP_DEFAULTS_OUT = (
    "conda adds the channels of its configuration to these. To keep Anaconda's default channels out, once:",
    "  conda config --add channels conda-forge && conda config --remove channels defaults",
)

# Pins of the resolver that name wheels of the Python index; conda has no such packages.
_WHEEL_ONLY = ("nvidia-", "triton")
_RANGE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<range> ?(?:[<>!~]|==).*)?")


def specs(resolution: Resolution, companions: tuple[str, ...]) -> tuple[str, ...]:
    """Return torch, torchvision and torchaudio as conda specs for a conda source, otherwise as pip requirements."""
    if resolution.source in CONDA_SOURCES:
        return _conda(resolution, companions)
    return _wheels(resolution, companions)


def _conda(resolution: Resolution, companions: tuple[str, ...]) -> tuple[str, ...]:
    # The build string keeps a CPU build from satisfying a CUDA request, whatever virtual packages the solver detects.
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
    return (*packages, *(_chosen_by_conda(name, asked) for name, asked in resolution.files.items()))


def _chosen_by_conda(name: str, asked: str) -> str:
    """Return the conda spec of a requested package: `torchvision`, `torchvision=0.20`, `torchvision >=0.20,<0.22`."""
    if not asked:
        return name
    return f"{name}={asked.removesuffix('.*')}" if asked[0].isdigit() else f"{name} {asked}"


def _wheels(resolution: Resolution, companions: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        f"{name}=={version}" for name, version in resolution.files.items() if name == "torch" or name in companions
    )


def extra_specs(resolution: Resolution, companions: tuple[str, ...]) -> tuple[str, ...]:
    """Return what is installed in the same step as torch and has the same name in conda and on the Python index."""
    pins = tuple(pin for pin in resolution.pins if not pin.startswith(_WHEEL_ONLY))
    pinned = any(pin.startswith("numpy") for pin in pins)
    return (*pins, "numpy") if "numpy" in companions and not pinned else pins


def constrained(spec: str, constraints: tuple[str, ...], *, conda: bool) -> str:
    """Return a spec with the constraints on its package added; conda's exact specs stay as they are.

    Args:
        spec: `numpy`, `numpy<2`; for conda also `numpy >=1.23`, `numpy=1.26`.
        constraints: pip requirements, such as `numpy<2`.
        conda: whether it is a conda spec: those have no `===`, and no operator before a prefix such as `1.26.*`.
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
    """Return the resolver's pins of packages that exist only as wheels."""
    return tuple(pin for pin in resolution.pins if pin.startswith(_WHEEL_ONLY))


def constraints(specs: tuple[str, ...], resolution: Resolution, others: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the pip constraints that keep torch as it is while other wheels are installed, and the definition's."""
    exact = tuple(spec for spec in specs if "==" in spec)
    return (*(exact or (f"torch=={resolution.torch}",)), *others)


def channels(resolution: Resolution) -> tuple[str, ...]:
    """Return the conda channels in order of priority; Python and everything but torch come from conda-forge."""
    return (*(name for name in resolution.channels if name != CHANNEL), CHANNEL)
