"""Choose among wheels of one version that were built for several torches, CUDAs and C++ ABIs. Pure.

Solvers compare local versions as text, so of `2.1.2+pt25cu124` and `2.1.2+pt26cu124` they take the later text, not the
one for the torch of the image. What must not be chosen becomes a constraint: `torch-scatter!=2.1.2+pt25cu124`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envkit.lock import abi
from envkit.plan.requirements import FAMILY


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What the wheels have to fit."""

    torch: str  # '2.6.0'
    cuda: str | None  # '12.4'; None = a CPU build
    cxx11_abi: str | None  # of that torch: 'true' | 'false'; None = unknown


def constraints(files: Iterable[str], image: Image, ranks: Mapping[Tag, int]) -> list[str]:
    """Return constraints that exclude the wheels that do not fit an image, and those for which it has a better one.

    Args:
        files: names of wheels; other names are ignored.
        image: what they have to fit.
        ranks: the tags that the interpreter can install.
    """
    rows: dict[tuple[str, str], set[tuple[Version, bool]]] = {}
    for file in files:
        try:
            name, version, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        if version.local and name not in FAMILY:
            rows.setdefault((name, version.public), set()).add((version, any(tag in ranks for tag in tags)))
    excluded: dict[str, list[Version]] = {}
    for (package, _), found in rows.items():
        excluded.setdefault(package, []).extend(_excluded(found, image))
    return [
        f"{package}{','.join(f'!={version}' for version in sorted(versions))}"
        for package, versions in sorted(excluded.items())
        if versions
    ]


def _excluded(found: Collection[tuple[Version, bool]], image: Image) -> set[Version]:
    scores = {version: _score(str(version), image) for version, _ in found}
    usable = [score for version, compatible in found if compatible and (score := scores[version]) is not None]
    best = max(usable, default=0)
    return {version for version, score in scores.items() if score is None or score < best}


def _score(version: str, image: Image) -> int | None:
    """Return how well the version of a wheel fits; None if it does not, 0 if it says nothing."""
    claim = abi.claim_of(version) or abi.claim_of_cuda(version)
    if claim is None:
        return 0
    if claim.torch is not None and not abi.fits(version, image.torch, image.cuda):
        return None
    if claim.cuda is not None and (image.cuda is None or image.cuda.partition(".")[0] != claim.cuda):
        return None
    if claim.cxx11_abi is not None and image.cxx11_abi is not None and claim.cxx11_abi != image.cxx11_abi:
        return None
    exact = image.cuda is not None and f"cu{image.cuda.replace('.', '')}" in version.partition("+")[2].lower()
    return 3 if exact else 2 if claim.cuda else 1
