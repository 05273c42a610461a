from __future__ import annotations

import pytest

from envkit.checks.c21_jpeg.show import decodings
from tests.support.records import check, gpu_record
from tests.support.shown import named, of


def test_decoders_are_read() -> None:
    checks = gpu_record()["checks"]
    small, large = decodings(of(checks, "C21"))
    assert dict(small.rates)["simplejpeg"] == pytest.approx(1e3 / 1.3)
    assert (large.width, large.height, large.differences["torchvision"]) == (1920, 1080, 1)


def test_a_decoder_that_failed_is_not_shown() -> None:
    tree = gpu_record()
    for size in ("small", "large"):
        check(tree, f"C21.{size}")["observed"]["decode_ms"].pop("torchvision")
    assert [row[0] for row in named(tree, "JPEG").rows] == ["pillow", "simplejpeg"]


def test_decoders_come_with_what_is_missing_and_what_would_pay() -> None:
    found = named(gpu_record(), "JPEG")
    share, missing = found.notes
    assert share.startswith("Decoding with Pillow takes 66% at 500 x 375, 95% at 1920 x 1080 of preparing an image")
    assert missing == "Not installed: opencv."
    assert found.advice == (
        "500 x 375: simplejpeg would decode 1.62 times as fast.",
        "1920 x 1080: simplejpeg would decode 1.69 times as fast.",
    )


def test_a_decoder_of_the_gpu_says_how_many_pictures_it_takes_at_once() -> None:
    tree = gpu_record()
    for size in ("small", "large"):
        check(tree, f"C21.{size}")["observed"]["batches"] = {"dali": 1, "dali_gpu": 32}
    assert named(tree, "JPEG").notes[1] == "dali_gpu decodes batches of 32 on the GPU."
