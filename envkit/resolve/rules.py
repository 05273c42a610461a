"""One predicate per rule: may this build be used for what is wanted?

`Sieve` works out once what all builds are asked (which torch versions the constraint allows, what the driver runs),
so that going through hundreds of rows stays a matter of set look-ups. RULES is ordered cheapest first. Why a rule
turns builds away is told by `envkit.resolve.because`, once, when nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from envkit.facts.model import Build, Gpu
from envkit.ground.versions import Constraint, key
from envkit.resolve.forward import FORWARD
from envkit.resolve.gpus import Card
from envkit.resolve.index import WHEEL_SOURCES, Index, doubted_floor, unsure
from envkit.resolve.support import supported_pythons
from envkit.resolve.wanted import Wanted


class Sieve:
    """What is wanted, prepared for asking it of every build of an index."""

    def __init__(self, wanted: Wanted, index: Index) -> None:
        self.wanted = wanted
        self.index = index
        self.torches = _both(_allowed(wanted.torch, index.rank), index.supported if wanted.supported_on else None)
        self.cudas = _allowed(wanted.cuda, index.cudas)
        self.cudnns = _allowed(wanted.cudnn, index.cudnns)
        self.modes = {
            cuda: need.mode(wanted.driver) if wanted.driver else "native" for cuda, need in index.needs.items()
        }
        self.modes |= {cuda: FORWARD for cuda in wanted.forward if self.modes.get(cuda, "") is None}
        self._gpu_memo: dict[tuple[object, ...], bool] = {}

    @cached_property
    def driven(self) -> bool:
        """Whether the driver knows every GPU; True where none is given."""
        version = self.wanted.driver
        return version is None or all(driven(card.gpu, version) for card in self.wanted.cards)

    @cached_property
    def pythons(self) -> frozenset[str] | None:
        """Python minor versions that the constraint, the OS of a venv on its Python, and support allow; None = any."""
        every = {python for versions in self.index.siblings.values() for python in versions}
        fixed = supported_pythons(self.wanted.supported_on, self.index.facts) if self.wanted.supported_on else None
        allowed = _both(_allowed(self.wanted.python, every), fixed)
        if self.wanted.wheels and self.wanted.os:
            return _both(allowed, frozenset(self.wanted.os.pythons))
        return allowed

    def known_pythons(self, build: Build) -> tuple[str, ...]:
        """The Pythons of a build, or of its release where the build's own are not known."""
        return self.index.siblings[build.torch] if build.pythons is None else build.pythons

    def runs_on(self, build: Build, card: Card) -> bool:
        """Whether a build has code and a cuDNN for one GPU (remembered: many builds share an arch list)."""
        memo = (card.gpu.capability, build.archs, build.ptx, build.cuda, build.cudnn, build.platform)
        if memo not in self._gpu_memo:
            self._gpu_memo[memo] = self._runs_on(build, card.gpu)
        return self._gpu_memo[memo]

    def _runs_on(self, build: Build, gpu: Gpu) -> bool:
        kind = code(build, gpu)
        if kind is None or not cudnn_runs(build, gpu, self.index):
            return False
        # PTX is compiled by the driver, which must be at least as new as the toolkit that made it. The package of
        # forward compatibility brings the compiler of a driver that is.
        need = self.index.needs[build.cuda or ""]
        return kind == "cubin" or need.inferred or self.modes[build.cuda or ""] in ("native", FORWARD)


Rule = Callable[[Build, Sieve], bool]


def platform(build: Build, sieve: Sieve) -> bool:
    """The build is made for the platform."""
    return sieve.wanted.platform in (None, build.platform)


def device(build: Build, sieve: Sieve) -> bool:
    """A CPU build exactly when one is asked for."""
    return sieve.wanted.cpu is None or (build.cuda is None) == sieve.wanted.cpu


def torch(build: Build, sieve: Sieve) -> bool:
    """The torch version is allowed, and gets fixes where that is asked for."""
    return sieve.torches is None or build.torch in sieve.torches


def cuda(build: Build, sieve: Sieve) -> bool:
    """The CUDA runtime is allowed; a CPU build has none."""
    return sieve.cudas is None or build.cuda in sieve.cudas


def cudnn(build: Build, sieve: Sieve) -> bool:
    """The cuDNN is known and allowed."""
    return sieve.cudnns is None or build.cudnn in sieve.cudnns


def source(build: Build, sieve: Sieve) -> bool:
    """The source is allowed; a venv on the OS's Python takes wheels only."""
    wanted = sieve.wanted
    if wanted.wheels and build.source not in WHEEL_SOURCES:
        return False
    return wanted.source in (None, build.source) and (wanted.scope is None or build.source in wanted.scope)


def python(build: Build, sieve: Sieve) -> bool:
    """The build has a Python that is allowed."""
    known = sieve.known_pythons(build)
    return bool(known) and (sieve.pythons is None or not sieve.pythons.isdisjoint(known))


def system(build: Build, sieve: Sieve) -> bool:
    """The OS exists for the platform and has the C library the build needs.

    Where that need is not known, an OS newer than any known need will do.
    """
    row = sieve.wanted.os
    if row is None:
        return True
    need = build.glibc or sieve.index.glibc
    return build.platform in row.platforms and (need is None or key(row.glibc) >= key(need))


def driver(build: Build, sieve: Sieve) -> bool:
    """The driver runs the CUDA runtime: natively, by minor-version compatibility or by forward compatibility."""
    return build.cuda is None or sieve.modes.get(build.cuda) is not None


def gpu_driver(build: Build, sieve: Sieve) -> bool:
    """The driver knows every GPU: not from a branch before it appeared, nor from one after its end."""
    return build.cuda is None or sieve.driven


