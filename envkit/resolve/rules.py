"""The rules, one predicate each: does this build satisfy the request?

`Sieve` computes once what does not depend on the build (which torch versions the constraint allows, what the driver
runs), so checking hundreds of rows takes only set lookups. RULES is ordered cheapest first. The rules give no reasons:
`envkit.resolve.explain` finds them once no build is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from envkit.facts import gpu_code
from envkit.facts.model import Build, Gpu
from envkit.ground.versions import Constraint, key
from envkit.resolve.companions import companion, conda_version, paired
from envkit.resolve.forward import FORWARD
from envkit.resolve.gpus import Card
from envkit.resolve.index import WHEEL_SOURCES, Index, doubted_floor, unsure
from envkit.resolve.model import WantedPackage
from envkit.resolve.support import supported_pythons
from envkit.resolve.wanted import Wanted


class Sieve:
    """A request, prepared for checking every build of an index."""

    def __init__(self, wanted: Wanted, index: Index) -> None:
        self.wanted = wanted
        self.index = index
        self.torches = _both(_allowed(wanted.torch, index.rank), index.supported if wanted.supported_on else None)
        self.cudas = _allowed(wanted.cuda, index.cudas)
        self.cudnns = _allowed(wanted.cudnn, index.cudnns)
        self.modes = {
            cuda: need.mode(wanted.driver) if wanted.driver else "native" for cuda, need in index.needs.items()
        }
        # The default keeps out a CUDA without a driver row; None is one that the driver does not run otherwise.
        self.modes |= {cuda: FORWARD for cuda in wanted.forward if self.modes.get(cuda, "") is None}
        self._gpu_memo: dict[tuple[object, ...], bool] = {}
        self._pair_memo: dict[tuple[str, str], tuple[str, ...]] = {}

    @cached_property
    def driven(self) -> bool:
        """Whether the driver supports every GPU; True if no driver is given."""
        version = self.wanted.driver
        return version is None or all(driven(card.gpu, version) for card in self.wanted.cards)

    @cached_property
    def pythons(self) -> frozenset[str] | None:
        """The Python minor versions that the request allows; None = any.

        They follow from its constraint on Python, from `--supported-only`, and from the OS if its Python is used.
        """
        every = {python for versions in self.index.siblings.values() for python in versions}
        supported = supported_pythons(self.wanted.supported_on, self.index.facts) if self.wanted.supported_on else None
        allowed = _both(_allowed(self.wanted.python, every), supported)
        if self.wanted.wheels and self.wanted.os:
            return _both(allowed, frozenset(self.wanted.os.pythons))
        return allowed

    def known_pythons(self, build: Build) -> tuple[str, ...]:
        """Return the Pythons of a build, or of its torch release if the build's own are unknown."""
        return self.index.siblings[build.torch] if build.pythons is None else build.pythons

    def guessed(self, build: Build) -> bool:
        """Return whether it is unknown if a build has code for one of the GPUs."""
        return build.archs is None and any(code(build, card.gpu) == "unknown" for card in self.wanted.cards)

    def may_be(self, python: str) -> bool:
        """Return whether the request allows a Python."""
        return self.pythons is None or python in self.pythons

    def complete(self, build: Build, python: str) -> bool:
        """Return whether every package that has to go with torch fits a build and a Python."""
        return all(self._fits(build, wanted, python) for wanted in self.wanted.packages)

    def _fits(self, build: Build, wanted: WantedPackage, python: str) -> bool:
        if build.source in WHEEL_SOURCES:
            return companion(build, wanted.package, python, self.index, wanted.version) is not None
        version = conda_version(build, wanted.package)
        # Which versions conda-forge has is unknown and left to conda's solver; which torch each is for is known.
        versions = (version,) if version else self._paired(build.torch, wanted.package)
        return any(wanted.version is None or wanted.version.allows(version) for version in versions)

    def _paired(self, torch: str, package: str) -> tuple[str, ...]:
        if (torch, package) not in self._pair_memo:
            self._pair_memo[torch, package] = paired(torch, package, self.index)
        return self._pair_memo[torch, package]

    def runs_on(self, build: Build, card: Card) -> bool:
        """Return whether a build has code and a cuDNN for one GPU; cached, because many builds share an arch list."""
        memo = (card.gpu.capability, build.archs, build.ptx, build.cuda, build.cudnn, build.platform)
        if memo not in self._gpu_memo:
            self._gpu_memo[memo] = self._runs_on(build, card.gpu)
        return self._gpu_memo[memo]

    def _runs_on(self, build: Build, gpu: Gpu) -> bool:
        kind = code(build, gpu)
        if kind is None or not cudnn_runs(build, gpu, self.index):
            return False
        # The driver compiles PTX, and must be at least as new as the toolkit that generated it. A cuda-compat package
        # contains the compiler of such a driver.
        need = self.index.needs[build.cuda or ""]
        return kind != "ptx" or need.inferred or self.modes[build.cuda or ""] in ("native", FORWARD)


