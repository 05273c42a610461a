from dataclasses import replace

import pytest

from envkit.export.model import Option, checked, logout, needs_gpu, repository
from envkit.ground.errors import UsageError
from envkit.ground.requirement import WAYS, Form, Requirement
from tests.support.exports import cell, exported, main_file, order


def test_the_tag_of_an_image_is_its_name() -> None:
    made = order("github", ("cpu",))
    assert made.image(made.cells[0]) == "registry.example.com/team/train:cpu"
    assert replace(made, registry=None).image(made.cells[0]) == "envkit:cpu"


def test_who_needs_a_gpu() -> None:
    assert not needs_gpu(cell("cpu"))
    assert needs_gpu(cell("cu126"))


def test_nothing_is_not_exported() -> None:
    with pytest.raises(UsageError, match="no image to export"):
        checked(replace(order("github"), cells=()))


def test_two_images_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two images have the name 'cpu'"):
        order("github", ("cpu", "cpu"))


def test_a_name_that_is_no_tag_is_refused() -> None:
    with pytest.raises(UsageError, match="the image name 'a b' is not a valid tag"):
        checked(replace(order("github"), cells=(replace(cell(), name="a b"),)))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("a\nrun: evil", r"control or format character U\+000A"),
        ("a\x1b[31m", r"control or format character U\+001B"),
        ("a\u2028b", r"control or format character U\+2028"),
        ("a\u202eb", r"control or format character U\+202E"),
        ("a\uffffb", "not printable"),
        ("${{ secrets.TOKEN }}", r"'\$\{\{', which CI systems expand"),
        ("$[[ inputs.x ]]", r"'\$\[\[', which CI systems expand"),
    ],
)
def test_texts_that_no_quoting_carries_are_refused(value: str, why: str) -> None:
    made = order("github")
    for what, changed in {
        "--matrix": replace(made, matrix=value),
        "--requirement": replace(made, requirement=Requirement(Form.URL, value)),
        "the command line": replace(made, command=value),
        "DEFINITION": replace(made, definitions={"cpu": value}),
    }.items():
        with pytest.raises(UsageError, match=f"{what}: .* cannot be put into the exported file: it .*{why}"):
            checked(changed)


@pytest.mark.parametrize(
    "text",
    [
        "registry.example.com/team/train:1", "registry.example.com/team/train:latest", "train:1", "docker.io/train:1",
        "localhost:5000/train:1", "[::1]:5000/train:1",
    ],
)  # fmt: skip
def test_a_registry_is_a_repository_without_a_tag(text: str) -> None:
    with pytest.raises(UsageError, match="names one image, not a repository") as caught:
        repository(text)
    assert caught.value.hint == "--registry registry.example.com/team/train; the tag is the cell's name"


def test_a_registry_with_a_digest_is_refused() -> None:
    with pytest.raises(UsageError, match="names one image, not a repository"):
        repository("registry.example.com/team/train@sha256:" + "0" * 64)


def test_a_registry_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--registry 'Upper/CASE' is not a valid image name"):
        order("github", registry="Upper/CASE")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("team/train", "docker.io/team/train"),
        ("index.docker.io/team/train", "docker.io/team/train"),
        ("registry.example.com:5000/train", "registry.example.com:5000/train"),
    ],
)
def test_a_registry_is_written_with_the_host_that_scripts_log_in_at(text: str, place: str) -> None:
    assert order("github", registry=text).registry == place


@pytest.mark.parametrize(
    ("registry", "command"),
    [("team/train", "docker logout"), ("registry.example.com/train", 'docker logout "${REGISTRY%%/*}"')],
)
def test_logging_out_forgets_the_login(registry: str, command: str) -> None:
    for kind in ("github", "gitlab"):
        made = order(kind, registry=registry)
        assert logout(made) == command
        words = [
            line.strip().removeprefix("run: ").removeprefix("- ")
            for line in main_file(exported(kind, registry=registry)).splitlines()
        ]
        assert {one for one in words if one.startswith("docker logout")} == {command}


def test_without_a_requirement_a_kind_that_installs_envkit_names_the_ways() -> None:
    for kind in ("github", "gitlab", "kubernetes"):
        with pytest.raises(UsageError, match="which is on no package index yet") as caught:
            exported(kind, ("cpu",), requirement=None)
        assert (str(caught.value.hint).partition(" (")[0], *caught.value.details) == WAYS


@pytest.mark.parametrize("kind", ["bake", "devcontainer", "slurm"])
def test_a_kind_that_installs_nothing_needs_none(kind: str) -> None:
    assert main_file(exported(kind, ("cpu",), requirement=None)) == main_file(exported(kind, ("cpu",)))


@pytest.mark.parametrize("text", ["localhost:5000/train", "[::1]:5000/team/train"])
def test_a_port_is_no_tag(text: str) -> None:
    assert repository(text).place == text


def test_a_value_has_to_match_its_option() -> None:
    option = Option(default="main", about="a branch", pattern="[a-z]+")
    assert option.check("branch", "dev") == "dev"
    with pytest.raises(UsageError, match=r"--set branch='DEV' is not a valid value \(a branch\)") as caught:
        option.check("branch", "DEV")
    assert caught.value.hint == "--set branch=main"
