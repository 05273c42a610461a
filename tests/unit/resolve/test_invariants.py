"""What holds for every row and every answer, against the shipped facts and the index's own file lists."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.cover.cover import cover
from envkit.cover.hosts import HostClass
from envkit.facts.load import load
from envkit.facts.model import Build, Cudnn, Facts, Gpu
from envkit.ground.platforms import PLATFORMS
from envkit.ground.versions import key, parse_constraint
from envkit.resolve.gpus import Card
from envkit.resolve.index import WHEEL_SOURCES, index, unsure
from envkit.resolve.model import Request, Resolution
from envkit.resolve.resolver import resolve
from envkit.resolve.rules import Sieve, code, fits
from envkit.resolve.wanted import Wanted
from tests.support.index_files import table


@cache
def known() -> Facts:
    return load()


def lowest(row: Cudnn) -> tuple[int, ...]:
    return min(key(text.rstrip("+")) for text in row.capabilities)


def covered(row: Cudnn, capability: str) -> bool:
    """Whether a row lists code for a capability: `7.5+`, or its major with an equal or lower minor."""
    want = (*key(capability), 0)[:2]
    for text in row.capabilities:
        have = (*key(text.rstrip("+")), 0)[:2]
        if (text.endswith("+") and have <= want) or (have[0] == want[0] and have[1] <= want[1]):
            return True
    return False


def cudnn_rows(build: Build) -> list[Cudnn]:
    """The rows of the newest cuDNN release with rows that is not newer than a build's, for its CUDA major."""
    major = (build.cuda or "").partition(".")[0]
    if build.cudnn is None:
        return []
    rows = [row for row in known().cudnns if row.cuda_major == major and key(row.cudnn) <= key(build.cudnn)]
    return [row for row in rows if row.cudnn == max((one.cudnn for one in rows), key=key)]


@pytest.mark.parametrize("major", ["10", "11", "12", "13"])
def test_the_lowest_capability_of_cudnn_never_falls(major: str) -> None:
    floors: dict[str, tuple[int, ...]] = {}
    for row in known().cudnns:
        if row.cuda_major == major and row.capabilities:
            floors[row.cudnn] = min(floors.get(row.cudnn, lowest(row)), lowest(row))
    ordered = sorted(floors.items(), key=lambda one: key(one[0]))
    assert len(ordered) > 1
    for (before, floor), (name, later) in pairwise(ordered):
        assert later >= floor, f"cuDNN {name} for CUDA {major} runs on {later}, and {before} did not"


def test_a_build_with_code_for_a_gpu_in_torch_and_cudnn_is_accepted() -> None:
    rows = index(known())
    sieve = Sieve(Wanted(), rows)
    pairs = 0
    for build in known().builds:
        for gpu in known().gpus:
            listed = cudnn_rows(build)
            if code(build, gpu) != "cubin" or not any(covered(row, gpu.capability) for row in listed):
                continue
            pairs += 1
            assert sieve.runs_on(build, Card(gpu.capability, gpu)), (build.torch, build.cuda, gpu.capability)
    assert pairs > 1000


def test_no_wheel_is_inferred_for_a_cuda_that_had_ended() -> None:
    """Such as torch 2.15 for CUDA 12.6, which was concluded from a nightly build and never released."""
    for build in known().builds:
        if build.source not in WHEEL_SOURCES or build.cuda is None or not unsure(build) or not build.advertised:
            continue
        later = [row for row in known().builds if row.source == build.source and key(row.torch) > key(build.torch)]
        assert not later or any(row.cuda == build.cuda for row in later), (build.torch, build.cuda)
    assert not [row for row in known().builds if (row.torch, row.cuda) == ("2.15.0", "12.6")]


def test_no_wheel_of_cuda_13_claims_ptx_from_torch_2_11_on() -> None:
    wheels = [row for row in known().builds if row.source in WHEEL_SOURCES and (row.cuda or "").startswith("13.")]
    late = [row for row in wheels if key(row.torch) >= key("2.11")]
    assert len(late) > 20
    assert not [row for row in late if row.ptx]


def test_the_facts_have_the_pythons_of_the_index() -> None:
    files = table()
    for row in known().builds:
        if row.source == "pypi":
            assert list(row.pythons or ()) == files["torch"][row.torch][row.platform], (row.torch, row.platform)


def questions() -> Iterator[tuple[str, str, str]]:
    """Every (torch, Python, platform) of the index that the facts have."""
    for torch, platforms in table()["torch"].items():
        if torch in known().releases:
            for platform, pythons in platforms.items():
                yield from ((torch, python, platform) for python in pythons)


