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
    assert finding.message == "500 x 375: pillow decodes an image to pixels that are off by 61 levels on average"
    assert said("C21.small", {key: value for key, value in JPEG.items() if key != "mean_error"}) == (PASS, None)


def test_a_pillow_without_turbo_warns() -> None:
    finding = found("C21.small", {**JPEG, "turbo": False}, noise=CLEAN)
    assert (finding.verdict, finding.reason_code, finding.rule["type"]) == (WARN, "JPEG_WITHOUT_TURBO", "equals")
