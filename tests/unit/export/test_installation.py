"""How exported jobs install envkit: from each form of requirement, and what a kind cannot use."""

import re

import pytest

from envkit.ground.errors import UsageError
from envkit.ground.requirement import Form, parse
from tests.support.exports import PIN, exported, main_file

HASH = f" --hash=sha256:{'a' * 64}"
GIT = "git+https://git.example/team/envkit.git@0123456789abcdef0123456789abcdef01234567"
GIVEN = {
    Form.URL: f"https://files.example/envkit_gpu-0.2.0-py3-none-any.whl{HASH}",
    Form.PATH: f"./dist/envkit_gpu-0.2.0-py3-none-any.whl{HASH}",
    Form.GIT: GIT,
    Form.PIN: PIN,
    Form.IMAGE: f"image:registry.example/team/envkit@sha256:{'a' * 64}",
}
CPU = {"images": ("cpu",)}
GPU = {"images": ("cu126",)}
NO_GPU_JOB = {"github": {"gpu_runner": "none"}, "gitlab": {"gpu_tags": "none"}}


def text(kind: str, form: Form, image: str, given: dict[str, str] | None = None) -> str:
    files = exported(kind, (image,), requirement=parse(GIVEN[form]), given=given or {})
    return files["build.yaml"] if kind == "kubernetes" else main_file(files)


@pytest.mark.parametrize(
    ("kind", "form", "image"),
    [
        *((kind, form, "cu126") for kind in ("github", "gitlab", "kubernetes") for form in (Form.URL, Form.PIN)),
        ("github", Form.GIT, "cu126"), ("gitlab", Form.GIT, "cu126"), ("gitlab", Form.PATH, "cu126"),
        ("github", Form.PATH, "cpu"),
    ],
)  # fmt: skip
def test_the_job_checks_one_file_and_installs_that(kind: str, form: Form, image: str) -> None:
    made = text(kind, form, image)
    assert GIVEN[form] in made
    lines = [line for line in re.split(r"\n| && ", made) if " pip " in line or "/pip " in line]
    assert lines
    for line in lines:
        checked = " wheel " in line and "--no-deps" in line and "requirement.txt" in line
        installed = re.search(r" install (--no-cache-dir )?\\?\"\$wheels\\?\"/envkit_gpu-\*\.whl", line)
        assert checked or installed, line


def test_an_image_needs_no_installation() -> None:
    image = GIVEN[Form.IMAGE].removeprefix("image:")
    for kind, given in (("kubernetes", {}), ("gitlab", {"gpu_tags": "none"})):
        made = text(kind, Form.IMAGE, "cu126", given)
        assert "pip" not in made
        assert image in made
    assert "initContainers" not in text("kubernetes", Form.IMAGE, "cpu")
    assert "exec envkit build" in text("kubernetes", Form.IMAGE, "cpu")


def test_a_commit_needs_git() -> None:
    assert "apt-get install -y -q --no-install-recommends proot git" in text("gitlab", Form.GIT, "cpu")
    assert "apt-get install -y -q --no-install-recommends git" in text("gitlab", Form.GIT, "cpu", {"proof": "none"})
    assert GIT in text("kubernetes", Form.GIT, "cpu", {"builder": "registry.example/python:3"})


def test_an_absolute_path_is_one_of_the_image_or_the_machine() -> None:
    path = parse(f"/opt/wheels/envkit_gpu-0.2.0-py3-none-any.whl{HASH}")
    for kind in ("github", "kubernetes"):
        files = exported(kind, ("cu126",), requirement=path)
        assert any(path.text in made for made in files.values())


@pytest.mark.parametrize(
    ("kind", "form", "given", "why"),
    [
        ("github", Form.IMAGE, {}, "the Docker client and the GPUs of the runner"),
        ("github", Form.PATH, {}, "the job on the GPU runner has no checkout"),
        ("gitlab", Form.IMAGE, {}, "needs envkit on that machine"),
        ("gitlab", Form.IMAGE, {"gpu_tags": "none", "proof": "bubblewrap"}, "has proot, not bubblewrap"),
        ("kubernetes", Form.PATH, {}, "a pod has no checkout"),
        ("kubernetes", Form.GIT, {}, "has no git"),
    ],
)
def test_what_a_kind_cannot_use_is_refused(kind: str, form: Form, given: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        text(kind, form, "cu126", given)
    assert caught.value.exit_code == 2
    assert why in caught.value.message
    assert str(caught.value.hint).partition(":")[0] in ("a file by its hash", "a commit")
