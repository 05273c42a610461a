import pytest

from envkit.engines.builder import check_tags, with_default_tag
from envkit.engines.model import BuildOptions
from envkit.ground.errors import UsageError
from tests.support.plans import shipped_plan


@pytest.mark.parametrize("tag", ["train", "train:1", "registry.example.com:5000/team/train:v1.2_x", "a__b/c-d:latest"])
def test_names_are_taken(tag: str) -> None:
    check_tags((tag,))


@pytest.mark.parametrize(
    "tag", ["Train", "", "a:b:c", "a b", "-x", "a@sha256:00", "a:" + "x" * 129, "train:", "/a", "a\n"]
)
def test_what_is_no_name_is_refused_before_the_build(tag: str) -> None:
    with pytest.raises(UsageError, match="is not an image's name"):
        check_tags((tag,))


def test_an_image_without_a_name_gets_one_that_says_what_it_is() -> None:
    plan = shipped_plan("cu126")
    (tag,) = with_default_tag(plan, BuildOptions()).tags
    assert tag == f"envkit/cu126:{plan.resolution.torch}-cu126"
    check_tags((tag,))
    assert with_default_tag(shipped_plan("cpu"), BuildOptions()).tags[0].endswith("-cpu")
    assert with_default_tag(plan, BuildOptions(tags=("mine",))).tags == ("mine",)