Rule = Callable[[Build, Sieve], bool]


def platform(build: Build, sieve: Sieve) -> bool:
    """Return whether the build is for the requested platform."""
    return sieve.wanted.platform in (None, build.platform)


def device(build: Build, sieve: Sieve) -> bool:
    """Return whether the build is a CPU build if and only if one is requested."""
    return sieve.wanted.cpu is None or (build.cuda is None) == sieve.wanted.cpu


def torch(build: Build, sieve: Sieve) -> bool:
    """Return whether the torch version is allowed, which includes `--supported-only`."""
    return sieve.torches is None or build.torch in sieve.torches


def cuda(build: Build, sieve: Sieve) -> bool:
    """Return whether the CUDA runtime is allowed; a CPU build has none."""
    return sieve.cudas is None or build.cuda in sieve.cudas


def cudnn(build: Build, sieve: Sieve) -> bool:
    """Return whether the cuDNN is known and allowed."""
    return sieve.cudnns is None or build.cudnn in sieve.cudnns


def source(build: Build, sieve: Sieve) -> bool:
    """Return whether the source is allowed; only wheels can be installed in a venv on the OS's Python."""
    wanted = sieve.wanted
    if wanted.wheels and build.source not in WHEEL_SOURCES:
        return False
    return wanted.source in (None, build.source) and (wanted.scope is None or build.source in wanted.scope)


def python(build: Build, sieve: Sieve) -> bool:
    """Return whether an allowed Python can run the build."""
    known = sieve.known_pythons(build)
    return bool(known) and (sieve.pythons is None or not sieve.pythons.isdisjoint(known))


def packages(build: Build, sieve: Sieve) -> bool:
    """Return whether an allowed Python has a file of every package that has to go with torch."""
    return any(sieve.complete(build, name) for name in sieve.known_pythons(build) if sieve.may_be(name))


def system(build: Build, sieve: Sieve) -> bool:
    """Return whether the OS exists for the build's platform and its glibc is new enough.

    If the glibc that the build needs is unknown, the highest that any build is known to need is assumed.
    """
    row = sieve.wanted.os
    if row is None:
        return True
    need = build.glibc or sieve.index.glibc
    return build.platform in row.platforms and (need is None or key(row.glibc) >= key(need))


def driver(build: Build, sieve: Sieve) -> bool:
    """Return whether the driver runs the CUDA runtime: natively, or by minor-version or forward compatibility."""
    return build.cuda is None or sieve.modes.get(build.cuda) is not None


def gpu_driver(build: Build, sieve: Sieve) -> bool:
    """Return whether the driver supports every GPU: its branch is neither too old nor too new for one of them."""
    return build.cuda is None or sieve.driven


def gpu(build: Build, sieve: Sieve) -> bool:
    """Return whether the build has code and a cuDNN for every GPU."""
    return all(sieve.runs_on(build, card) for card in sieve.wanted.cards)


def size(build: Build, sieve: Sieve) -> bool:
    """Return whether the download is known to be within the limit."""
    most, own = sieve.wanted.max_size, build.download_size
    return most is None or (own is not None and own <= most)


VERSION_RULES: tuple[Rule, ...] = (platform, device, torch, cuda, cudnn, python)
RULES: tuple[Rule, ...] = (
    platform, device, torch, cuda, source, size, cudnn, driver, gpu_driver, python, system, gpu, packages,
)  # fmt: skip


def fits(build: Build, sieve: Sieve, rules: Iterable[Rule] = RULES) -> bool:
    """Return whether a build passes every rule."""
    for rule in rules:  # noqa: SIM110 - `all` with a generator takes twice as long, hundreds of times per request
        if not rule(build, sieve):
            return False
    return True


def fitting(sieve: Sieve, among: tuple[Rule, ...] = RULES) -> Iterator[Build]:
    """Yield the builds that pass every rule, in no particular order."""
    wanted = sieve.wanted
    rules, builds = _active(sieve, among), sieve.index.facts.builds
    if wanted.platform is not None and wanted.cpu is not None:  # a lookup replaces the rules `platform` and `device`
        rules = [rule for rule in rules if rule not in (platform, device)]
        builds = sieve.index.by_target.get((wanted.platform, wanted.cpu), ())
    return (build for build in builds if fits(build, sieve, rules))


