"""A second resolver that tries every combination of the facts, to compare the real one with.

It reads the typed request and the rows of the facts, and imports nothing of the resolver: no index, no rules, no sorted
rows. A combination is a build with one of its Pythons. For each combination it lists the constraints that exclude it,
alone or together. A set of constraints is a conflict if it excludes every combination. `packaging` compares versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envkit.facts.model import Build, Facts, Gpu, Os

WHEELS = ("pytorch", "pypi")
PREFERRED = ("pytorch", "pypi", "conda-forge", "conda-pytorch")
PARTNERS = ("torchvision", "torchaudio")
MODES = ("native", "minor-compatible", "forward-compatible")
SUPPORT = ("supported", "security", "ended")
DEFAULTS = {"platform": "linux-64", "source": "auto", "os": "debian12"}

Fields = dict[str, Any]  # as typed: {'torch': '2.7', 'gpu': ['A100']}
Words = tuple[str, ...]  # one constraint: ('--torch', '2.7')
Mask = int  # a set of constraints, one bit for each; 0 means that a default excludes the combination


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request."""

    torch: str
    cuda: str | None
    source: str
    platform: str
    python: str
    mode: str | None  # of the requested driver
    native: str | None  # driver versions that the CUDA runtime needs
    minimum: str | None
    package: str | None  # the forward compatibility package
    support: str | None  # of torch and Python, one of SUPPORT
    torchvision: str | None
    torchaudio: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """All smallest sets of constraints that conflict."""

    clashes: frozenset[frozenset[Words]]


@dataclass(frozen=True, slots=True)
class Need:
    """The driver versions that a CUDA version needs."""

    native: str
    minimum: str
    inferred: bool

    def mode(self, driver: str) -> str | None:
        """Return `native`, `minor-compatible`, or None if it does not run."""
        if version(driver) >= version(self.native):
            return "native"
        return "minor-compatible" if version(driver) >= version(self.minimum) else None


@dataclass(frozen=True, slots=True)
class Combination:
    """A build with one of its Pythons, and the sets of constraints that exclude it."""

    build: Build
    python: str
    by_versions: frozenset[Mask]
    by_machine: frozenset[Mask]  # and by the source


class Asked:
    """A typed request, with the rows that it names."""

    def __init__(self, fields: Fields, facts: Facts) -> None:
        self.torch, self.cuda, self.cudnn = (fields.get(name) for name in ("torch", "cuda", "cudnn"))
        self.python: str | None = fields.get("python")
        self.driver: str | None = fields.get("driver")
        self.gpus = [gpu_of(typed, facts) for typed in fields.get("gpu", ())]
        self.os: Os = next(row for row in facts.oses if row.id == fields.get("os", DEFAULTS["os"]))
        arm = any(name in gpu.arm_host for name, gpu in zip(fields.get("gpu", ()), self.gpus, strict=True))
        self.platform: str = fields.get("platform", "linux-aarch64" if arm else DEFAULTS["platform"])
        self.source: str = fields.get("source", DEFAULTS["source"])
        self.venv = fields.get("template") == "wheels"
        self.cpu = bool(fields.get("cpu"))
        self.megabytes = int(fields["max_size"].removesuffix("MB")) if "max_size" in fields else None
        self.supported_only = bool(fields.get("supported_only"))
        self.day = max(fields.get("today", facts.collected), facts.collected)
        self.forward = self._forward(fields, facts) if fields.get("allow_forward_compat") else set()
        stated: dict[str, Words] = {}
        for name in ("torch", "cuda", "cudnn", "python", "driver", "os", "platform", "source", "template"):
            if name in fields and (name == "os" or fields[name] != DEFAULTS.get(name)):
                stated[name] = (f"--{name}", fields[name])
        stated |= {f"gpu{number}": ("--gpu", typed) for number, typed in enumerate(fields.get("gpu", ()))}
        stated |= {"cpu": ("--cpu",)} if self.cpu else {}
        stated |= {"max_size": ("--max-size", fields["max_size"])} if "max_size" in fields else {}
        stated |= {"supported_only": ("--supported-only",)} if self.supported_only else {}
        self.words = tuple(stated.values())
        self._bits = {name: 1 << bit for bit, name in enumerate(stated)}

    def _forward(self, fields: Fields, facts: Facts) -> set[str]:
        """Return the CUDA versions with a package for the driver's branch, if all GPUs are data center products."""
        typed = fields.get("gpu", ())
        if self.driver is None or not typed:
            return set()
        if any(name not in gpu.data_center for name, gpu in zip(typed, self.gpus, strict=True)):
            return set()
        versions = set()
        for row in facts.forward:
            cuda = ".".join(row.toolkit.split(".")[:2])
            updates = [other for other in facts.forward if other.toolkit.split(".")[:2] == row.toolkit.split(".")[:2]]
            newest = max(updates, key=lambda other: version(other.toolkit))
            if self.driver.split(".")[0] in newest.branches:
                versions.add(cuda)
        return versions

    def mask(self, *names: str) -> Mask:
        """Return the constraints of these names; 0 if they are only defaults."""
        return sum(self._bits.get(name, 0) for name in names)

    def named(self, mask: Mask) -> frozenset[Words]:
        """Return the words of the constraints in a mask."""
        return frozenset(words for bit, words in enumerate(self.words) if mask >> bit & 1)


