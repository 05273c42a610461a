"""Which images a runner that isolates weakly gets: what was built here, and what is asked for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.state import write_built
from envkit.image.name import ImageName, image_name
from envkit.run import remedies, runners
from envkit.run.model import STRONG, Isolation
from envkit.run.proot import ProotRunner
from envkit.run.runners import check_for_files, choose_for

ID = "sha256:" + "a" * 64
IMAGE = "oci:/images/train"


class Weak(ProotRunner):
    """A proot that works, whatever this machine has."""

    isolation = Isolation(level="weak", missing=("network",))

    def probe(self) -> str | None:
        return None

    def identify(self, image: ImageName) -> str:
        assert image.typed == IMAGE
        return ID


class Away:
    """A runner that does not work here."""

    isolation = STRONG

    def __init__(self, name: str) -> None:
        self.name = name

    def probe(self) -> str | None:
        return f"no {self.name} here"


class Heard:
    """A reporter that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A container in which only proot works."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(remedies, "hint", lambda *, building: f"building: {building}")

    def hold(*, proot: bool = True) -> None:
        def made(name: str, *_: Any, **__: Any) -> Any:
            return Weak() if name == "proot" and proot else Away(name)

        monkeypatch.setattr(runners, "make", made)

    hold()
    return hold


def recorded(folder: Path, ident: str, verdict: str) -> None:
    """Keep a record of an image."""
    (folder / "envkit" / "records").mkdir(parents=True)
    tree = {"subject": {"id": ident}, "summary": {"verdict": verdict}}
    (folder / "envkit" / "records" / "1.json").write_text(json.dumps(tree))


@pytest.mark.usefixtures("container")
def test_what_was_just_built_is_run() -> None:
    heard: Any = Heard()
    assert choose_for(image_name(IMAGE), "auto", heard, built=True)[0].name == "proot"
    assert heard.notes == [
        "runner: proot (bubblewrap: no bubblewrap here; podman: no podman here; docker: no docker here)"
    ]


@pytest.mark.usefixtures("container")
def test_what_was_built_here_is_run(tmp_path: Path) -> None:
    write_built(tmp_path / "envkit", (ID,))
    assert choose_for(image_name(IMAGE), "auto", Heard())[0].name == "proot"  # type: ignore[arg-type]


@pytest.mark.usefixtures("container")
@pytest.mark.parametrize("verdict", ["PASS", "WARN", "FAIL", "ERROR", "INCONCLUSIVE", "NOT_VERIFIED"])
def test_a_verification_makes_nothing_trusted(verdict: str, tmp_path: Path) -> None:
    recorded(tmp_path, ID, verdict)
    with pytest.raises(EnvironmentProblem, match="so oci:/images/train cannot be run"):
        choose_for(image_name(IMAGE), "auto", Heard())  # type: ignore[arg-type]


@pytest.mark.usefixtures("container")
def test_any_other_image_is_refused(tmp_path: Path) -> None:
    write_built(tmp_path / "envkit", ("sha256:" + "b" * 64,))
    with pytest.raises(EnvironmentProblem, match="so oci:/images/train cannot be run") as caught:
        choose_for(image_name(IMAGE), "auto", Heard())  # type: ignore[arg-type]
    assert caught.value.details[-1] == (
        "proot: works here, but isolates weakly, and this image was not built here (--runner proot uses it anyway)"
    )


@pytest.mark.usefixtures("container")
def test_asked_for_by_name_it_gets_one_warning() -> None:
    heard: Any = Heard()
    assert choose_for(image_name(IMAGE), "proot", heard)[0].name == "proot"
    assert heard.notes == [
        "warning: proot isolates weakly, and oci:/images/train was not built here",
        "runner: proot",
    ]


def test_a_place_where_nothing_runs_is_refused_before_there_is_an_image(container: Callable[..., None]) -> None:
    check_for_files("auto", building=True)
    container(proot=False)
    with pytest.raises(EnvironmentProblem, match="so a built image cannot be verified here") as caught:
        check_for_files("auto", building=True)
    assert caught.value.exit_code == 9
    assert caught.value.message.startswith("bubblewrap: no bubblewrap here")
    assert caught.value.details == ("podman: no podman here", "docker: no docker here", "proot: no proot here")
    assert caught.value.hint == "building: True"
