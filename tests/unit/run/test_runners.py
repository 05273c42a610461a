"""Which runner is meant by a name."""

import pytest

from envkit.ground.errors import UsageError
from envkit.ground.progress import Silent
from envkit.run.runners import choose_for


@pytest.mark.parametrize("image", ["train:1", "oci:folder", "registry:registry.example.com/train:1"])
def test_what_is_no_runner_is_refused_whatever_the_image(image: str) -> None:
    with pytest.raises(UsageError, match="'bubblewarp' is not a runner") as caught:
        choose_for(image, "bubblewarp", Silent())
    assert caught.value.hint == "use one of auto, docker, podman, bubblewrap, proot, host"


@pytest.mark.parametrize("name", ["auto", "docker", "host"])
def test_no_name_is_no_image(name: str) -> None:
    with pytest.raises(UsageError, match="the image name is empty"):
        choose_for(" ", name, Silent())
