"""Lines of `--print` for a target: no engine, no runner and no GPU is on this machine."""

import os
import shlex
from pathlib import Path

import pytest

from envkit.cli import main
from envkit.ground.engine_names import RUNNERS
from envkit.ground.errors import UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.progress import Silent
from envkit.ground.settings import load
from envkit.ground.state import own_layout
from envkit.image.name import image_name
from envkit.pipeline import running
from envkit.pipeline.printing import FORMS, Printed, printed
from envkit.pipeline.running import RunRequest
from envkit.run.docker import DockerRunner
from envkit.run.podman import PodmanRunner
from tests.support.file_images import entry, packed, write_archive, write_layout

_CONFIG = {
    "Labels": {f"{LABEL_PREFIX}.cuda": "12.6", f"{LABEL_PREFIX}.shm-mb": "8192"},
    "WorkingDir": "/workspace",
    "Entrypoint": ["/opt/env/bin/tini", "-g", "--"],
    "Cmd": ["python"],
    "ExposedPorts": {"8888/tcp": {}},
}


@pytest.fixture(autouse=True)
def _no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("PATH", "")
    for kind in (DockerRunner, PodmanRunner):
        monkeypatch.setattr(kind, "probe", lambda _: "away")
    monkeypatch.setattr(running, "gpus_here", lambda given, _: None if given == "none" else given)  # a login node
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    layer = packed([(entry("a"), b"1")])
    write_layout(tmp_path / "img", [layer], _CONFIG)
    write_archive(tmp_path / "img.tar", [layer], _CONFIG, tag="train:1")
    cpu = {**_CONFIG, "Labels": {f"{LABEL_PREFIX}.cuda": "none"}}
    write_layout(tmp_path / "cpu", [layer], cpu)
    write_layout(tmp_path / "other", [layer], {"Env": ["CUDA_VERSION=12.1.0"], "Cmd": ["a"]})
    write_layout(own_layout(tmp_path / "STATE" / "envkit", "built:1"), [layer], _CONFIG)


def line(image: str, form: str, *argv: str, **more: object) -> Printed:
    request = RunRequest(image=image_name(image), argv=argv or ("python", "t.py"), **more)  # type: ignore[arg-type]
    return printed(request, form, load({}, {}, Path("data")), Silent())


@pytest.mark.parametrize("image", ["oci:img", "docker-archive:img.tar", "built:1", "oci:other"])
@pytest.mark.parametrize("form", FORMS)
def test_no_form_needs_an_engine_and_the_image_decides_about_gpus(image: str, form: str) -> None:
    """On a login node without a GPU, `--print srun` wrote `--gpus=none`: the job trained on the CPU."""
    found = line(image, form)
    wanted = {"docker": "--gpus all", "podman": "--device=nvidia.com/gpu=all", "srun": "--gres=gpu:1 envkit run",
              "apptainer": "apptainer exec --nv ", "compose": "driver: nvidia"}[form]  # fmt: skip
    assert wanted in (found.text or shlex.join(found.words))
    assert "--gpus=none" not in found.words


@pytest.mark.parametrize("form", FORMS)
def test_an_image_for_cpus_and_an_option_ask_for_no_gpu(form: str) -> None:
    for found in (line("oci:cpu", form), line("oci:img", form, gpus="none")):
        text = found.text or shlex.join(found.words)
        assert not any(word in text for word in ("--gpus all", "nvidia", "--nv", "--gres"))


def test_a_file_is_named_as_the_target_reads_it(tmp_path: Path) -> None:
    docker = line("docker-archive:./data/../img.tar", "docker")
    assert (docker.words[-3:], docker.note) == (
        ("train:1", "python", "t.py"), f"first: docker load -i {tmp_path}/img.tar"
    )  # fmt: skip
    assert line("built:1", "compose").note == (
        f"first: skopeo copy oci:{tmp_path}/STATE/envkit/images/built_1 docker-daemon:built:1"
    )
    for form in ("podman", "srun", "apptainer"):
        found = line("oci:img", form)
        assert (f"oci:{tmp_path}/img" in found.words, found.note) == (True, None)


def test_apptainer_gets_folders_variables_and_the_images_own_command(tmp_path: Path) -> None:
    more = {"data": ("data",), "workspace": ".", "env": ("A=b c",)}
    assert line("oci:img", "apptainer", **more).words == (
        "apptainer", "exec", "--nv", f"--bind={tmp_path}:/workspace", f"--bind={tmp_path}/data:/data:ro",
        "--pwd=/workspace", "--env=A=b c", f"oci:{tmp_path}/img", "python", "t.py",
    )  # fmt: skip
    own = printed(
        RunRequest(image=image_name("oci:img"), gpus="1,3", network="none"),
        "apptainer",
        load({}, {}, Path("data")),
        Silent(),
    )
    assert own.words == (
        "apptainer", "run", "--nv", "--net", "--network=none", "--env=CUDA_VISIBLE_DEVICES=1,3", f"oci:{tmp_path}/img",
    )  # fmt: skip


def test_the_line_of_this_machines_runner_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bubblewrap:
        name = "bubblewrap"

        def inspect(self, _: str) -> dict[str, object]:
            return {"id": "sha256:" + "a" * 64, "labels": {}, "env": {}, "entrypoint": (), "cmd": ("a",), "workdir": "",
                    "ports": (), "user": "", "tags": ()}  # fmt: skip

    monkeypatch.setattr(running, "_runner", lambda *_: (Bubblewrap(), image_name("oci:img")))
    with pytest.raises(
        UsageError, match="oci:img runs with bubblewrap, which has no command line of its own"
    ) as caught:
        line("oci:img", "here")
    assert caught.value.hint == "--print docker, podman, compose, srun or apptainer"


@pytest.mark.parametrize("form", FORMS)
def test_a_name_that_nothing_has_is_an_error_of_its_own(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "nosuch:1", "--print", form, "--", "true"]) in (8, 9)
    err = capsys.readouterr().err
    assert "there is no image 'nosuch:1'" in err
    assert os.linesep + "hint: " in err


def test_every_form_is_known_to_the_runners() -> None:
    assert {"docker", "podman"} <= set(FORMS) & set(RUNNERS)
