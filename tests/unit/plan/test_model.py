from dataclasses import replace

from tests.support.plans import shipped_plan


def test_other_words_for_the_same_choice_are_the_same_plan() -> None:
    plan = shipped_plan("cu118")
    reworded = replace(plan.resolution, reasons={"torch": "because"}, warnings=("mind",), rejected_count=7, sources=())
    assert replace(plan, resolution=reworded, facts_digest="0" * 64).digest == plan.digest


def test_whatever_decides_the_image_changes_the_identity() -> None:
    plan = shipped_plan("cu118")
    others = [
        replace(plan, resolution=replace(plan.resolution, torch="2.7.0")),
        replace(plan, env=(*plan.env, ("A", "1"))),
        replace(plan, pip=(*plan.pip, "einops")),
        replace(plan, user="1001:0"),
        replace(plan, base="docker.io/library/debian:trixie-slim"),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == len(others) + 1


def test_equal_plans_have_equal_bytes() -> None:
    assert shipped_plan("default").canonical() == shipped_plan("default").canonical()
