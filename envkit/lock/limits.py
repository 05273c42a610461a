"""Find the newest torch that the packages of a plan allow, before the plan is locked.

The facts give candidates: the versions of torch that the hardware and the request allow with one Python. One call of
the solver with torch bounded to them, not pinned, chooses the version by what the packages require of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envkit.ground.errors import ConflictError, EnvkitError
from envkit.ground.versions import key
from envkit.lock import abi, conda, held_back, request, stubs, together, uv, variants
from envkit.lock.index_locations import IndexLocations
from envkit.lock.known_pages import NOTHING_FOUND, Found, KnownPages, image_of
from envkit.lock.model import CondaPackage
from envkit.lock.uv import Target
from envkit.lock.wheel_choice import ranks_of, versions_of
from envkit.lock.wheels import python_index
from envkit.plan import source_spec
from envkit.plan.family import CONDA_SOURCES
from envkit.plan.model import BuildPlan
from envkit.resolve.candidates import Candidates

_TORCH = "torch"
_UNKNOWN = 5  # releases that the facts do not have and that a solver may choose between two candidates
# uv: `Because xformers==0.0.33 depends on torch==2.9.0 and you require ...`, `all versions of it depend on torch<2.7`
_DEPENDS = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:[<>=!]\S+)? depends? on torch(?P<range>[<>=!~]\S*?),?(?= (?:and|we)\b)"
)
_PYTORCH = re.compile(r"pytorch=[^=]+=(?P<build>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The newest candidate that the packages allow."""

    torch: str
    versions: Mapping[str, str]  # normalized distribution -> version, of the same solution
    why: str | None = None  # no newer candidate: which package has no wheel for those; None = its requirements say


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Solves the packages of plans with torch bounded to candidates. Nothing is downloaded but metadata."""

    indexes: IndexLocations
    glibc: str  # of the image's OS
    as_of: str | None = None  # RFC 3339; newer packages are not considered
    pages: KnownPages = field(default_factory=KnownPages)  # of the facts, with prebuilt wheels

    def newest(self, plan: BuildPlan, among: Candidates) -> Allowed:
        """Return the newest torch of some candidates that the packages of a plan allow.

        Args:
            plan: made for the Python of the candidates.
            among: the candidates, of which there is at least one.

        Raises:
            ConflictError: the packages allow none of them, or contradict each other; the details are the solver's.
            EnvironmentProblem, TimeLimitError, UsageError: as the solvers raise them.
        """
        # A pinned extension was compiled for one torch, which its own metadata do not say.
        pins = [
            clause.version for line in plan.pip for clause in Requirement(line).specifier if clause.operator == "=="
        ]
        unfit = {
            build.torch for build in among.builds if not all(abi.fits(pin, build.torch, build.cuda) for pin in pins)
        }
        among = among.without(unfit) if unfit < set(among.torches) else among
        more: tuple[str, ...] = ()
        while True:
            some, found, why = self._with_wheels(plan, among, more)
            try:
                allowed = self._known(plan, some, found)
            except ConflictError as error:
                name = uv.source_only(error)
                # A package that others require may have a page, too.
                if name is None or name in more or name in map(_name, plan.pip) or not self.pages.knows(name):
                    raise
                more = (*more, name)
                continue
            # What was found is for the newest candidate; packages may allow an older one only, which has other wheels.
            if allowed.torch == some.torches[0] or not (found.links or found.own):
                return replace(allowed, why=why if allowed.torch == some.torches[0] else None)
            among = some.without(torch for torch in some.torches if key(torch) > key(allowed.torch))

    def _with_wheels(
        self, plan: BuildPlan, among: Candidates, more: Sequence[str]
    ) -> tuple[Candidates, Found, str | None]:
        """Return the candidates from the newest one on for which known pages have the packages' wheels.

        Also where these are, and why newer candidates are left out. All candidates if no page has them for any.
        """
        target = Target(platform=plan.resolution.platform, glibc=self.glibc, python=plan.resolution.python)
        missing: dict[str, None] = {}
        for number, build in enumerate(among.builds):
            found = self.pages.found(plan, image_of(build), target, self.indexes, more=more)
            if not found.missing:
                newer = [other.torch for other in among.builds[:number]]
                why = f"newest with a prebuilt wheel of {' and '.join(missing)}" if missing else None
                where = f" (on {', '.join(found.links)})" if missing and found.links else ""
                return among.without(newer) if newer else among, found, f"{why}{where}" if why else None
            missing |= dict.fromkeys(found.missing)
        return among, NOTHING_FOUND, None

    def _known(self, plan: BuildPlan, among: Candidates, found: Found) -> Allowed:
        """Return the newest torch that packages allow and that the facts have."""
        limit = len(among.others) + _UNKNOWN
        allowed = self._once(plan, among, found)
        while allowed.torch not in among.torches and len(among.others) < limit:
            among = among.without([allowed.torch])
            allowed = self._once(plan, among, found)
        if allowed.torch not in among.torches:
            raise ConflictError(f"the compatibility data do not have torch {allowed.torch}, which the packages require")
        return allowed

    def _once(self, plan: BuildPlan, among: Candidates, found: Found) -> Allowed:
        if plan.resolution.source not in CONDA_SOURCES:
            specs = request.conda_specs(plan)
            return together.solve(
                lambda more: self._conda(plan, (*specs, *more)),
                lambda packages: self._wheels(plan, among, packages, found),
            )[1]
        if plan.pip:
            # conda's solver does not know the requirements of wheels, so they limit its candidates.
            newest = self._wheels(plan, among, (), found).torch
            among = among.without(torch for torch in among.torches if key(torch) > key(newest))
        packages = self._conda(plan, _relaxed(request.conda_specs(plan), among))
        versions = stubs.of_conda(packages)
        return Allowed(torch=versions[_TORCH], versions=versions)

    def _conda(self, plan: BuildPlan, specs: Sequence[str]) -> tuple[CondaPackage, ...]:
        if not specs:
            return ()
        return conda.solve(plan, specs, request.virtual_packages(plan, self.glibc), self.indexes, as_of=self.as_of)

    def _wheels(self, plan: BuildPlan, among: Candidates, packages: Sequence[CondaPackage], found: Found) -> Allowed:
        text = self._compiled(plan, (*plan.pip, _TORCH), bounds(among), packages, among=among, found=found)
        versions = versions_of(text)
        return Allowed(torch=versions[_TORCH].partition("+")[0], versions=versions)

    def _compiled(
        self,
        plan: BuildPlan,
        wanted: Sequence[str],
        more: Sequence[str],
        packages: Sequence[CondaPackage],
        *,
        among: Candidates,
        found: Found,
        cached_only: bool = False,
    ) -> str:
        python = next((package.version for package in packages if package.name == "python"), plan.resolution.python)
        target = Target(platform=plan.resolution.platform, glibc=self.glibc, python=python)
        # The wheels of PyTorch's own index and of conda have no page on the Python index; the facts have the versions.
        elsewhere = plan.resolution.source != "pypi"
        own = [f"{build.torch}{build.local_version or '+conda'}" for build in among.builds] if elsewhere else []
        # Of wheels for several torches, CUDAs and ABIs, those for the newest candidate.
        ranks = ranks_of(target.platform, target.glibc, target.python)
        excluded = variants.constraints(found.files, image_of(among.builds[0]), ranks)
        limits = uv.Limits(
            chosen=stubs.of_conda(packages),
            constraints=(*plan.constraints, *more, *excluded),
            offered={_TORCH: own},
            without=[source_spec.parse(text).name for text in plan.allow_source],
        )
        index = found.with_lists(python_index(plan, self.indexes))
        return uv.compile_wheels(wanted, target, limits, index, as_of=self.as_of, cached_only=cached_only)[0]

    def newest_releases(self, plan: BuildPlan, names: Collection[str]) -> dict[str, str]:
        """Return the newest release of the plan's requirements with these names, as `held_back.newest_releases`."""
        target = Target(platform=plan.resolution.platform, glibc=self.glibc, python=plan.resolution.python)
        return held_back.newest_releases(plan, target, self.indexes, names, as_of=self.as_of)

    def limiting(self, plan: BuildPlan, among: Candidates, allowed: Allowed) -> str | None:
        """Return which package does not allow the newest candidate: `xformers 0.0.33 requires torch==2.9.0`.

        None if the solver names none. Sends no request: it solves again with what `newest` read.
        """
        if plan.resolution.source in CONDA_SOURCES:
            return None
        # Without the local version, which is that of a wheel for the allowed torch.
        versions = {name: version.partition("+")[0] for name, version in allowed.versions.items()}
        pins = [f"{name}=={versions[name]}" for name in map(_name, plan.pip) if name in versions]
        some, found, _ = self._with_wheels(plan, among, ())
        pins += [f"torch=={some.torches[0]}"]
        try:
            self._compiled(plan, (*plan.pip, _TORCH), pins, (), among=some, found=found, cached_only=True)
        except EnvkitError as error:
            match = _DEPENDS.search(" ".join((error.message, *error.details)))
            version = allowed.versions.get(canonicalize_name(match["name"])) if match else None
            return f"{match['name']} {version} requires torch{match['range']}" if match and version else None
        return None


