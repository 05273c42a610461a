"""Documents of images, whoever wrote them."""

from __future__ import annotations

import pytest

from envkit.ground import platforms
from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import document, spec

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"[" * 100_000, b"3"])
def test_what_is_no_object_is_refused_with_a_next_step(data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"^it is not ") as caught:
        document.parse_json(data, "it", hint="ask again")
    assert caught.value.hint == "ask again"


@pytest.mark.parametrize(
    "tree",
    [
        [],
        {"digest": "sha256:../../etc/passwd", "size": 1},
        {"digest": DIGEST},
        {"digest": DIGEST, "size": -1},
        {"digest": DIGEST, "size": True},
        {"digest": DIGEST, "size": "1"},
    ],
)
def test_a_descriptor_that_names_nothing_is_refused(tree: object) -> None:
    with pytest.raises(IntegrityError):
        document.descriptor(tree, "the manifest")


def row(platform: str, *, kind: str = spec.MANIFEST, digest: str = DIGEST) -> document.Row:
    return document.Row(descriptor=spec.Descriptor(media_type=kind, digest=digest, size=1), name="", platform=platform)


HERE, OTHER = row(platforms.here(), digest="sha256:" + "b" * 64), row("linux/other")


def test_of_an_index_the_image_for_the_platform_is_meant() -> None:
    attached = row("unknown/unknown")
    assert document.of_platform([OTHER, attached, HERE], "it") == HERE
    assert document.of_platform([OTHER], "it") == OTHER  # the only one, whatever it is for
    arm = row("linux/arm64/v8")
    assert document.of_platform([row("linux/arm64/v9"), arm], "it", "linux/arm64") == arm
    with pytest.raises(EngineError) as caught:
        document.of_platform([OTHER], "it", "linux/amd64")  # asked for by name
    assert caught.value.message == "it has no image for linux/amd64"
    assert caught.value.hint == "it has: linux/other"


def test_the_history_tells_of_layers_only_where_it_tells_of_each() -> None:
    told = {"history": [{"created_by": "one"}, {"created_by": "ENV", "empty_layer": True}, {}]}
    assert document.history(told, 2) == ("one", "")
    assert document.history(told, 3) == ("", "", "")