class Oracle:
    """Answers requests with one set of facts."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.needs = {cuda: self._need(cuda) for cuda in {build.cuda for build in facts.builds if build.cuda}}
        self.glibcs = {build.glibc for build in facts.builds if build.glibc}

    def answer(self, fields: Fields) -> Answer | Refusal:
        """Return the answer to a request with valid fields."""
        asked = Asked(fields, self.facts)
        tried = [row for build in self.facts.builds for row in self._combinations(build, asked)]
        # `auto` means wheels, unless no documented wheel has the requested versions, for any machine.
        wheels = any(row.build.source in WHEELS and not unsure(row.build) and not row.by_versions for row in tried)
        if asked.source == "auto" and wheels:
            tried = [row for row in tried if row.build.source in WHEELS]
        fitting = [row for row in tried if not row.by_versions and not row.by_machine]
        if not fitting:
            return Refusal(_smallest_clashes(asked, {row.by_versions | row.by_machine for row in tried}))
        build = self._best([row.build for row in fitting], asked)
        return self._answer(build, [row.python for row in fitting if row.build is build], asked)

    # --- what excludes a combination ------------------------------------------------------------------------------

    def _combinations(self, build: Build, asked: Asked) -> Iterator[Combination]:
        versions, machine = frozenset(_versions(build, asked)), frozenset(self._machine(build, asked))
        for python in self._pythons(build):
            more = set()
            if asked.python is not None and not allows(asked.python, python):
                more.add(asked.mask("python"))
            if asked.venv and python not in asked.os.pythons:
                more.add(asked.mask("template", "os"))
            if asked.supported_only and self._support(build.torch, python, asked) not in SUPPORT[:2]:
                more.add(asked.mask("supported_only"))
            yield Combination(build, python, versions | more, machine)

    def _pythons(self, build: Build) -> set[str]:
        """Return the Pythons of a build, or those of other builds of its torch if its own are unknown."""
        if build.pythons is not None:
            return set(build.pythons)
        return {name for other in self.facts.builds if other.torch == build.torch for name in other.pythons or ()}

    def _machine(self, build: Build, asked: Asked) -> Iterator[Mask]:
        if asked.source not in ("auto", build.source):
            yield asked.mask("source")
        if asked.venv and build.source not in WHEELS:
            yield asked.mask("template")
        if asked.megabytes is not None and not _small(build, asked.megabytes):
            yield asked.mask("max_size")
        if build.platform not in asked.os.platforms or not self._glibc(build, asked.os):
            yield asked.mask("os")
        if build.cuda is None:
            yield from (asked.mask(f"gpu{number}") for number in range(len(asked.gpus)))
            return
        need = self.needs[build.cuda]
        if asked.driver is not None and self._mode(build, asked) is None:
            yield asked.mask("driver")
        for number, gpu in enumerate(asked.gpus):
            kind = code(build, gpu)
            if kind is None or self._dropped_by_cudnn(build, gpu):
                yield asked.mask(f"gpu{number}")
            if asked.driver is None:
                continue
            runs = kind != "ptx" or need.inferred or self._mode(build, asked) in ("native", "forward-compatible")
            if not runs or not supports(asked.driver, gpu):
                yield asked.mask(f"gpu{number}", "driver")

    def _glibc(self, build: Build, system: Os) -> bool:
        """Return whether the C library is new enough; if the build's need is unknown, new enough for every build."""
        needs = {build.glibc} if build.glibc else self.glibcs
        return all(version(system.glibc) >= version(need) for need in needs)

    def _support(self, torch: str, python: str, asked: Asked) -> str | None:
        """Return the support level of a torch with a Python, the lower of the two; None if Python's is unknown."""
        newest = sorted({series(name) for name in self._releases()})[-2:]
        if series(torch) not in newest:
            return "ended"
        row = next((row for row in self.facts.pythons if row.python == python), None)
        if row is None:
            return None
        return "ended" if row.eol <= asked.day else "security" if row.bugfix_until <= asked.day else "supported"

    def _need(self, cuda: str) -> Need:
        """Return the oldest driver of a version's toolkits, from sourced rows if any, and the minimum of its major."""
        rows = [row for row in self.facts.toolkits if row.linux_min and ".".join(row.toolkit.split(".")[:2]) == cuda]
        rows = [row for row in rows if row.confidence is None] or rows
        native = min((row.linux_min for row in rows if row.linux_min), key=version)
        inferred = any(row.confidence is not None for row in rows)
        major = version(cuda).major
        floor = next((row.linux_min for row in self.facts.compat if row.cuda_major == major), None)
        if floor is None:
            return Need(native, "0" if inferred else native, inferred)
        return Need(native, min(native, floor, key=version), inferred)

    def _dropped_by_cudnn(self, build: Build, gpu: Gpu) -> bool:
        """Return whether the newest sourced row up to the build's cuDNN lists only capabilities above the GPU's."""
        if build.cudnn is None or build.cuda is None:
            return False
        upto = [
            (version(row.cudnn.split("-")[0]), row)
            for row in self.facts.cudnns
            if row.confidence is None
            and build.cuda.split(".")[0] in row.cuda_major.split("/")
            and version(row.cudnn.split("-")[0]) <= version(build.cudnn)
        ]
        newest = [row for number, row in upto if all(number >= other for other, _ in upto)]
        listed = [pair(text.rstrip("+")) for row in newest for text in row.capabilities]
        return bool(listed) and all(pair(gpu.capability) < low for low in listed)

    # --- the best of what fits ------------------------------------------------------------------------------------

    def _best(self, fitting: list[Build], asked: Asked) -> Build:
        """Return the build that no other one beats. A build with native driver support may be one series older."""
        best = self._unbeaten(fitting, asked)
        if asked.driver is None or self._mode(best, asked) == "native":
            return best
        native = [build for build in fitting if self._mode(build, asked) == "native" and unsure(build) == unsure(best)]
        if not native:
            return best
        first = self._unbeaten(native, asked)
        between = {series(name) for name in self._releases() if series(first.torch) < series(name)}
        return first if not {number for number in between if number < series(best.torch)} else best

    def _unbeaten(self, builds: list[Build], asked: Asked) -> Build:
        best = builds[0]
        for build in builds:
            if self._beats(build, best, asked):
                best = build
        return best

    def _beats(self, build: Build, other: Build, asked: Asked) -> bool:
        """Compare by: documented, known code for the GPUs, torch, driver mode, preferred source, advertised, CUDA."""
        doubts = [(unsure(row), any(code(row, gpu) == "unknown" for gpu in asked.gpus)) for row in (build, other)]
        if doubts[0] != doubts[1]:
            return doubts[0] < doubts[1]
        if version(build.torch) != version(other.torch):
            return version(build.torch) > version(other.torch)
        mode, mode_other = (MODES.index(self._mode(row, asked) or MODES[-1]) for row in (build, other))
        if mode != mode_other:
            return mode < mode_other
        if build.source != other.source:
            return PREFERRED.index(build.source) < PREFERRED.index(other.source)
        if build.advertised != other.advertised:
            return build.advertised
        return version(build.cuda or "0") > version(other.cuda or "0")

    def _mode(self, build: Build, asked: Asked) -> str | None:
        need = self.needs.get(build.cuda or "")
        if need is None or asked.driver is None:
            return "native"
        return need.mode(asked.driver) or ("forward-compatible" if build.cuda in asked.forward else None)

    def _releases(self) -> set[str]:
        return {build.torch for build in self.facts.builds} | set(self.facts.releases)

    def _answer(self, build: Build, pythons: list[str], asked: Asked) -> Answer:
        python = self._python(build, pythons)
        need = self.needs[build.cuda] if build.cuda else None
        minimum = native = None
        if need is not None:
            # Each GPU is in a machine of its own, so the minimum is the lowest branch among the GPUs.
            branches = [0 if "min_driver_branch" in gpu.inferred else gpu.min_driver_branch or 0 for gpu in asked.gpus]
            minimum = max([need.minimum, str(min(branches, default=0))], key=version)
            native = max([need.native, minimum], key=version)
        partners = [self._partner(build, name, python) for name in PARTNERS]
        mode = self._mode(build, asked) if need is not None and asked.driver is not None else None
        package = f"cuda-compat-{(build.cuda or '').replace('.', '-')}" if mode == "forward-compatible" else None
        support = self._support(build.torch, python, asked)
        names = (build.torch, build.cuda, build.source, build.platform, python)
        return Answer(*names, mode, native, minimum, package, support, *partners)

    def _python(self, build: Build, pythons: list[str]) -> str:
        """Return the best Python: most companions, works with torch.compile, known to the previous series, newest."""
        release = self.facts.releases.get(build.torch)
        limit = release.compile_max_python if release is not None else None
        older = {series(other.torch) for other in self.facts.builds if series(other.torch) < series(build.torch)}
        settled = {
            python
            for other in self.facts.builds
            if older and series(other.torch) == max(older)
            for python in other.pythons or ()
        }

        def merits(python: str) -> tuple[bool, bool, bool, bool, Version]:
            compiles = limit is None or version(python) <= version(limit)
            vision, audio = (self._partner(build, name, python) is not None for name in PARTNERS)
            # torch.compile has priority over the previous series, which decides only among equals.
            return vision, audio, compiles, python in settled, version(python)

        return max(pythons, key=merits)

    def _partner(self, build: Build, name: str, python: str) -> str | None:
        if build.source not in WHEELS:
            stated: str | None = getattr(build, name)
            return stated
        page = "cpu" if build.cuda is None else "cu" + build.cuda.replace(".", "")
        listed = {"pypi"} if build.source == "pypi" else {page, "root"}
        fits = [
            row.version
            for row in self.facts.companions
            if row.package == name and row.platform == build.platform and row.index in listed and python in row.pythons
            and Version(build.torch) in SpecifierSet(row.torch) and _beside(name, row.cuda, build.cuda)
        ]  # fmt: skip
        release = self.facts.releases.get(build.torch)
        paired = getattr(release, name, None)
        return paired if paired in fits else max(fits, key=Version, default=None)


