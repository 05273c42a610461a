"""What every builder does, by the same tests."""

import secrets
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.engines.model import Engine, Job
from envkit.ground.errors import EngineError, EnvironmentProblem, InterruptedRun, TimeLimitError, UsageError
from tests.engines.conftest import command_lines, make_image
from tests.support.clocks import before
from tests.support.heard import Heard
from tests.support.interrupts import interrupted_at
from tests.world.world import World

pytestmark = pytest.mark.engine
Build = Callable[..., str]
# Read back unchanged only when nothing between the file and the image takes them for syntax.
NASTY = {"a": 'say "hi"', "b": "$HOME and \\n", "c": "back\\", "d": "{{x}} 'y'", "e": "déjà vu"}


def test_answers_and_says_what_it_is(engine: Engine) -> None:
    probe = engine.probe()
    assert probe.available
    assert probe.name == engine.name
    assert probe.detail


@pytest.mark.requirement("R32")
def test_builds_an_image_named_by_its_id(build: Build, engine: Engine, heard: Heard) -> None:
    labels = {f"com.example.{key}": value for key, value in NASTY.items()}
    ident = build("COPY file /file", "RUN cat /file", files={"file": "said\n"}, job=Job(name="try", labels=labels))
    found = engine.local(ident)
    assert found is not None
    assert found.id == ident
    assert ident.startswith("sha256:")
    assert {key: found.labels[key] for key in labels} == labels
    assert found.size is not None
    assert found.size > 1_000_000
    assert any("said" in line for line in heard.lines)
    assert heard.progress
    assert all(total is None or done <= total for done, total in heard.progress)


def test_equal_contexts_give_the_cached_image(build: Build) -> None:
    unique = f"RUN echo {secrets.token_hex(4)} > /id"
    assert build(unique, fresh=False) == build(unique, fresh=False)


def test_no_cache_builds_anew(build: Build) -> None:
    step = f"RUN cat /proc/sys/kernel/random/uuid > /{secrets.token_hex(4)}"
    assert build(step, fresh=False) != build(step, fresh=False, job=Job(name="try", no_cache=True))


