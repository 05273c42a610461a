"""The resolver's input and output: Request, Resolution, Conflict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit.ground.versions import Constraint

SCHEMA = "envkit.resolution/1"
CONFLICT_SCHEMA = "envkit.conflict/1"

SOURCES = ("auto", "pytorch", "pypi", "conda-forge", "conda-pytorch")


@dataclass(frozen=True, slots=True)
class WantedPackage:
    """A package that has to go with the answer's torch: torchaudio, or torchvision 0.21."""

    package: str  # as the index spells it: 'torchvision'
    version: Constraint | None = None  # None: any

    def __str__(self) -> str:
        text = "" if self.version is None else self.version.text
        return f"{self.package}{'==' if text[:1].isdigit() else ''}{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The user's constraints. None means "the newest that is compatible with the rest"."""

    torch: Constraint | None = None
    cuda: Constraint | None = None
    cudnn: Constraint | None = None
    python: Constraint | None = None
    driver: str | None = None  # NVIDIA driver version of the machine that will run the image
    gpus: tuple[str, ...] = ()  # as typed: 'A100', 'RTX 4090', 'sm_86', '8.6'
    os: str | None = None  # id of an Os row
    platform: str = "linux-64"
    source: str = "auto"
    cpu: bool = False
    max_size: str | None = None  # download limit, as typed: '3GB'
    supported_only: bool = False  # only a torch and a Python that still get fixes
    allow_forward_compat: bool = False  # a permission: it never makes fewer builds fit
    today: str | None = None  # ISO date for `supported_only` and the answer's support; None: the date of the facts
    template: str | None = None  # 'wheels' excludes conda sources
    packages: tuple[WantedPackage, ...] = ()  # that the answer has to have; others are left out where they do not fit
    # Field -> how a value was interpreted that is not taken literally: 'ubuntu', or the CUDA that nvidia-smi prints.
    understood: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver that the CUDA runtime needs (Linux driver versions)."""

    native: str  # ships with this toolkit: everything works, PTX JIT included
    minimum: str  # lowest that runs its cubins by minor-version compatibility
    # Of the driver in the request: 'native', 'minor-compatible' or 'forward-compatible'; None: the request has none.
    mode: str | None
    given: str | None
    package: str | None = None  # the package that the image needs for forward compatibility: 'cuda-compat-12-8'

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree, with the package only if one is needed."""
        tree = {"native": self.native, "minimum": self.minimum, "mode": self.mode, "given": self.given}
        return tree if self.package is None else tree | {"package": self.package}


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Whether the torch and the Python of an answer still get fixes; see `envkit.resolve.support`."""

    level: str | None  # 'supported' | 'security' | 'ended'; None: unknown
    why: str
    day: str  # ISO date that the level is for
    sources: tuple[str, ...]  # ids of the fact sources

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree."""
        return {"level": self.level, "why": self.why, "day": self.day, "sources": list(self.sources)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Bytes to download; None if unknown."""

    torch: int | None  # its wheel: the largest among its Pythons
    pulled: int | None  # everything that it requires, as of the release date
    total: int | None
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree."""
        return {"torch": self.torch, "pulled": self.pulled, "total": self.total, "why": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """One compatible combination, with the reason for every field."""

    torch: str
    cuda: str | None
    cudnn: str | None
    nccl: str | None
    triton: str | None
    python: str
    pythons: tuple[str, ...] | None  # None: unknown for this build
    torchvision: str | None  # None: no file of it fits, or none is known; `reasons` says which
    torchaudio: str | None
    # Package -> version of its wheel as a pin names it: {'torch': '2.9.1+cu130', 'torchvision': '0.24.1'}. For conda,
    # the requested packages whose version is unknown, so that its solver chooses it -> the request: '>=0.20' or ''.
    files: Mapping[str, str]
    source: str
    index: str | None
    channels: tuple[str, ...]
    selector: str | None
    local_version: str | None
    driver: Driver | None  # None for CPU builds
    gpus: tuple[str, ...]  # requested compute capabilities: ('8.0',)
    gpu_archs: tuple[str, ...] | None  # cubins in the build
    ptx: tuple[str, ...]
    glibc: str | None
    platform: str
    os: str
    pins: tuple[str, ...]  # package specs to add: 'numpy<2'
    warnings: tuple[str, ...]
    reasons: dict[str, str] = field(default_factory=dict)  # field -> why
    sources: tuple[str, ...] = ()  # ids of the fact sources used
    rejected_count: int = 0
    # Companions without a file that fits -> the Pythons that they have one for. `reasons` says why.
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    download: Download | None = field(default=None, compare=False)  # None if it was read from a plan
    support: Support | None = field(default=None, compare=False)  # as above

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree; equal resolutions give equal trees.

        The tree is part of plans, whose digest identifies an image, so it leaves out what only describes the choice:
        download size and support.
        """
        driver = self.driver
        return {
            "schema": SCHEMA,
            "torch": self.torch,
            "cuda": self.cuda,
            "cudnn": self.cudnn,
            "nccl": self.nccl,
            "triton": self.triton,
            "python": self.python,
            "pythons": None if self.pythons is None else list(self.pythons),
            "torchvision": self.torchvision,
            "torchaudio": self.torchaudio,
            "files": dict(self.files),
            "source": self.source,
            "index": self.index,
            "channels": list(self.channels),
            "selector": self.selector,
            "local_version": self.local_version,
            "driver": driver and driver.to_json(),
            "gpus": list(self.gpus),
            "gpu_archs": None if self.gpu_archs is None else list(self.gpu_archs),
            "ptx": list(self.ptx),
            "glibc": self.glibc,
            "platform": self.platform,
            "os": self.os,
            "pins": list(self.pins),
            "warnings": list(self.warnings),
            "reasons": dict(sorted(self.reasons.items())),
            "sources": list(self.sources),
            "rejected_count": self.rejected_count,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One change of one constraint that is known to resolve."""

    change: str  # '--cuda 12.6 instead of 12.8', as the user would type it
    field: str  # the constraint it changes
    value: str | None  # its new value; None = leave the constraint out
    gives: str  # 'torch 2.12.1, CUDA 12.6, Python 3.14'
    words: tuple[str, ...]  # arguments of the whole changed request: ('--torch', '2.12', '--cuda', '12.6')

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree."""
        return {
            "change": self.change,
            "field": self.field,
            "value": self.value,
            "gives": self.gives,
            "arguments": list(self.words),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Why no build fits: the smallest set of the user's own constraints that clash, and changes that resolve."""

    clash: tuple[str, ...]  # ('--torch 2.12', '--gpu V100', '--cuda 12.8')
    because: tuple[str, ...]  # sentences with the facts
    suggestions: tuple[Suggestion, ...]  # at most three, cheapest first
    sources: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree of schema envkit.conflict/1."""
        return {
            "schema": CONFLICT_SCHEMA,
            "clash": list(self.clash),
            "because": list(self.because),
            "suggestions": [suggestion.to_json() for suggestion in self.suggestions],
            "sources": list(self.sources),
        }