def _beside(name: str, own: str | None, cuda: str | None) -> bool:
    """Return whether a package loads beside torch's CUDA, of which torchaudio compares the whole version."""
    if own is None:
        return True
    return cuda is not None and (own == cuda if name == "torchaudio" else version(own).major == version(cuda).major)


def _versions(build: Build, asked: Asked) -> Iterator[Mask]:
    """Yield the constraints that exclude a build on any machine."""
    for field, typed, stated in (
        ("torch", asked.torch, build.torch),
        ("cuda", asked.cuda, build.cuda),
        ("cudnn", asked.cudnn, build.cudnn),
    ):
        if typed is not None and (stated is None or not allows(typed, stated)):
            yield asked.mask(field)
    if build.platform != asked.platform:
        yield asked.mask("platform")
    if (build.cuda is None) != asked.cpu:
        yield asked.mask("cpu")


def _small(build: Build, megabytes: int) -> bool:
    """Return whether both sizes are known and their sum is within the limit."""
    if build.wheel_size is None or build.pulled_size is None:
        return False
    return build.wheel_size + build.pulled_size <= megabytes * 1_000_000


def _smallest_clashes(asked: Asked, excluded: Iterable[frozenset[Mask]]) -> frozenset[frozenset[Words]]:
    """Return all smallest sets of constraints that exclude every combination."""
    bits = range(len(asked.words))
    for size in range(len(asked.words) + 1):
        sets = [sum(1 << bit for bit in chosen) for chosen in combinations(bits, size)]
        clashes = [kept for kept in sets if all(any(mask & ~kept == 0 for mask in masks) for masks in excluded)]
        if clashes:
            return frozenset(asked.named(kept) for kept in clashes)
    raise AssertionError("the set of all constraints excludes every combination")