@pytest.mark.requirement("R31")
def test_a_failing_step_names_itself_and_shows_the_end(build: Build, leaves_nothing: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        build(f"RUN seq 1 100; : {leaves_nothing}; exit 7")
    error = caught.value
    assert "try failed at" in error.message
    assert leaves_nothing in error.message
    assert error.message.endswith("exit code 7")
    assert error.exit_code == 8
    assert len(error.details) == 31
    assert any(line.endswith("100") for line in error.details)
    assert error.details[-1] == f"full log: {tmp_path / 'build.log'}"
    assert (
        len([line for line in (tmp_path / "build.log").read_text().splitlines() if line.split(" ")[-1].isdigit()])
        >= 100
    )


@pytest.mark.requirement("R25")
def test_a_step_cannot_pretend_success(build: Build, engine: Engine) -> None:
    with pytest.raises(EngineError):
        build("RUN echo 'Successfully built 0123456789ab'; exit 1")
    ident = build("RUN echo 'Successfully built 0123456789ab'; echo real > /real")
    assert engine.local(ident) is not None


@pytest.mark.requirement("R26")
def test_a_full_disk_is_told_apart(build: Build, leaves_nothing: str) -> None:
    with pytest.raises(EnvironmentProblem, match="disk full on") as caught:
        build(f"RUN echo 'cp: write error: No space left on device' >&2; : {leaves_nothing}; exit 1")
    assert "system prune" in (caught.value.hint or "")


@pytest.mark.requirement("R24")
@pytest.mark.long
@pytest.mark.parametrize("engine", ["docker"], indirect=True)  # the others are programs whose output has no time limit
def test_a_quiet_step_is_no_error(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envkit.engines.docker._PATIENCE_S", 2)
    assert build("RUN sleep 5")


@pytest.mark.requirement("R28")
def test_the_time_limit_cancels_the_build(build: Build, leaves_nothing: str) -> None:
    with before(300), pytest.raises(TimeLimitError) as caught:
        build(f"RUN echo started; : {leaves_nothing}; sleep 300", job=Job(name="try", timeout_s=4))
    assert "time limit of 4 s" in caught.value.message
    assert caught.value.exit_code == 124


@pytest.mark.requirement("R29")
def test_a_signal_cancels_the_build(engine: Engine, pinned: str, tmp_path: Path, leaves_nothing: str) -> None:
    started = (f"RUN echo started; : {leaves_nothing}; sleep 300",)
    with before(300), interrupted_at("started") as heard, pytest.raises(InterruptedRun):
        make_image(engine, pinned, heard, tmp_path, started, fresh=True)


@pytest.mark.requirement("R30")
def test_what_a_killed_run_left_is_removed_by_the_next(
    engine: Engine, pinned: str, place: World, tmp_path: Path, leaves_nothing: str
) -> None:
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from envkit.engines.by_name import ENGINES
        from envkit.engines.model import Job
        from tests.engines.conftest import make_image
        from tests.support.heard import Heard

        engine = ENGINES[{engine.name!r}]({place.docker_client or "docker"!r})
        job = Job(name="try", state=Path({str(tmp_path)!r}))
        make_image(engine, {pinned!r}, Heard(), Path({str(tmp_path)!r}),
            ("RUN : {leaves_nothing}; sleep 300",), job=job)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        deadline = time.monotonic() + 60
        while not any(f": {leaves_nothing}; sleep" in text and "import" not in text for text in command_lines()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.kill()
    engine.sweep(tmp_path)
    deadline = time.monotonic() + 10
    while any(leaves_nothing in text for text in command_lines()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not list((tmp_path / "runs").glob("*"))


def test_a_live_run_is_left_alone(engine: Engine, tmp_path: Path) -> None:
    from envkit.engines.journal import Journal  # noqa: PLC0415

    with Journal(tmp_path, engine.name) as notes:
        notes.container("0123456789ab")
        engine.sweep(tmp_path)
        assert list((tmp_path / "runs").glob("*"))


def test_tags_name_the_image(build: Build, engine: Engine) -> None:
    ident = build("RUN true")
    name = f"localhost/envkit-test/{secrets.token_hex(4)}:one"
    assert engine.local(name) is None
    engine.tag(ident, name)
    found = engine.local(name)
    assert found is not None
    assert found.id == ident


def test_a_network_of_none_has_the_loopback_alone(build: Build, heard: Heard) -> None:
    build("RUN echo links: $(ls /sys/class/net)", job=Job(name="try", network="none"))
    assert any(line.split("links:")[-1].split() == ["lo"] for line in heard.lines if "links: lo" in line)


@pytest.mark.requirement("R36")
def test_a_log_cannot_steer_the_terminal(build: Build, tmp_path: Path) -> None:
    build(r"RUN printf '\033[2J\033]52;c;eA==\007\342\200\256x\n::set-output name=a::b\n##vso[task.x]\n'")
    text = (tmp_path / "build.log").read_text()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert not [line for line in text.splitlines() if line.lstrip().startswith(("::", "##vso["))]


@pytest.mark.requirement("R35")
def test_secrets_stay_out_of_the_image(build: Build, engine: Engine, tmp_path: Path) -> None:
    canary = secrets.token_hex(16)
    (tmp_path / "secret").write_text(canary)
    job = Job(name="try", secrets=(("token", tmp_path / "secret"),))
    if engine.syntax == "classic":
        with pytest.raises(UsageError, match="secrets") as caught:
            build("RUN true", job=job)
        assert caught.value.hint == "--engine buildkit"
        return
    ident = build("RUN --mount=type=secret,id=token grep -c . /run/secrets/token > /seen && cat /seen", job=job)
    history = subprocess.run(["docker", "history", "--no-trunc", ident], capture_output=True, check=True).stdout
    saved = subprocess.run(["docker", "save", ident], capture_output=True, check=True).stdout
    assert canary.encode() not in history
    assert canary.encode() not in saved
    assert canary not in (tmp_path / "build.log").read_text()


def test_a_registry_gives_the_digest(engine: Engine, place: World, pinned: str) -> None:
    assert place.base is not None
    assert engine.digest(place.base) == pinned.rpartition("@")[2]


def test_a_missing_tag_and_a_missing_registry_are_told_apart(engine: Engine, place: World) -> None:
    with pytest.raises(EngineError, match="no such image"):
        engine.digest(f"{place.registry}/library/debian:absent")
    with pytest.raises(EnvironmentProblem, match="is unreachable"):
        engine.digest("127.0.0.1:9/library/debian:bookworm")


@pytest.mark.requirement("R33")
def test_an_image_that_is_not_here_is_not_pulled(engine: Engine, place: World) -> None:
    assert engine.local(f"{place.registry}/library/debian:12-slim") is None
    assert engine.local("sha256:" + "0" * 64) is None
