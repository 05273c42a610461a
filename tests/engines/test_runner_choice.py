import pytest

from envkit.ground.engine_names import RUNNERS
from envkit.ground.errors import UsageError
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.run.runners import choose, make


@pytest.mark.parametrize("name", ["docker", "podman", "host"])
def test_runners_have_their_names(name: str) -> None:
    assert make(name).name == name
    assert choose(name, Silent(), image=image_name("any")).name == name


@pytest.mark.parametrize(("engine", "runner"), [("docker", "docker"), ("buildkit", "docker"), ("podman", "podman")])
def test_auto_runs_where_the_image_lies(engine: str, runner: str) -> None:
    assert choose("auto", Silent(), image=image_name("any"), engine=engine).name == runner


def test_an_unknown_runner_is_refused() -> None:
    with pytest.raises(UsageError, match="'kvm' is not a runner") as caught:
        make("kvm")
    assert caught.value.hint == f"use one of auto, {', '.join(RUNNERS)}"
