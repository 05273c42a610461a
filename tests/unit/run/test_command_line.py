"""The lines that start a session, word by word."""

import shlex
from dataclasses import replace
from pathlib import Path

from envkit.image.name import image_name
from envkit.run.command_line import compose_service, engine_words, gpu_options, srun_words
from envkit.run.session import Mount, Port, Session

SESSION = Session(
    image=image_name("train:1"),
    argv=("python", "train.py", "--name", "a b"),
    entrypoint=("/opt/env/bin/tini", "-g", "--", "/bin/bash", "/usr/share/envkit/entry.sh"),
    mounts=(
        Mount(source=Path("/home/me/project"), target="/workspace", read_only=False),
        Mount(source=Path("/datasets"), target="/data", read_only=True),
    ),
    ports=(Port(container=8888, host=8889), Port(container=53, host=53, address="::1", kind="udp")),
    env=(("ONE", "1 $2"), ("JUPYTER_TOKEN", "secret")),
    gpus="all",
    shm_mb=8192,
    user="1000:1000",
)
FOREIGN = Session(image=image_name("debian"), argv=("true",), terminal=True)


def test_docker() -> None:
    assert shlex.join(engine_words(SESSION, "docker", options=["--name=envkit-1"], hidden=["JUPYTER_TOKEN"])) == (
        "docker run --rm --pull=never --name=envkit-1 --interactive --cap-drop=all "
        "--security-opt=no-new-privileges --read-only --tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777 --shm-size=8192m "
        "--ulimit=memlock=-1 --ulimit=stack=67108864 --gpus all --user=1000:1000 "
        "--publish=127.0.0.1:8889:8888 '--publish=[::1]:53:53/udp' "
        "--volume=/home/me/project:/workspace --volume=/datasets:/data:ro "
        "'--env=ONE=1 $2' --env=JUPYTER_TOKEN train:1 python train.py --name 'a b'"
    )


def test_podman_of_a_user() -> None:
    words = engine_words(SESSION, "podman", limits={"memlock": "65536"}, rootless=True)
    assert shlex.join(words) == (
        "podman run --rm --pull=never --interactive --cap-drop=all --security-opt=no-new-privileges --read-only "
        "--read-only-tmpfs=false --tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777 --shm-size=8192m "
        "--ulimit=memlock=65536 --ulimit=stack=67108864 --device=nvidia.com/gpu=all --userns=keep-id "
        "--user=1000:1000 --publish=127.0.0.1:8889:8888 '--publish=[::1]:53:53/udp' "
        "--volume=/home/me/project:/workspace --volume=/datasets:/data:ro --security-opt=label=disable "
        "'--env=ONE=1 $2' --env=JUPYTER_TOKEN=secret train:1 python train.py --name 'a b'"
    )


def test_an_image_without_a_process_1_of_its_own_gets_one() -> None:
    words = engine_words(FOREIGN, "docker")
    assert "--init" in words
    assert words[-2:] == ["debian", "true"]
    assert "--init" not in engine_words(SESSION, "docker")


def test_a_terminal_is_asked_for_by_both_options() -> None:
    assert engine_words(FOREIGN, "podman")[4:6] == ["--interactive", "--tty"]


def test_a_network_of_another_kind_publishes_no_port() -> None:
    words = engine_words(replace(SESSION, network="host"), "docker")
    assert "--network=host" in words
    assert not [one for one in words if one.startswith("--publish")]


def test_an_image_that_is_a_file_is_read_by_podman() -> None:
    words = engine_words(replace(FOREIGN, image=image_name("oci:/images/train")), "podman")
    assert "--pull=never" not in words


def test_some_gpus() -> None:
    assert gpu_options("docker", "0,2") == ["--gpus", '"device=0,2"']
    assert gpu_options("podman", "0,2") == ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=2"]
    assert gpu_options("docker", None) == []


def test_slurm() -> None:
    assert shlex.join(srun_words(SESSION, ["--workspace=/home/me/project"])) == (
        "srun --ntasks=1 --gres=gpu:1 envkit run --workspace=/home/me/project train:1 -- python train.py --name 'a b'"
    )
    assert srun_words(replace(FOREIGN, gpus="0,1"), [])[:4] == ["srun", "--ntasks=1", "--gres=gpu:2", "--pty"]


def test_a_compose_service() -> None:
    assert compose_service(SESSION, "docker") == Path(__file__).with_name("compose.yaml").read_text().rstrip("\n")


def test_an_image_by_id_has_a_service_with_a_plain_name() -> None:
    assert "\n  envkit:\n" in compose_service(replace(FOREIGN, image=image_name("sha256:" + "a" * 64)), "docker")
