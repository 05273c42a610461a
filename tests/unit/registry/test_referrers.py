import json

import pytest
from requests import Response

from envkit.ground.addresses import Reach
from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.image.name import parse_reference
from envkit.registry.referrers import Artifact, _index_rows, _next, _referrer, fallback_tag
from envkit.registry.retry import Policy
from envkit.registry.transport import Answer

SUBJECT = spec.Descriptor(media_type=spec.MANIFEST, digest=f"sha256:{'a' * 64}", size=700)
IMAGE = parse_reference(f"registry.example.com/team/train@sha256:{'a' * 64}")
ROW = {"mediaType": spec.MANIFEST, "digest": f"sha256:{'b' * 64}", "size": 5}


def answer(link: str | None) -> Answer:
    """An answer of a public registry with a header `Link`."""
    headers = {} if link is None else {"link": link}
    return Answer(200, headers, "https://registry.example.com/v2/a", Response(), Policy(), Reach.PUBLIC)


def test_an_artifacts_manifest_names_its_subject_and_is_always_the_same() -> None:
    made = Artifact(kind="application/vnd.example+json", media_type="text/plain", data=b"words")
    assert made.manifest(SUBJECT) == made.manifest(SUBJECT)
    tree = json.loads(made.manifest(SUBJECT))
    assert (tree["artifactType"], tree["subject"]) == ("application/vnd.example+json", SUBJECT.to_json())
    assert tree["layers"] == [{"mediaType": "text/plain", "digest": spec.sha256(b"words"), "size": 5}]
    assert "annotations" not in tree


def test_the_tag_that_stands_for_a_list() -> None:
    assert fallback_tag(SUBJECT.digest) == f"sha256-{'a' * 64}"


@pytest.mark.parametrize(
    ("link", "page"),
    [
        (None, None),
        ('</v2/a/referrers/x?n=2>; rel="next"', "https://registry.example.com/v2/a/referrers/x?n=2"),
        ("<?last=1>; rel=next", "https://registry.example.com/v2/a?last=1"),
        ('</v2/a>; rel="first"', None),
    ],
)
def test_the_next_page(link: str | None, page: str | None) -> None:
    assert _next(answer(link)) == page


def test_a_next_page_inside_this_network_is_not_asked_for() -> None:
    with pytest.raises(EngineError, match=r"points to .* which is an address in a private network"):
        _next(answer('<https://10.0.0.1/v2/a>; rel="next"'))


def test_an_entry_of_the_list() -> None:
    found = _referrer(ROW | {"artifactType": "x", "annotations": {"a": "b"}}, IMAGE)
    assert (found.digest, found.size, found.kind, found.annotations) == (ROW["digest"], 5, "x", {"a": "b"})
    assert _referrer(ROW, IMAGE).kind is None


@pytest.mark.parametrize(
    "row",
    [
        None,
        {},
        ROW | {"size": -1},
        ROW | {"size": True},
        ROW | {"digest": f"sha256:{'B' * 64}"},
        ROW | {"digest": "sha512:0"},
        ROW | {"digest": "b" * 64},
    ],
)
def test_an_entry_that_names_nothing(row: object) -> None:
    with pytest.raises(IntegrityError, match="is not a valid descriptor"):
        _referrer(row, IMAGE)


def test_a_list_that_is_none() -> None:
    with pytest.raises(IntegrityError, match="the list of attached documents is damaged"):
        _index_rows({"manifests": 3}, "it")