def gpu(build: Build, sieve: Sieve) -> bool:
    """The build has code and a cuDNN for every GPU."""
    return all(sieve.runs_on(build, card) for card in sieve.wanted.cards)


def size(build: Build, sieve: Sieve) -> bool:
    """The download is known to be small enough."""
    most, own = sieve.wanted.max_size, build.download_size
    return most is None or (own is not None and own <= most)


VERSION_RULES: tuple[Rule, ...] = (platform, device, torch, cuda, cudnn, python)
RULES: tuple[Rule, ...] = (platform, device, torch, cuda, source, size, cudnn, driver, gpu_driver, python, system, gpu)


def fits(build: Build, sieve: Sieve, rules: Iterable[Rule] = RULES) -> bool:
    """Whether a build passes every rule."""
    for rule in rules:  # noqa: SIM110 - `all` with a generator takes twice as long, hundreds of times a request
        if not rule(build, sieve):
            return False
    return True


def fitting(sieve: Sieve, among: tuple[Rule, ...] = RULES) -> Iterator[Build]:
    """The builds that pass every rule, in no particular order."""
    wanted = sieve.wanted
    rules, builds = _asked(sieve, among), sieve.index.facts.builds
    if wanted.platform is not None and wanted.cpu is not None:  # the rules `platform` and `device`, looked up
        rules = [rule for rule in rules if rule not in (platform, device)]
        builds = sieve.index.places.get((wanted.platform, wanted.cpu), ())
    return (build for build in builds if fits(build, sieve, rules))


def _asked(sieve: Sieve, among: tuple[Rule, ...]) -> list[Rule]:
    """The rules that can turn a build away: most requests leave most fields out."""
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
    }
    return [rule for rule in among if not idle.get(rule, False)]


def candidates(sieve: Sieve) -> list[Build]:
    """The builds that pass every rule, in no particular order."""
    return list(fitting(sieve))


def scoped(wanted: Wanted, index: Index) -> Wanted:
    """Settle what `--source auto` means: wheels, unless none exists in the wanted versions.

    Versions decide and not the OS, GPU or driver: a machine that no wheel runs on is worth a word, with another
    source as a way out, rather than a silent change of where torch comes from.
    """
    if wanted.source is not None:
        return wanted
    sieve = Sieve(wanted, index)
    if any(build.source in WHEEL_SOURCES and not unsure(build) for build in fitting(sieve, VERSION_RULES)):
        return replace(wanted, scope=frozenset(WHEEL_SOURCES))
    return wanted


def satisfiable(wanted: Wanted, index: Index) -> bool:
    """Whether any build passes every rule."""
    return next(fitting(Sieve(wanted, index)), None) is not None


def code(build: Build, gpu: Gpu) -> str | None:
    """How a build runs on a GPU: `cubin`, `ptx`, or None.

    A cubin runs on the same major with an equal or higher minor number, on a Jetson module only on its own capability.
    PTX can be compiled for any later GPU, but only by a toolkit whose libraries know that GPU too. An arch list that is
    not known excludes nothing.
    """
    if build.cuda is None or build.archs is None:
        return None
    if gpu.integrated:
        return "cubin" if build.platform == "linux-aarch64" and gpu.capability in build.archs else None
    if gpu.last_cuda and "last_cuda" not in gpu.inferred and key(build.cuda)[0] > key(gpu.last_cuda)[0]:
        return None
    major, minor = _pair(gpu.capability)
    if any(_pair(arch)[0] == major and _pair(arch)[1] <= minor for arch in build.archs):
        return "cubin"
    knows = "first_cuda" in gpu.inferred or key(build.cuda) >= key(gpu.first_cuda)
    if knows and any(_pair(arch) <= (major, minor) for arch in build.ptx):
        return "ptx"
    return None


def cudnn_runs(build: Build, gpu: Gpu, index: Index) -> bool:
    """Whether the build's cuDNN is not known to have dropped a GPU: newer cuDNN releases drop old GPUs."""
    floor = index.cudnn_floor(build)
    return floor is None or _pair(gpu.capability) >= _pair(floor[0])


def cudnn_doubted(build: Build, gpu: Gpu, index: Index) -> bool:
    """Whether only an inferred row says that the build's cuDNN dropped a GPU."""
    believed = doubted_floor(build, index.facts.cudnns)
    return believed is not None and _pair(gpu.capability) < _pair(believed) and cudnn_runs(build, gpu, index)


def first_branch(gpu: Gpu) -> int:
    """Return the oldest driver branch that supports a GPU; 0 where no sourced fact says it."""
    return 0 if "min_driver_branch" in gpu.inferred else gpu.min_driver_branch or 0


def driven(gpu: Gpu, driver: str) -> bool:
    """Whether no sourced fact says that a driver's branch does not know a GPU."""
    branch = key(driver)[0]
    last = None if "last_driver_branch" in gpu.inferred else gpu.last_driver_branch
    return first_branch(gpu) <= branch and (last is None or branch <= last)


def driven_doubted(gpu: Gpu, driver: str) -> bool:
    """Whether only an inferred fact says that a driver's branch does not know a GPU."""
    branch, last = key(driver)[0], gpu.last_driver_branch
    return driven(gpu, driver) and (branch < (gpu.min_driver_branch or 0) or (last is not None and branch > last))


def _allowed(constraint: Constraint | None, versions: Iterable[str]) -> frozenset[str] | None:
    return None if constraint is None else frozenset(text for text in versions if constraint.allows(text))


def _both(first: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """What both sets have; None has everything."""
    return first if other is None else other if first is None else first & other


def _pair(capability: str) -> tuple[int, int]:
    numbers = key(capability)
    return numbers[0], numbers[1] if len(numbers) > 1 else 0
