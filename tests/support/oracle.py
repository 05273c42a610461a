"""A second answer to requests, by trying every combination of the facts, to hold the resolver against.

It reads what was typed and the rows of the facts, and imports nothing that resolves: no index, no rules, no sorted
rows. A combination is a build with one of its Pythons. For each one it lists which constraints exclude it, together or
alone; a set of constraints clashes if it excludes every combination. Versions are compared by `packaging`.
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
Mask = int  # a set of constraints, one bit for each; 0 means that a default excludes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request resolves to."""

    torch: str
    cuda: str | None
    source: str
    platform: str
    python: str
    mode: str | None  # of the driver that was given
    native: str | None  # driver versions that the CUDA runtime asks for
    minimum: str | None
    package: str | None  # of forward compatibility
    support: str | None  # which fixes torch and Python get
    torchvision: str | None
    torchaudio: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Every smallest set of constraints that clash."""

    clashes: frozenset[frozenset[Words]]


@dataclass(frozen=True, slots=True)
class Need:
    """What a CUDA version asks of the driver."""

    native: str
    minimum: str
    inferred: bool

    def mode(self, driver: str) -> str | None:
        """`native`, `minor-compatible`, or None where it does not run."""
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
    """A request as typed, with the rows that it names."""

    def __init__(self, fields: Fields, facts: Facts) -> None:
        self.torch, self.cuda, self.cudnn = (fields.get(name) for name in ("torch", "cuda", "cudnn"))
        self.python: str | None = fields.get("python")
        self.driver: str | None = fields.get("driver")
        self.gpus = [gpu_of(typed, facts) for typed in fields.get("gpu", ())]
        self.os: Os = next(row for row in facts.oses if row.id == fields.get("os", DEFAULTS["os"]))
        self.platform: str = fields.get("platform", DEFAULTS["platform"])
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
        stated |= {f"gpu{place}": ("--gpu", typed) for place, typed in enumerate(fields.get("gpu", ()))}
        stated |= {"cpu": ("--cpu",)} if self.cpu else {}
        stated |= {"max_size": ("--max-size", fields["max_size"])} if "max_size" in fields else {}
        stated |= {"supported_only": ("--supported-only",)} if self.supported_only else {}
        self.words = tuple(stated.values())
        self._bits = {name: 1 << place for place, name in enumerate(stated)}

    def _forward(self, fields: Fields, facts: Facts) -> set[str]:
        """The CUDA versions whose package is for the driver's branch, if all GPUs are data center products by name."""
        typed = fields.get("gpu", ())
        if self.driver is None or not typed:
            return set()
        if any(name not in gpu.data_center for name, gpu in zip(typed, self.gpus, strict=True)):
            return set()
        found = set()
        for row in facts.forward:
            cuda = ".".join(row.toolkit.split(".")[:2])
            updates = [other for other in facts.forward if other.toolkit.split(".")[:2] == row.toolkit.split(".")[:2]]
            newest = max(updates, key=lambda other: version(other.toolkit))
            if self.driver.split(".")[0] in newest.branches:
                found.add(cuda)
        return found

    def mask(self, *names: str) -> Mask:
        """The constraints of these names; 0 where only defaults have them."""
        return sum(self._bits.get(name, 0) for name in names)

    def named(self, mask: Mask) -> frozenset[Words]:
        """The words of the constraints in a mask."""
        return frozenset(words for place, words in enumerate(self.words) if mask >> place & 1)


