"""The layers of conda packages have the bytes that they always had. No engine is needed, but py-rattler's process."""

from pathlib import Path

import pytest

from tests.support.small_images import RATTLER, ZLIB, Digests, digests, rattler_here, zlib_here

# py-rattler writes the records in conda-meta and the launchers, so another version of it has other digests.
pytestmark = pytest.mark.skipif(rattler_here() != RATTLER, reason=f"the digests are those of py-rattler {RATTLER}")


def same(found: Digests, known: Digests) -> bool:
    """Compare; what another zlib than that of the known digests compresses is compared by the tars alone."""
    return found == known if zlib_here() == ZLIB else found.id == known.id


def test_an_image_of_conda_packages_has_the_digest_that_it_always_had(tmp_path: Path) -> None:
    found = digests(tmp_path / "image", conda=True, with_wheels=False)
    known = Digests(
        manifest="sha256:f0d9f83bafab517e5871fd2541aee23af805f57a32e24b4db3ebad95659caab7",
        id="sha256:e1c12546e56d01e102bdd484cc338e8c967ae3879a0a7a6463424d2e03176c00",
    )
    assert same(found, known), found


def test_an_image_of_conda_packages_and_wheels_has_the_digest_that_it_always_had(tmp_path: Path) -> None:
    found = digests(tmp_path / "image", conda=True, with_wheels=True)
    known = Digests(
        manifest="sha256:9a44be4089df01f519b1260c511606059bab48887737b95b83139a30e64b5912",
        id="sha256:0c456f627b2d806649aa16a81e2caa3d7ff18d31b2ab5dd6a235b0068800e6b9",
    )
    assert same(found, known), found
