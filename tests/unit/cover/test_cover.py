"""Covers of fleets by the shipped facts: what is promised of every answer, and answers in words."""

import random
import time
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.cover.candidates import fitting, request_for, sieve_for
from envkit.cover.cover import cover
from envkit.cover.hosts import HostClass
from envkit.cover.model import Cover
from envkit.ground.versions import key, parse_constraint
from envkit.plan.variables import read_requirement, require_cuda
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.index import index
from envkit.resolve.model import Request
from envkit.resolve.resolver import resolve
from tests.unit.cover.fleets import DRIVERS, GPUS, covered, facts, fleet

machines = st.tuples(
    st.sampled_from(GPUS) | st.sampled_from(("V100+T4", "K80+P100", "A100+H100", "T4+B200")),
    st.sampled_from(DRIVERS),
    st.sampled_from(("x86_64", "x86_64", "aarch64")),
)
fleets = st.lists(machines, min_size=1, max_size=6)


def exactly(request: Request, found: Cover, number: int) -> Request:
    """The request with the versions of one image of the answer."""
    own = found.images[number].resolution
    return replace(
        request,
        torch=parse_constraint(f"=={own.torch}", "torch"),
        cuda=parse_constraint(f"=={own.cuda}", "cuda"),
        python=parse_constraint(f"=={own.python}", "python"),
        source=own.source,
    )


@settings(max_examples=12, deadline=None)
@given(fleets)
def test_every_image_resolves_on_every_machine_it_is_said_to_serve(rows: list[tuple[str, str, str]]) -> None:
    classes = fleet(*rows)
    found = cover(Request(), classes, facts())
    known = index(facts())
    for number, image in enumerate(found.images):
        for row in image.serves:
            answer = resolve(request_for(exactly(Request(), found, number), row.hosts, known), facts())
            assert answer.torch == image.resolution.torch
            assert (answer.cuda, answer.index) == (image.resolution.cuda, image.resolution.index)
            assert answer.driver is not None
            assert answer.driver.mode == row.mode
            # What would run natively is what the resolver says for these machines alone.
            alone = resolve(request_for(Request(), row.hosts, known), facts())
            named = f"torch {alone.torch} with CUDA {alone.cuda} {alone.reasons['cuda']}"
            assert row.native is None or row.native in named
            assert row.mode == "minor-compatible" or row.native is None
    served = [row.hosts for image in found.images for row in image.serves]
    left_out = [one.hosts for one in found.unserved]
    assert sorted(one.title for one in [*served, *left_out]) == sorted(one.title for one in classes)


def test_an_inferred_branch_does_not_keep_an_image_from_starting() -> None:
    [image] = covered(("A10", "450.80.02")).images
    assert require_cuda(image.resolution) == "cuda>=11.8 driver>=450.80"


@settings(max_examples=12, deadline=None)
@given(fleets)
def test_no_image_asks_for_a_driver_that_one_of_its_machines_lacks(rows: list[tuple[str, str, str]]) -> None:
    for image in covered(*rows).images:
        alternatives = read_requirement(require_cuda(image.resolution)) or []
        for row in image.serves:
            assert row.mode == "native" or any(
                name == "driver" and key(row.hosts.driver) >= key(least) for [(name, _, least)] in alternatives
            )


def test_an_image_for_old_and_new_gpus_asks_for_the_older_driver() -> None:
    [image] = covered(("A100", "535.104.05"), ("B200", "580.65.06")).images
    assert image.resolution.gpus == ("8.0", "10.0")
    assert image.resolution.driver is not None
    assert image.resolution.driver.minimum == "525.60.13"


@settings(max_examples=12, deadline=None)
@given(fleets)
def test_no_smaller_set_of_builds_serves_the_same_machines(rows: list[tuple[str, str, str]]) -> None:
    classes = fleet(*rows)
    found = cover(Request(), classes, facts())
    known = index(facts())
    masks = {row.mask for row in fitting([sieve_for(Request(), one, known) for one in classes], known)}
    universe = 0
    for mask in masks:
        universe |= mask
    fewer = max(len(found.images) - 1, 0)
    assert not any(_joined(chosen) == universe for chosen in combinations(masks, fewer) if universe)


