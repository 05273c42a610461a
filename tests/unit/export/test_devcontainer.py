from typing import Any

import pytest

from tests.support.exports import exported, main_file, read_jsonc

# Of the properties that the specification names, those that are written here; it allows no others.
TYPES: dict[str, Any] = {
    "name": str,
    "image": str,
    "build": dict,
    "hostRequirements": dict,
    "runArgs": list,
    "init": bool,
    "remoteUser": str,
    "forwardPorts": list,
    "customizations": dict,
}


def container(*images: str, **fields: Any) -> Any:
    return read_jsonc(main_file(exported("devcontainer", images or ("cu126",), **fields)))


@pytest.mark.parametrize("fields", [{}, {"registry": None}], ids=["image", "build"])
@pytest.mark.parametrize("image", ["cpu", "cu126", "jupyter"])
def test_only_what_the_specification_names_is_written(image: str, fields: dict[str, Any]) -> None:
    tree = container(image, **fields)
    for name, value in tree.items():
        assert isinstance(value, TYPES[name]), name
    assert ("image" in tree) != ("build" in tree)
    assert all(isinstance(word, str) for word in tree["runArgs"])
    assert set(tree.get("build", {})) <= {"dockerfile", "context", "options"}
    assert tree.get("hostRequirements", {"gpu": True}) == {"gpu": True}


def test_an_image_of_a_registry_needs_no_context() -> None:
    files = exported("devcontainer", ("cu126",))
    assert list(files) == [".devcontainer/devcontainer.json"]
    assert container()["image"] == "registry.example.com/team/train:cu126"


def test_without_a_registry_the_context_lies_beside_it() -> None:
    files = exported("devcontainer", ("cu126",), registry=None)
    build = container(registry=None)["build"]
    assert build == {"dockerfile": "Dockerfile", "context": ".", "options": ["--platform=linux/amd64"]}
    assert ".devcontainer/Dockerfile" in files
    assert ".devcontainer/passwd" in files


def test_several_images_have_folders_of_their_own() -> None:
    files = exported("devcontainer", ("cpu", "cu126"))
    assert list(files) == [".devcontainer/cpu/devcontainer.json", ".devcontainer/cu126/devcontainer.json"]


def test_gpu_and_shared_memory_are_the_plans() -> None:
    assert container("cu126")["runArgs"] == ["--gpus", "all", "--shm-size=1024m", "--platform=linux/amd64"]
    assert container("cpu")["runArgs"] == ["--shm-size=1024m", "--platform=linux/amd64"]
    assert "hostRequirements" not in container("cpu")


def test_gpus_can_be_left_out_or_asked_for() -> None:
    assert "--gpus" not in container("cu126", given={"gpus": "none"})["runArgs"]
    assert "--gpus" in container("cpu", given={"gpus": "all"})["runArgs"]


def test_the_user_is_the_one_that_the_image_knows() -> None:
    files = exported("devcontainer", ("cu126",), registry=None)
    assert files[".devcontainer/passwd"].startswith(container()["remoteUser"] + ":x:1000:1000:")


def test_ports_of_the_features_are_forwarded() -> None:
    assert container("jupyter")["forwardPorts"] == [8888, 6006]
    assert "forwardPorts" not in container("cu126")
