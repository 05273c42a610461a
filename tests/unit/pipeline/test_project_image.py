"""Which names are projects, and what makes an image another one. That it is built and run: tests/engines."""

from pathlib import Path

import pytest

from envkit.ground.state import LastBuilt, read_project, write_project
from envkit.lock.store import write_lock
from envkit.pipeline.project_image import _key, folder_of, is_project
from tests.support.locks import locked_conda
from tests.support.plans import shipped_plan

BUILT = LastBuilt(image="oci:there", tags=("a:1",), plan="p", engine="embedded", built="2026-11-27T00:00:00Z", id="i")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    for name in ("image.yaml", "requirements.txt", "Dockerfile", "train.tar", "program"):
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    "name", ["requirements.txt", "Dockerfile", ".", "./train", "train/", "..", "image.yaml", "./image.yaml", "/"]
)
def test_a_project_is_named_by_its_path(name: str) -> None:
    assert is_project(name)


@pytest.mark.parametrize(
    "name",
    [
        "train.tar",
        "./train.tar",
        "program",
        "train",
        "train:1",
        "./none",
        "none.yaml",
        "oci:train",
        "registry:host/train",
        "sha256:" + "0" * 64,
    ],
)
def test_an_image_is_not_taken_for_a_project(name: str) -> None:
    assert not is_project(name)


@pytest.mark.parametrize(("name", "folder"), [(".", "."), ("./train", "train"), ("train/image.yaml", "train")])
def test_the_folder_of_a_project(name: str, folder: str) -> None:
    Path("train/image.yaml").touch()
    assert folder_of(name) == Path(folder)


def test_a_lock_beside_the_project_and_its_contents_are_part_of_the_key() -> None:
    plan, file = shipped_plan("cpu"), Path("envkit.lock")
    keys = [_key(plan, file)]
    for lock in (locked_conda(plan), locked_conda(shipped_plan("cu126"))):
        write_lock(file, lock)
        keys.append(_key(plan, file))
    assert len({*keys, _key(shipped_plan("cu126"), file)}) == 4
    assert _key(plan, file) == keys[2]


def test_what_was_noted_is_read_and_damage_is_nothing(tmp_path: Path) -> None:
    write_project(tmp_path, "key", BUILT)
    assert read_project(tmp_path, "key") == BUILT
    assert read_project(tmp_path, "other") is None
    for text in ("", "{", "[]", '{"schema": "envkit.last/1", "id": 3}'):
        (tmp_path / "projects/key").write_text(text)
        assert read_project(tmp_path, "key") is None
