from typing import Any

import pytest

from tests.support.verdicts import CLEAN, FAIL, PASS, WARN, found, said

JPEG = {
    "width": 500,
    "height": 375,
    "turbo": True,
    "decode_ms": {"pillow": 1.3, "simplejpeg": 0.9},
    "speed_up": {"pillow": 1.0, "simplejpeg": 1.44},
    "largest_difference": {"pillow": 0, "simplejpeg": 0},
    "mean_error": {"pillow": 6.1, "simplejpeg": 6.1},
    "decode_share": 0.7,
    "starved_share": 0.4,
}
READ = {"exact": True, "filesystem": "ext4", "direct": True, "bytes": 512 << 20, "gb_per_s": 1.04}
RANDOM = {"exact": True, "filesystem": "ext4", "direct": True, "reads_per_s": 8666.0, "median_ms": 0.05, "p99_ms": 1.6}


def test_a_faster_decoder_is_offered_where_it_pays() -> None:
    finding = found("C21.small", JPEG, noise=CLEAN)
    assert finding.verdict is PASS
    assert finding.advice == ("simplejpeg would decode 1.44 times as fast.",)
    assert finding.rule["gates"] is False


@pytest.mark.parametrize(
    "changed",
    [
        {"decode_share": 0.3},
        {"starved_share": 0.1},
        {"speed_up": {"pillow": 1.0, "simplejpeg": 1.1}},
        {"speed_up": {"pillow": 1.0}},
    ],
)
def test_none_is_offered_where_it_does_not(changed: dict[str, Any]) -> None:
    assert found("C21.small", {**JPEG, **changed}, noise=CLEAN).advice == ()


@pytest.mark.parametrize("difference", [66, None])
def test_decoders_that_disagree_are_named(difference: int | None) -> None:
    changed = {**JPEG, "largest_difference": {"pillow": 0, "opencv": difference}}
    finding = found("C21.small", changed, noise=CLEAN)
    assert (finding.verdict, finding.reason_code, finding.rule["gates"]) == (FAIL, "DECODERS_DISAGREE", False)
    assert "opencv" in finding.message


def test_a_decoder_that_gives_another_picture_is_named() -> None:
    finding = found("C21.small", {**JPEG, "mean_error": {"pillow": 61.0}}, noise=CLEAN)
    assert (finding.verdict, finding.reason_code, finding.rule["gates"]) == (FAIL, "PICTURE_WRONG", False)
    assert finding.message == "500 x 375: pillow decodes a picture to levels that are 61 off on average"
    assert said("C21.small", {key: value for key, value in JPEG.items() if key != "mean_error"}) == (PASS, None)


def test_a_pillow_without_turbo_warns() -> None:
    assert said("C21.small", {**JPEG, "turbo": False}, noise=CLEAN) == (WARN, "JPEG_WITHOUT_TURBO")


def test_storage_is_told_with_its_file_system() -> None:
    assert found("C22.image_read", READ).message == "512 MiB read in order: 1.04 GB/s (ext4)"
    written = {key: value for key, value in READ.items() if key != "direct"}
    assert found("C22.scratch_write", written).message == "512 MiB written and synchronised: 1.04 GB/s (ext4)"
    assert found("C22.image_random", RANDOM).message.startswith("4 KiB at random places: 8666 reads/s")


@pytest.mark.parametrize("part", ["image_read", "scratch_write"])
def test_bytes_that_come_back_changed_fail(part: str) -> None:
    finding = found(f"C22.{part}", {**READ, "exact": False, "direct": False})
    assert (finding.verdict, finding.reason_code, finding.rule["gates"]) == (FAIL, "BYTES_CHANGED", False)


@pytest.mark.parametrize(("part", "observed"), [("image_read", READ), ("image_random", RANDOM)])
def test_what_the_page_cache_may_have_answered_is_marked(part: str, observed: dict[str, Any]) -> None:
    assert said(f"C22.{part}", {**observed, "direct": False}) == (WARN, "PAGE_CACHE")