def _joined(masks: tuple[int, ...]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


@settings(max_examples=10, deadline=None)
@given(fleets)
def test_machines_that_nothing_serves_are_those_that_the_resolver_refuses(rows: list[tuple[str, str, str]]) -> None:
    known = index(facts())
    for one in covered(*rows).unserved:
        with pytest.raises(Unresolvable):
            resolve(request_for(Request(), one.hosts, known), facts())
        assert one.because


@settings(max_examples=8, deadline=None)
@given(fleets)
def test_every_saving_saves(rows: list[tuple[str, str, str]]) -> None:
    classes = fleet(*rows)
    found = cover(Request(), classes, facts())
    for saving in found.savings:
        changed = [one for one in classes if one not in saving.hosts]
        if saving.driver is not None:
            changed += [replace(one, driver=saving.driver) for one in saving.hosts]
        again = cover(Request(), tuple(changed), facts())
        assert len(again.images) == saving.images < len(found.images)
        assert len(again.unserved) <= len(found.unserved)


@settings(max_examples=8, deadline=None)
@given(fleets, st.randoms())
def test_the_order_of_the_machines_changes_nothing(rows: list[tuple[str, str, str]], chance: random.Random) -> None:
    other = list(rows)
    chance.shuffle(other)
    assert _heart(covered(*rows)) == _heart(covered(*other))


def _heart(found: Cover) -> list[tuple[str, list[str]]]:
    return [(image.name, [row.hosts.title for row in image.serves]) for image in found.images]


@given(st.sampled_from(GPUS), st.sampled_from(DRIVERS))
@settings(max_examples=12, deadline=None)
def test_one_machine_gets_what_the_resolver_gives_it(gpu: str, driver: str) -> None:
    known = index(facts())
    classes = fleet((gpu, driver))
    found = cover(Request(), classes, facts())
    try:
        answer = resolve(request_for(Request(), classes[0], known), facts())
    except Unresolvable:
        assert not found.images
        return
    own = found.images[0].resolution
    assert (own.torch, own.cuda, own.python, own.source) == (answer.torch, answer.cuda, answer.python, answer.source)


def every_class() -> tuple[HostClass, ...]:
    known = [(gpu, driver, arch) for gpu in GPUS for driver in DRIVERS for arch in ("x86_64", "aarch64")]
    chance = random.Random(1)  # a sample in which newer drivers save images
    mixed = [(f"{a}+{b}", driver, "x86_64") for a, b in combinations(GPUS, 2) for driver in DRIVERS[2:]]
    return fleet(*chance.sample([*known, *mixed], 64))


def test_sixty_four_kinds_of_machines_take_less_than_two_seconds() -> None:
    classes = every_class()
    assert len(classes) == 64
    facts()
    began = time.process_time()
    found = cover(Request(), classes, facts())
    assert time.process_time() - began < 2
    assert len(found.images) >= 3
    assert found.savings
    assert found.unserved


def test_v100_and_b200_need_two_images_and_the_reasons_name_the_architecture() -> None:
    found = covered(("V100", "580.65.06"), ("B200", "580.65.06"), torch="2.11")
    assert [image.name for image in found.images] == ["torch2.11.0-cu126", "torch2.11.0-cu130"]
    [old], [new] = (image.forced_by for image in found.images)
    assert (
        old.because == ("torch 2.11.0 for CUDA 12.8, 13.0: no code for V100 (sm_70)",)
        or "V100 (sm_70)" in old.because[0]
    )
    assert new.because == ("torch 2.11.0 for CUDA 12.6: no code for B200 (sm_100)",)


def test_an_old_driver_forces_an_image_and_a_newer_one_saves_it() -> None:
    found = covered(("B200", "580.65.06"), ("A100", "535.104.05"), torch=">=2.14")
    assert len(found.images) == 2
    [old] = [image for image in found.images if image.resolution.cuda == "12.6"]
    assert old.forced_by[0].hosts.title == "A100 (sm_80), driver 535.104.05"
    assert "needs driver 580 or newer; 535.104.05 is older" in old.forced_by[0].because[0]
    texts = [saving.text for saving in found.savings]
    assert texts == [
        "driver 580 or newer on h2 (A100 (sm_80), driver 535.104.05): 1 image would be enough",
        "without h2 (A100 (sm_80), driver 535.104.05): 1 image would be enough",
        "without h1 (B200 (sm_100), driver 580.65.06): 1 image would be enough",
    ]


def test_classes_that_share_a_fault_are_raised_together() -> None:
    found = covered(("B200", "580.65.06"), ("A100", "535.104.05"), ("T4", "535.104.05"), torch=">=2.14")
    joint = [one for one in found.savings if one.driver is not None]
    assert [len(one.hosts) for one in joint] == [2]


def test_what_a_machine_gives_up_is_told() -> None:
    found = covered(("K80", "470.82.01"), ("A100", "550.54.14"))
    assert len(found.images) == 1
    old, young = found.images[0].serves
    assert old.alone == found.images[0].resolution.torch
    assert young.alone != old.alone


def test_platforms_need_an_image_each_with_one_cuda_where_that_costs_nothing() -> None:
    found = covered(("H100", "580.65.06"), ("GH200", "580.65.06", "aarch64"))
    assert {image.resolution.platform for image in found.images} == {"linux-64", "linux-aarch64"}
    assert len({image.resolution.cuda for image in found.images}) == 1
    assert found.images[1].forced_by[0].because == ("no other image is for linux-aarch64",)
    assert found.images[1].name.endswith("-aarch64")


def test_a_gpu_that_its_driver_does_not_drive_is_named_as_that() -> None:
    found = covered(("K80", "550.54.14"), ("A100", "550.54.14"))
    assert [one.because[0] for one in found.unserved] == [
        "driver branch R470 is the last that supports K80 (sm_37); driver 550.54.14 is newer"
    ]
    assert len(found.images) == 1


def test_constraints_hold_for_every_image() -> None:
    found = covered(("V100", "550.54.14"), ("H100", "580.65.06"), torch="2.7", python="3.11")
    assert {(one.resolution.torch[:3], one.resolution.python) for one in found.images} == {("2.7", "3.11")}


def test_the_document_says_it_all() -> None:
    tree = covered(("V100", "580.65.06"), ("B200", "580.65.06"), ("K80", "610.43.02"), torch="2.11").to_json()
    assert tree["schema"] == "envkit.cover/1"
    assert (tree["classes"], tree["machines"]) == (3, 3)
    assert tree["unserved"][0]["gpus"] == [{"name": "K80", "capability": "3.7"}]
    assert tree["images"][0]["serves"][0]["mode"] == "native"
    assert {saving["change"] for saving in tree["savings"]} == {"remove"}
