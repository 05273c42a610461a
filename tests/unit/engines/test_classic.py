from typing import Any

import pytest

from envkit.engines.classic import BuildEvents
from envkit.engines.failures import EngineInfo
from envkit.engines.log import BuildLog
from envkit.ground.errors import EngineError, EnvironmentProblem
from envkit.ground.progress import Silent

FAILED = {"errorDetail": {"code": 3, "message": "returned a non-zero code: 3"}, "error": "returned a non-zero code: 3"}


def told(*events: dict[str, Any]) -> tuple[BuildEvents, list[str]]:
    containers: list[str] = []
    build = BuildEvents(BuildLog(None, Silent()), Silent(), containers.append)
    for event in events:
        build.read(event)
    build.finish()
    return build, containers


def test_the_id_comes_from_aux_alone() -> None:
    found, _ = told({"stream": "Successfully built 0123456789ab\n"})
    assert found.image is None
    found, _ = told({"aux": {"ID": "sha256:a"}}, {"stream": "Successfully built 0123456789ab\n"})
    assert found.image == "sha256:a"


def test_an_error_takes_the_id_back() -> None:
    found, _ = told({"aux": {"ID": "sha256:a"}}, FAILED)
    assert found.image is None


def test_only_the_engine_names_containers() -> None:
    found, containers = told(
        {"stream": "Step 1/2 : RUN x\n"},
        {"stream": " ---> Running in 0123456789ab\n"},
        {"stream": " ---> Running in ffffffffffff\n"},
    )
    assert containers == ["0123456789ab"]
    assert found.container == "0123456789ab"


def test_a_failure_names_the_step_and_its_code() -> None:
    found, _ = told({"stream": "Step 2/5 : RUN make\n"}, {"stream": "oops\n"}, FAILED)
    error = found.failure("the build of x", EngineInfo(engine="docker"))
    assert type(error) is EngineError
    assert error.message == "the build of x failed at step 2/5: RUN make: exit code 3"
    assert error.details[-1] == "oops"


@pytest.mark.parametrize(
    "events",
    [
        ({"stream": "\x1b[91mcp: write error: No space left on device\n\x1b[0m"}, FAILED),
        ({"errorDetail": {"message": "failed to register layer: write /x: no space left on device"}, "error": "x"},),
    ],
)
def test_a_full_disk_is_read_from_output_and_message(events: tuple[dict[str, Any], ...]) -> None:
    found, _ = told(*events)
    assert isinstance(found.failure("the build of x", EngineInfo(engine="docker")), EnvironmentProblem)


def test_without_a_code_the_engines_words_count() -> None:
    found, _ = told({"error": "manifest unknown"})
    assert "no such image" in found.failure("the build of x", EngineInfo(engine="docker")).message


def test_a_pull_is_told_without_its_progress() -> None:
    log = BuildLog(None, Silent())
    events = BuildEvents(log, Silent(), lambda _: None)
    events.read({"status": "Pulling from library/debian", "id": "12"})
    events.read({"status": "Downloading", "id": "ab", "progressDetail": {"current": 1, "total": 2}})
    assert log.tail() == ("12: Pulling from library/debian",)