def _active(sieve: Sieve, among: tuple[Rule, ...]) -> list[Rule]:
    """Return the rules that can reject a build: most requests leave most fields out."""
    wanted = sieve.wanted
    idle: dict[Rule, bool] = {
        torch: sieve.torches is None,
        cuda: sieve.cudas is None,
        cudnn: sieve.cudnns is None,
        size: wanted.max_size is None,
        source: not (wanted.wheels or wanted.source or wanted.scope),
        gpu_driver: wanted.driver is None or not wanted.cards,
        system: wanted.os is None,
        gpu: not wanted.cards,
        packages: not wanted.packages,
    }
    return [rule for rule in among if not idle.get(rule, False)]


def candidates(sieve: Sieve) -> list[Build]:
    """Return the builds that pass every rule, in no particular order."""
    return list(fitting(sieve))


def scoped(wanted: Wanted, index: Index) -> Wanted:
    """Decide what `--source auto` means: wheels, unless none exists in the requested versions.

    Only the versions decide. If no wheel runs on the OS, GPU or driver, the request is a conflict with another source
    as a suggestion: where torch comes from does not change silently.
    """
    if wanted.source is not None:
        return wanted
    sieve = Sieve(wanted, index)
    if any(build.source in WHEEL_SOURCES and not unsure(build) for build in fitting(sieve, VERSION_RULES)):
        return replace(wanted, scope=frozenset(WHEEL_SOURCES))
    return wanted


def satisfiable(wanted: Wanted, index: Index) -> bool:
    """Return whether any build passes every rule."""
    return next(fitting(Sieve(wanted, index)), None) is not None


def code(build: Build, gpu: Gpu) -> str | None:
    """Return how a build runs on a GPU: `cubin`, `ptx`, `unknown`, or None if it does not.

    What is unknown refuses nothing: a build without an arch list may run on any GPU that its CUDA can compile for. A
    Jetson module is the exception: it runs only code built for it, which the usual builds do not have.

    `envkit.facts.gpu_code` has the rule.
    """
    if build.cuda is None or (gpu.integrated and build.platform != "linux-aarch64"):
        return None
    if build.archs is None and not gpu.integrated:
        known = gpu_code.supports(build.cuda, gpu) and gpu_code.knows(build.cuda, gpu)
        return "unknown" if known else None
    archs, ptx = ([(*_pair(arch), "") for arch in some or ()] for some in (build.archs, build.ptx))
    how = gpu_code.runs(_pair(gpu.capability), archs, ptx, gpu=gpu, cuda=build.cuda)
    return "cubin" if how in (gpu_code.EXACT, gpu_code.SAME_MAJOR) else how


def cudnn_runs(build: Build, gpu: Gpu, index: Index) -> bool:
    """Return whether the build's cuDNN supports a GPU, as far as sourced facts tell; new releases drop old GPUs."""
    floor = index.cudnn_floor(build)
    return floor is None or _pair(gpu.capability) >= _pair(floor[0])


def cudnn_doubted(build: Build, gpu: Gpu, index: Index) -> bool:
    """Return whether the build's cuDNN dropped a GPU according to inferred rows only."""
    believed = doubted_floor(build, index.facts.cudnns)
    return believed is not None and _pair(gpu.capability) < _pair(believed) and cudnn_runs(build, gpu, index)


def first_branch(gpu: Gpu) -> int:
    """Return the oldest driver branch that supports a GPU; 0 if no sourced fact states it."""
    return 0 if "min_driver_branch" in gpu.inferred else gpu.min_driver_branch or 0


def driven(gpu: Gpu, driver: str) -> bool:
    """Return whether a driver's branch supports a GPU, as far as sourced facts tell."""
    branch = key(driver)[0]
    last = None if "last_driver_branch" in gpu.inferred else gpu.last_driver_branch
    return first_branch(gpu) <= branch and (last is None or branch <= last)


def driven_doubted(gpu: Gpu, driver: str) -> bool:
    """Return whether a driver's branch does not support a GPU according to inferred facts only."""
    branch, last = key(driver)[0], gpu.last_driver_branch
    return driven(gpu, driver) and (branch < (gpu.min_driver_branch or 0) or (last is not None and branch > last))


def _allowed(constraint: Constraint | None, versions: Iterable[str]) -> frozenset[str] | None:
    return None if constraint is None else frozenset(text for text in versions if constraint.allows(text))


def _both(first: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the intersection of both sets; None stands for the set of everything."""
    return first if other is None else other if first is None else first & other


def _pair(capability: str) -> tuple[int, int]:
    numbers = key(capability)
    return numbers[0], numbers[1] if len(numbers) > 1 else 0