def bounds(among: Candidates) -> list[str]:
    """Return constraints on torch that allow the candidates and no other version that is known."""
    low, high = among.torches[-1], among.torches[0]
    others = {torch for torch in among.others if key(low) < key(torch) < key(high)}
    return [f"torch>={low}", f"torch<={high}", *(f"torch!={torch}" for torch in sorted(others, key=key))]


def _relaxed(specs: Sequence[str], among: Candidates) -> tuple[str, ...]:
    """Return conda specs with the pins of one torch replaced by those of all candidates."""
    versions = ",".join(text.removeprefix(_TORCH) for text in bounds(among))
    cudas = sorted({build.cuda for build in among.builds if build.cuda}, key=key)
    relaxed = []
    for spec in specs:
        torch = _PYTORCH.fullmatch(spec)
        if torch is not None:
            relaxed.append(f"pytorch[version='{versions}',build='{torch['build']}']")
        elif spec.startswith("cuda-version="):
            relaxed.append(f"cuda-version >={cudas[0]},<={cudas[-1]}")
        elif not spec.startswith(("torchvision=", "torchaudio=", "pytorch-cuda=")):
            relaxed.append(spec)
    return tuple(relaxed)


def _name(spec: str) -> str:
    return canonicalize_name(Requirement(spec).name)