class Oracle:
    """The answers that one set of facts gives."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.needs = {cuda: self._need(cuda) for cuda in {build.cuda for build in facts.builds if build.cuda}}
        self.glibcs = {build.glibc for build in facts.builds if build.glibc}

    def answer(self, fields: Fields) -> Answer | Refusal:
        """The answer to a request whose fields are sound."""
        asked = Asked(fields, self.facts)
        tried = [one for build in self.facts.builds for one in self._combinations(build, asked)]
        # `auto` means wheels, unless no documented wheel has the wanted versions, on whatever machine.
        wheels = any(one.build.source in WHEELS and not unsure(one.build) and not one.by_versions for one in tried)
        if asked.source == "auto" and wheels:
            tried = [one for one in tried if one.build.source in WHEELS]
        fitting = [one for one in tried if not one.by_versions and not one.by_machine]
        if not fitting:
            return Refusal(_smallest_clashes(asked, {one.by_versions | one.by_machine for one in tried}))
        build = self._best([one.build for one in fitting], asked)
        return self._answer(build, [one.python for one in fitting if one.build is build], asked)

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
        """The Pythons of a build; those of the other builds of its torch where its own are not known."""
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
            yield from (asked.mask(f"gpu{place}") for place in range(len(asked.gpus)))
            return
        need = self.needs[build.cuda]
        if asked.driver is not None and self._mode(build, asked) is None:
            yield asked.mask("driver")
        for place, gpu in enumerate(asked.gpus):
            how = code(build, gpu)
            if how is None or self._dropped_by_cudnn(build, gpu):
                yield asked.mask(f"gpu{place}")
            if asked.driver is None:
                continue
            compiled = how != "ptx" or need.inferred or self._mode(build, asked) in ("native", "forward-compatible")
            if not compiled or not knows(asked.driver, gpu):
                yield asked.mask(f"gpu{place}", "driver")

    def _glibc(self, build: Build, system: Os) -> bool:
        """Whether the C library is new enough; newer than every need where the build's need is not known."""
        needs = {build.glibc} if build.glibc else self.glibcs
        return all(version(system.glibc) >= version(need) for need in needs)

    def _support(self, torch: str, python: str, asked: Asked) -> str | None:
        """Which fixes a torch and a Python get: the fewer of both; None where Python's are not known."""
        newest = sorted({series(name) for name in self._releases()})[-2:]
        if series(torch) not in newest:
            return "ended"
        row = next((row for row in self.facts.pythons if row.python == python), None)
        if row is None:
            return None
        return "ended" if row.eol <= asked.day else "security" if row.bugfix_until <= asked.day else "supported"

    def _need(self, cuda: str) -> Need:
        """The oldest driver of a version's toolkits, sourced rows before inferred ones, and the floor of its major."""
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
        """Whether the newest sourced row up to the build's cuDNN lists no capability as low as the GPU's."""
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
        """The build that no other one beats; a native one may cost one series of torch."""
        best = self._unbeaten(fitting, asked)
        if asked.driver is None or self._mode(best, asked) == "native":
            return best
        native = [one for one in fitting if self._mode(one, asked) == "native" and unsure(one) == unsure(best)]
        if not native:
            return best
        first = self._unbeaten(native, asked)
        between = {series(name) for name in self._releases() if series(first.torch) < series(name)}
        return first if not {one for one in between if one < series(best.torch)} else best

    def _unbeaten(self, builds: list[Build], asked: Asked) -> Build:
        best = builds[0]
        for one in builds:
            if self._beats(one, best, asked):
                best = one
        return best

    def _beats(self, one: Build, other: Build, asked: Asked) -> bool:
        """Documented; newest torch; the mode of the driver; the preferred source; advertised; newest CUDA."""
        if unsure(one) != unsure(other):
            return unsure(other)
        if version(one.torch) != version(other.torch):
            return version(one.torch) > version(other.torch)
        mode, mode_other = (MODES.index(self._mode(build, asked) or MODES[-1]) for build in (one, other))
        if mode != mode_other:
            return mode < mode_other
        if one.source != other.source:
            return PREFERRED.index(one.source) < PREFERRED.index(other.source)
        if one.advertised != other.advertised:
            return one.advertised
        return version(one.cuda or "0") > version(other.cuda or "0")

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
            # Each GPU runs in its own machine, so the branch of the oldest one is enough for it.
            branches = [0 if "min_driver_branch" in gpu.inferred else gpu.min_driver_branch or 0 for gpu in asked.gpus]
            minimum = max([need.minimum, str(min(branches, default=0))], key=version)
            native = max([need.native, minimum], key=version)
        partners = [self._partner(build, name, python) for name in PARTNERS]
        mode = self._mode(build, asked) if need is not None and asked.driver is not None else None
        package = f"cuda-compat-{(build.cuda or '').replace('.', '-')}" if mode == "forward-compatible" else None
        support = self._support(build.torch, python, asked)
        made = (build.torch, build.cuda, build.source, build.platform, python, mode, native, minimum, package, support)
        return Answer(*made, *partners)

    def _python(self, build: Build, pythons: list[str]) -> str:
        """With the most companions; that torch.compile supports and the series before had; the newest."""
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
            # torch.compile weighs more than being settled, which counts only among equals.
            return vision, audio, compiles, python in settled, version(python)

        return max(pythons, key=merits)

    def _partner(self, build: Build, name: str, python: str) -> str | None:
        release = self.facts.releases.get(build.torch)
        stated: str | None = getattr(build, name)
        if stated is None and release is not None and build.source in WHEELS:
            stated = getattr(release, name)
        own = getattr(build, f"{name}_pythons")
        files = build.pythons if own is None else own
        return stated if files is None or python in files else None