@cache
def version(text: str) -> Version:
    """Return a version for comparisons."""
    return Version(text)


@cache
def series(torch: str) -> tuple[int, int]:
    """Return (2, 7) for `2.7.1`."""
    return version(torch).major, version(torch).minor


@cache
def allows(typed: str, text: str) -> bool:
    """Return whether a typed constraint allows a version. A plain version also allows all more detailed versions."""
    if re.fullmatch(r"[0-9.]+", typed):
        typed = f"=={typed}.*"
    elif typed[0].isdigit():
        typed = f"=={typed}"
    return SpecifierSet(typed).contains(version(text))


def pair(capability: str) -> tuple[int, int]:
    """Return (8, 6) for `8.6`."""
    major, minor = capability.split(".")
    return int(major), int(minor)


def unsure(build: Build) -> bool:
    """Return whether the build's Pythons are unknown, or it is inferred without a known cuDNN."""
    return build.pythons is None or (build.confidence == "inferred" and build.cudnn is None)


def gpu_of(typed: str, facts: Facts) -> Gpu:
    """Return the row of a GPU that is typed as a product or a capability."""
    return next(row for row in facts.gpus if typed == row.capability or typed in row.products)


def code(build: Build, gpu: Gpu) -> str | None:
    """Return how a CUDA build runs on a GPU: with machine code (`cubin`), with `ptx`, None, or that it is `unknown`."""
    if build.cuda is None:
        return None
    if gpu.integrated:
        listed = build.archs is not None and gpu.capability in build.archs
        return "cubin" if build.platform == "linux-aarch64" and listed else None
    cuda, own = version(build.cuda), pair(gpu.capability)
    if gpu.last_cuda is not None and "last_cuda" not in gpu.inferred and cuda.major > version(gpu.last_cuda).major:
        return None
    if any(pair(arch)[0] == own[0] and pair(arch)[1] <= own[1] for arch in build.archs or ()):
        return "cubin"
    if "first_cuda" not in gpu.inferred and cuda < version(gpu.first_cuda):
        return None
    jit = "ptx" if any(pair(arch) <= own for arch in build.ptx) else None
    return "unknown" if build.archs is None else jit


def supports(driver: str, gpu: Gpu) -> bool:
    """Return whether the driver's branch supports a GPU, as far as sourced rows say."""
    branch = version(driver).major
    first, last = gpu.min_driver_branch, gpu.last_driver_branch
    return not (
        ("min_driver_branch" not in gpu.inferred and first is not None and branch < first)
        or ("last_driver_branch" not in gpu.inferred and last is not None and branch > last)
    )
