"""Which runner is meant by a name."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, UsageError
from envkit.ground.paths import state_dir
from envkit.ground.progress import Silent
from envkit.ground.state import own_layout
from envkit.image.name import InLayout, image_name
from envkit.run import runners
from envkit.run.runners import choose_for, located


@pytest.mark.parametrize("image", ["train:1", "oci:folder", "registry:registry.example.com/train:1"])
def test_what_is_no_runner_is_refused_whatever_the_image(image: str) -> None:
    with pytest.raises(UsageError, match="'bubblewarp' is not a runner") as caught:
        choose_for(image_name(image), "bubblewarp", Silent())
    assert caught.value.hint == "use one of auto, docker, podman, bubblewrap, proot, host"


@pytest.mark.parametrize("name", ["auto", "docker", "host"])
def test_no_name_is_no_image(name: str) -> None:
    with pytest.raises(UsageError, match="the image name is empty"):
        choose_for(image_name(" "), name, Silent())


@pytest.mark.parametrize(
    ("image", "installed", "kind", "said", "hint"),
    [
        ("nosuch:1", (), EngineError, "not built here, not a file, and there is no engine", "envkit build -t nosuch:1"),
        ("nosuch:1", ("docker",), EnvironmentProblem, "no engine answers that could have it", "systemctl start docker"),
        ("nosuch.tar", (), EngineError, "there is no image 'nosuch.tar'", "docker-archive:nosuch.tar"),
        ("made.tar", ("docker",), UsageError, "is a path without a prefix", "docker-archive:made.tar"),
        ("folder", (), UsageError, "is a path without a prefix", "oci:folder"),
        ("registry.example.com/team/train:1", ("podman",), EnvironmentProblem, "there is no image 'registry.example",
         "registry:registry.example.com/team/train:1"),
        ("localhost:5000/a", (), EngineError, "there is no image 'localhost:5000/a'", "registry:localhost:5000/a"),
    ],
)  # fmt: skip
def test_a_name_that_exists_nowhere_is_that_and_no_missing_engine(
    *, image: str, installed: tuple[str, ...], kind: type[EnvkitError], said: str, hint: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.tar").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name in installed else None)
    monkeypatch.setattr(runners, "make", lambda *_, **__: SimpleNamespace(probe=lambda: "away"))
    with pytest.raises(kind, match=said) as caught:
        choose_for(image_name(image), "auto", Silent())
    assert str(caught.value.hint).startswith(hint)


@pytest.mark.parametrize(
    ("image", "runner", "found"),
    [
        ("train:1", "bubblewrap", True),
        ("train:1", "docker", False),  # its names are Docker's
        ("train:2", "auto", False),  # not built here
        ("registry:registry.example.com/train:1", "auto", False),
    ],
)
def test_a_name_is_that_of_an_image_of_the_embedded_engine_only_where_no_engine_is_meant(
    image: str, runner: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    layout = own_layout(state_dir(), "train:1")
    layout.mkdir(parents=True)
    (layout / "index.json").write_text("{}")
    assert located(image_name(image), runner) == (InLayout(path=layout) if found else image_name(image))