def _versions(build: Build, asked: Asked) -> Iterator[Mask]:
    """What excludes a build whatever the machine is."""
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
    """Whether both sizes are known and together no more."""
    if build.wheel_size is None or build.pulled_size is None:
        return False
    return build.wheel_size + build.pulled_size <= megabytes * 1_000_000


def _smallest_clashes(asked: Asked, excluded: Iterable[frozenset[Mask]]) -> frozenset[frozenset[Words]]:
    """Every set of constraints of the least size that excludes all combinations."""
    places = range(len(asked.words))
    for size in range(len(asked.words) + 1):
        sets = [sum(1 << place for place in chosen) for chosen in combinations(places, size)]
        found = [kept for kept in sets if all(any(mask & ~kept == 0 for mask in masks) for masks in excluded)]
        if found:
            return frozenset(asked.named(kept) for kept in found)
    raise AssertionError("a request that all constraints exclude has a clash")


@cache
def version(text: str) -> Version:
    """A version for comparisons."""
    return Version(text)


@cache
def series(torch: str) -> tuple[int, int]:
    """`2.7.1` -> (2, 7)."""
    return version(torch).major, version(torch).minor


@cache
def allows(typed: str, text: str) -> bool:
    """Whether a typed constraint allows a version: a plain version stands for itself and everything more detailed."""
    if re.fullmatch(r"[0-9.]+", typed):
        typed = f"=={typed}.*"
    elif typed[0].isdigit():
        typed = f"=={typed}"
    return SpecifierSet(typed).contains(version(text))


def pair(capability: str) -> tuple[int, int]:
    """`8.6` -> (8, 6)."""
    major, minor = capability.split(".")
    return int(major), int(minor)


def unsure(build: Build) -> bool:
    """Whether the Pythons are unknown, or all is inferred and no cuDNN is known."""
    return build.pythons is None or (build.confidence == "inferred" and build.cudnn is None)


def gpu_of(typed: str, facts: Facts) -> Gpu:
    """The row of a GPU, typed as a product or a capability of the row."""
    return next(row for row in facts.gpus if typed == row.capability or typed in row.products)


def code(build: Build, gpu: Gpu) -> str | None:
    """How a build with CUDA runs on a GPU: by its machine code (`cubin`), by `ptx`, or None."""
    if build.cuda is None or build.archs is None:
        return None
    if gpu.integrated:
        return "cubin" if build.platform == "linux-aarch64" and gpu.capability in build.archs else None
    cuda, own = version(build.cuda), pair(gpu.capability)
    if gpu.last_cuda is not None and "last_cuda" not in gpu.inferred and cuda.major > version(gpu.last_cuda).major:
        return None
    if any(pair(arch)[0] == own[0] and pair(arch)[1] <= own[1] for arch in build.archs):
        return "cubin"
    if "first_cuda" not in gpu.inferred and cuda < version(gpu.first_cuda):
        return None
    return "ptx" if any(pair(arch) <= own for arch in build.ptx) else None


def knows(driver: str, gpu: Gpu) -> bool:
    """Whether no sourced row says that the driver's branch does not support a GPU."""
    branch = version(driver).major
    first, last = gpu.min_driver_branch, gpu.last_driver_branch
    return not (
        ("min_driver_branch" not in gpu.inferred and first is not None and branch < first)
        or ("last_driver_branch" not in gpu.inferred and last is not None and branch > last)
    )