def pages_of(found: Resolution, name: str) -> tuple[str, ...]:
    """The Pythons of the very file that an answer pins, from the rows of the facts."""
    page = "cpu" if found.cuda is None else f"cu{found.cuda.replace('.', '')}"
    return next(
        row.pythons
        for row in known().companions
        if (row.package, row.platform, row.pinned) == (name, found.platform, found.files[name])
        and row.index in (page, "root")
    )


@pytest.mark.parametrize("source", ["pypi", "auto"])
def test_no_answer_names_a_companion_without_a_wheel(source: str) -> None:
    files, asked, wrong = table(), 0, []
    for torch, python, platform in questions():
        request = Request(
            torch=parse_constraint(f"=={torch}", "--torch"),
            python=parse_constraint(f"=={python}", "--python"),
            platform=platform,
            source=source,
            cpu=source == "pypi" and not any(
                row.cuda for row in known().builds if (row.torch, row.platform, row.source) == (torch, platform, "pypi")
            ),
        )  # fmt: skip
        if source == "auto" and platform != PLATFORMS[0]:
            continue
        found = resolve(request, known())
        asked += 1
        assert found.python == python
        assert found.pythons is not None
        for name in ("torchvision", "torchaudio"):
            version = getattr(found, name)
            if version is None:
                continue
            have = files[name].get(version, {}).get(platform, [])
            if found.source == "pytorch":  # which has files for more Pythons than the Python index
                have = list(pages_of(found, name))
            wrong += [
                (torch, other, platform, name, version) for other in (python, *found.pythons) if other not in have
            ]
    assert wrong == []
    assert asked > 150


# --- an inferred row may warn: it refuses nothing and forces no image in cover --------------------------------------


def doubted(facts: Facts, seed: int) -> Facts:
    """The facts with some rows marked inferred, chosen by the bits of a number."""

    def hit(place: int) -> bool:
        return bool(seed >> place % 60 & 1)

    fields = ("first_cuda", "last_cuda", "min_driver_branch", "last_driver_branch")
    return replace(
        facts,
        cudnns=tuple(replace(row, confidence="inferred") if hit(n) else row for n, row in enumerate(facts.cudnns)),
        gpus=tuple(replace(row, inferred=fields) if hit(n) else row for n, row in enumerate(facts.gpus)),
        toolkits=tuple(replace(row, confidence="inferred") if hit(n) else row for n, row in enumerate(facts.toolkits)),
    )  # fmt: skip


def harmless(facts: Facts) -> Facts:
    """The facts without what inferred rows could refuse."""

    def gpu(row: Gpu) -> Gpu:
        nothing: dict[str, Any] = {
            "first_cuda": "0",
            "last_cuda": None,
            "min_driver_branch": None,
            "last_driver_branch": None,
        }
        return replace(row, **{name: nothing[name] for name in row.inferred if name in nothing})

    return replace(
        facts,
        gpus=tuple(gpu(row) for row in facts.gpus),
        cudnns=tuple(row for row in facts.cudnns if row.confidence is None),
    )  # fmt: skip


def accepted(facts: Facts, driver: str) -> set[tuple[object, ...]]:
    """Every (build, GPU) that the rules accept on a driver."""
    rows = index(facts)
    found: set[tuple[object, ...]] = set()
    for gpu in facts.gpus:
        sieve = Sieve(Wanted(driver=driver, cards=(Card(gpu.capability, gpu),)), rows)
        found |= {
            (build.torch, build.cuda, build.source, build.platform, gpu.capability)
            for build in facts.builds
            if fits(build, sieve)
        }
    return found


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**60 - 1), st.sampled_from(["450.80.02", "535.104.05", "570.26", "595.45.04"]))
def test_an_inferred_row_refuses_nothing(seed: int, driver: str) -> None:
    facts = doubted(known(), seed)
    assert accepted(facts, driver) == accepted(harmless(facts), driver)
    assert accepted(facts, driver) >= accepted(known(), driver)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**60 - 1))
def test_an_inferred_row_forces_no_image(seed: int) -> None:
    machines = (("7.0", "535.104.05"), ("8.0", "550.54.15"), ("9.0", "570.26"), ("12.0", "580.95.05"))

    def images(facts: Facts) -> int:
        cards = {gpu.capability: Card(gpu.capability, gpu) for gpu in facts.gpus}
        classes = tuple(
            HostClass(cards=(cards[name],), driver=driver, platform=PLATFORMS[0], hosts=(name,), count=1)
            for name, driver in machines
        )
        found = cover(Request(), classes, facts)
        assert not found.unserved
        return len(found.images)

    assert images(doubted(known(), seed)) <= images(known())
