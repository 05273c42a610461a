"""The layers of wheels have the bytes that they always had: every cache and every registry knows them by digest."""

from pathlib import Path

from tests.support.small_images import Digests, digests


def test_an_image_of_wheels_has_the_digest_that_it_always_had(tmp_path: Path) -> None:
    assert digests(tmp_path / "image", conda=False, with_wheels=True) == Digests(
        manifest="sha256:a892669323fd201f190d1e29de14325485ee56a16cde410687e13ab29d41e9f0",
        id="sha256:e17cb4a86b0b208993f76c68a0efe1f0a50548e417ae07fd0c16b3576d3c02dd",
    )
