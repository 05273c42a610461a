import pytest

from envkit.engines.failures import EngineInfo, disk_full, engine_lost, translate
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError

DOCKER = EngineInfo(engine="docker")


@pytest.mark.parametrize(
    ("said", "kind", "message", "hint"),
    [
        (
            "Error processing tar file(exit status 1): write /x: no space left on device",
            EnvironmentProblem,
            "disk full on the storage of the docker engine",
            "docker system df; docker system prune",
        ),
        (
            "filesystem layer verification failed for digest sha256:00",
            IntegrityError,
            "the data does not match its checksum",
            "run the command again",
        ),
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            EnvironmentProblem,
            "docker cannot give GPUs to containers",
            "nvidia-container-toolkit",
        ),
        (
            "nvidia-container-cli: device error: 2: unknown device: unknown",
            EnvironmentProblem,
            "docker cannot give GPUs to containers: The requested GPU does not exist on this host",
            "Use a number or UUID that nvidia-smi -L prints",
        ),
        (
            "nvidia-container-cli: mount error: file creation failed: /x/libnvidia-ml.so.1: file exists: unknown",
            EnvironmentProblem,
            "docker cannot give GPUs to containers: The image contains driver files",
            "Remove nvidia-driver-*",
        ),
        ("manifest unknown: manifest unknown", EngineError, "no such image", "name and tag"),
        (
            "pull access denied for x, repository does not exist or may require 'docker login'",
            EngineError,
            "the registry denied access",
            "docker login",
        ),
        (
            'Get "https://registry.example.com/v2/": dial tcp: lookup registry.example.com: no such host',
            EnvironmentProblem,
            "a registry or package index is unreachable",
            "ENVKIT_REGISTRY",
        ),
    ],
)
def test_an_engines_words_have_one_meaning(said: str, kind: type, message: str, hint: str) -> None:
    error = translate(said, "the build of x", DOCKER, ("a line",))
    assert type(error) is kind
    assert error.message.startswith(f"the build of x: {message}")
    assert hint in (error.hint or "")
    assert error.details == ("a line",)


def test_unknown_words_are_passed_on_in_one_line() -> None:
    error = translate("something\n  odd \x1b[31mhappened", "tagging", DOCKER)
    assert error.message == "tagging: something odd happened"
    assert error.exit_code == 8


def test_podman_is_told_in_its_own_commands() -> None:
    error = translate("no space left on device", "x", EngineInfo(engine="podman"))
    assert error.hint == "podman system df; podman system prune"


def test_a_known_storage_is_named_with_what_is_free() -> None:
    error = translate("no space left on device", "x", EngineInfo(engine="docker", storage="/"))
    assert "disk full on / (" in error.message
    assert " GB free)" in error.message


def test_disk_full_is_read_from_a_steps_output() -> None:
    assert disk_full("tar: /x: Cannot write: No space left on device")
    assert not disk_full("there is space left")


def test_a_lost_engine_is_told() -> None:
    error = engine_lost("the build of x", DOCKER)
    assert error.exit_code == 9
    assert error.message == (
        "the build of x: lost the connection to the docker engine (it stopped or does not respond)"
    )
