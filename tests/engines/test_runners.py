"""What every runner does, by the same tests: the containers, the end, and what comes out."""

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError, EnvironmentProblem, InterruptedRun, TimeLimitError, UsageError
from envkit.image.name import image_name
from envkit.run import containers
from envkit.run.model import DATA, RunLimits, Runner, RunResult
from envkit.run.rootless import proot
from envkit.run.runners import make
from tests.engines.conftest import whole_for
from tests.support.clocks import before
from tests.support.file_images import Packed, entry, packed, write_layout
from tests.support.heard import Heard
from tests.support.interrupts import interrupted_at
from tests.world import base

pytestmark = pytest.mark.engine


def run(
    runner: Runner,
    image: str,
    script: str | Sequence[str],
    *,
    files: Mapping[str, bytes] | None = None,
    gpus: str | None = None,
    entrypoint: bool = False,
    heard: Heard | None = None,
    **limits: Any,
) -> RunResult:
    """Run a shell script, or an argument list, under limits given by name."""
    return runner.run(
        image_name(image),
        ["sh", "-c", script] if isinstance(script, str) else script,
        files or {},
        gpus=gpus,
        limits=RunLimits(**{"timeout_s": 60, **limits}),
        reporter=heard or Heard(),
        entrypoint=entrypoint,
    )


# One runner of each kind holds the tables.
_WHOLE, _OTHERS = ("docker", "bubblewrap"), ("podman", "proot")
_CODES = [0, 1, 3, 124, 125, 126, 127, 134, 135, 137, 139, 143]
_SIGNALS = [("KILL", 137), ("SEGV", 139), ("ABRT", 134), ("BUS", 135), ("TERM", 143)]


@pytest.mark.parametrize(("runner", "code"), whole_for(_WHOLE, _OTHERS, _CODES, [3, 125, 137]), indirect=["runner"])
def test_exit_codes_come_through(runner: Runner, image: str, code: int) -> None:
    result = run(runner, image, f"exit {code}")
    assert result.exit_code == code
    assert not result.oom_killed
    assert result.image_id == image


@pytest.mark.requirement("R46")
@pytest.mark.parametrize(("runner", "ended"), whole_for(_WHOLE, _OTHERS, _SIGNALS, _SIGNALS[:2]), indirect=["runner"])
def test_signals_come_through(runner: Runner, image: str, ended: tuple[str, int]) -> None:
    name, code = ended
    assert run(runner, image, f"kill -{name} $$").exit_code == code


@pytest.mark.parametrize(("argv", "code"), [(["/nowhere"], 127), (["/etc"], 126)])
def test_what_cannot_be_run_is_told(runner: Runner, image: str, argv: list[str], code: int) -> None:
    result = run(runner, image, argv)
    assert result.exit_code == code
    assert argv[0].encode() in result.stderr


def test_streams_stay_apart(runner: Runner, image: str, heard: Heard) -> None:
    result = run(runner, image, "echo out; echo err >&2", heard=heard)
    assert result.stdout == b"out\n"
    assert result.stderr == b"err\n"
    assert heard.lines == ["err"]


def test_bytes_come_through(runner: Runner, image: str) -> None:
    assert run(runner, image, r"printf '\000\001\377\r\n'").stdout == b"\x00\x01\xff\r\n"


@pytest.mark.requirement("R43")
def test_the_entry_point_is_bypassed_unless_asked_for(runner: Runner, image: str) -> None:
    assert b"entered" not in run(runner, image, "true").stderr
    through = run(runner, image, "echo $GREETING; pwd; exit 3", entrypoint=True)
    assert b"entered" in through.stderr
    assert through.stdout == b"hello\n/srv\n"
    assert through.exit_code == 3


def test_it_runs_as_the_images_user_or_the_one_given(runner: Runner, image: str) -> None:
    assert run(runner, image, "id -u; id -g").stdout == b"1234\n1234\n"
    assert run(runner, image, "id -u; id -g", user="4321:0").stdout == b"4321\n0\n"


@pytest.mark.requirement("R44")
@pytest.mark.guarantee("network")
def test_there_is_no_network(runner: Runner, image: str) -> None:
    assert run(runner, image, "ls /sys/class/net").stdout == b"lo\n"


@pytest.mark.requirement("R44")
def test_there_are_no_capabilities_and_no_new_privileges(runner: Runner, image: str) -> None:
    for user in (None, "0:0"):
        lines = run(runner, image, "cat /proc/self/status", user=user).stdout.decode().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        assert {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == dict.fromkeys(
            ("CapPrm", "CapEff", "CapBnd"), 0
        )
        assert status["NoNewPrivs"].strip() == "1"
        assert status["Seccomp"].strip() == "2"


@pytest.mark.guarantee("processes")
def test_other_processes_are_not_seen(runner: Runner, image: str) -> None:
    assert run(runner, image, f"test -e /proc/{os.getpid()}/stat").exit_code == 1


@pytest.mark.guarantee("read-only-root")
def test_the_root_is_read_only_and_tmp_is_not(runner: Runner, image: str) -> None:
    script = (
        "for f in /a /etc/a /srv/a /usr/a /var/a; do touch $f 2>/dev/null && echo $f; done; touch /tmp/a && echo tmp"
    )
    assert run(runner, image, script, user="0:0").stdout == b"tmp\n"


def test_programs_in_tmp_can_be_run(runner: Runner, image: str) -> None:
    assert run(runner, image, "cp /bin/true /tmp/x && /tmp/x").exit_code == 0


def test_files_go_in_by_archive(runner: Runner, image: str) -> None:
    files = {"/run/envkit/a": b"A\x00", "/run/envkit/sub/b": b"B", "/run/envkit/big": b"x" * 3_000_000}
    script = (
        "cat /run/envkit/a /run/envkit/sub/b; wc -c < /run/envkit/big; touch /run/envkit/new 2>/dev/null || echo fixed"
    )
    result = run(runner, image, script, files=files)
    assert result.stdout == b"A\x00B3000000\nfixed\n"


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that is not below /tmp, where every run of proot may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.guarantee("read-only-root")
def test_the_users_folder_is_there_and_read_only(runner: Runner, image: str, elsewhere: Path) -> None:
    if runner.name == "proot" and not proot.is_guarded(elsewhere):
        pytest.skip("proot refuses it on a kernel before Linux 6.2: the test below")
    (elsewhere / "a").write_text("A")
    (elsewhere / "a").chmod(0o666)
    elsewhere.chmod(0o777)
    script = f"cat {DATA}/a; echo B >> {DATA}/a || echo kept; touch {DATA}/new || echo fixed"
    for user in (None, "0:0"):
        assert run(runner, image, script, user=user, data=elsewhere).stdout == b"Akept\nfixed\n"
    assert [path.read_text() for path in elsewhere.iterdir()] == ["A"]


def test_a_run_without_data_has_no_such_folder(runner: Runner, image: str) -> None:
    assert run(runner, image, f"test -e {DATA}").exit_code == 1


@pytest.mark.long
@pytest.mark.parametrize("runner", ["proot"], indirect=True)
def test_proot_refuses_a_folder_that_it_cannot_protect(
    runner: Runner, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proot, "landlock_version", lambda: 0)
    with pytest.raises(EnvironmentProblem, match=r"proot cannot make .* read-only: ") as caught:
        run(runner, image, "true", data=tmp_path)
    assert caught.value.hint is not None


@pytest.mark.long
@pytest.mark.parametrize("runner", ["proot"], indirect=True)
@pytest.mark.skipif(os.geteuid() != 0, reason="a run of another user is that user, which `isolation` says")
@pytest.mark.parametrize(
    ("above", "landlock"), [("/tmp", True), ("/dev/shm", True), ("/var/tmp", False)], ids=["tmp", "shm", "old"]
)
def test_a_run_that_landlock_does_not_guard_changes_no_file(
    runner: Runner, above: str, landlock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these let the image's user write to the image, and through hard links to the cached layers."""
    if os.statvfs(above).f_flag & os.ST_NOEXEC:
        pytest.skip(f"{above} is mounted noexec")
    if not landlock:
        monkeypatch.setattr(proot, "landlock_version", lambda: 0)
    monkeypatch.setattr("envkit.run.proot._FOLDERS", (above,))
    own, anyones = entry("srv/own"), entry("srv/anyones", mode=0o666)
    own.uid = own.gid = 1234
    found = base.layer()
    layers = [Packed(found.path.read_bytes(), found.diff_id), packed([(own, b"old\n"), (anyones, b"old\n")])]
    with tempfile.TemporaryDirectory(dir=above) as folder:
        cache = Path(folder)
        cache.chmod(0o755)  # so that the run's user may enter it, and hard links are made
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        layout = write_layout(cache / "layout", layers, {"User": "1234:1234", "Env": [f"PATH={base.PATH}"]})
        script = "cd /srv; for f in own anyones; do (echo new > $f) 2>/dev/null; cat $f; done; touch /tmp/a && echo tmp"
        assert run(
            make(runner.name), str(make(runner.name).inspect(image_name(f"oci:{layout}"))["id"]), script
        ).stdout == (b"old\nold\ntmp\n")
        kept = [path for path in cache.rglob("srv/*") if path.is_file()]
        assert [path.read_text() for path in kept] == ["old\n", "old\n"]


@pytest.mark.parametrize("path", ["relative/a", "/a", "/run/../etc/a", "/run//a"])
def test_files_go_nowhere_odd(runner: Runner, image: str, path: str) -> None:
    with pytest.raises(UsageError, match="is not a valid path for a file in a container"):
        run(runner, image, "true", files={path: b""})


@pytest.mark.requirement("R47")
@pytest.mark.guarantee("shared-memory")
def test_shared_memory_is_as_large_as_asked(runner: Runner, image: str) -> None:
    assert run(runner, image, "df -k --output=size /dev/shm | tail -1", shm_mb=96).stdout.strip() == b"98304"
    full = run(runner, image, "dd if=/dev/zero of=/dev/shm/x bs=1M count=4", shm_mb=1)
    assert full.exit_code != 0
    assert b"No space left" in full.stderr


@pytest.mark.requirement("R27")
@pytest.mark.guarantee("memory-limit")
def test_an_out_of_memory_kill_is_told_from_another(runner: Runner, image: str) -> None:
    starved = run(runner, image, "exec tail /dev/zero", memory_mb=48)
    assert (starved.exit_code, starved.oom_killed) == (137, True)
    child = run(runner, image, "tail /dev/zero; exit 3", memory_mb=48)
    assert (child.exit_code, child.oom_killed) == (3, True)
    other = run(runner, image, "kill -KILL $$", memory_mb=48)
    assert (other.exit_code, other.oom_killed) == (137, False)


@pytest.mark.requirement("R44")
@pytest.mark.guarantee("memory-limit")
def test_a_run_that_nobody_limits_gets_a_share_of_the_memory(
    runner: Runner, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = containers.memory_here()
    assert total is not None
    monkeypatch.setattr(containers, "MEMORY_SHARE", (64 << 20) / total)
    assert run(runner, image, "tail /dev/zero; true").oom_killed


@pytest.mark.requirement("R44")
@pytest.mark.guarantee("shared-memory")  # without one of its own, /tmp is a folder of the disk as well
def test_tmp_is_a_share_of_the_memory(runner: Runner, image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    total = containers.memory_here()
    assert total is not None
    df = "df -k --output=size /tmp | tail -1"
    assert int(run(runner, image, df).stdout) == pytest.approx(total / 1024 * 0.75 * 0.25, rel=0.01)
    monkeypatch.setattr(containers, "MEMORY_SHARE", (64 << 20) / total)
    small = run(runner, image, f"{df}; head -c 20M /dev/zero > /tmp/x")
    assert int(small.stdout) == pytest.approx(16 << 10, rel=0.1)
    assert b"No space left" in small.stderr


@pytest.mark.requirement("R44")
def test_processes_are_limited(runner: Runner, image: str) -> None:
    script = "i=0; while [ $i -lt 60 ]; do sleep 20 & i=$((i+1)); done; echo all"
    result = run(runner, image, script, pids=20)
    assert b"all" not in result.stdout


@pytest.mark.requirement("R45")
def test_the_time_limit_ends_it(runner: Runner, image: str, leaves_nothing: str) -> None:
    with before(300), pytest.raises(TimeLimitError, match="time limit of 2 s"):
        run(runner, image, f": {leaves_nothing}; sleep 300", timeout_s=2)


@pytest.mark.requirement("R45")
@pytest.mark.long
def test_the_time_limit_ends_what_ignores_sigterm(runner: Runner, image: str, leaves_nothing: str) -> None:
    with pytest.raises(TimeLimitError):
        run(runner, image, f": {leaves_nothing}; trap '' TERM; while :; do sleep 1; done", timeout_s=2)


@pytest.mark.requirement("R45")
def test_the_time_limit_outside_holds_alone(
    runner: Runner, image: str, leaves_nothing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.run.containers.timed", lambda argv, _: tuple(argv))
    monkeypatch.setattr("envkit.run.containers.GRACE_S", 0.0)
    with pytest.raises(TimeLimitError):
        run(runner, image, f": {leaves_nothing}; trap '' TERM INT; while :; do sleep 1; done", timeout_s=3)


def test_what_goes_to_the_background_ends_with_it(runner: Runner, image: str, leaves_nothing: str) -> None:
    result = run(runner, image, f"setsid sh -c ': {leaves_nothing}; sleep 300' & echo done")
    assert result.stdout == b"done\n"


@pytest.mark.requirement("R36")
def test_output_is_limited(runner: Runner, image: str, leaves_nothing: str) -> None:
    result = run(runner, image, f": {leaves_nothing}; yes", output_bytes=100_000)
    assert result.output_cut
    assert len(result.stdout) == 100_000
    assert not run(runner, image, "head -c 100000 /dev/zero", output_bytes=100_000).output_cut


@pytest.mark.requirement("R46")
def test_a_signal_ends_it(runner: Runner, image: str, leaves_nothing: str) -> None:
    with interrupted_at("ready") as heard, pytest.raises(InterruptedRun):
        run(runner, image, f": {leaves_nothing}; echo ready >&2; sleep 300", heard=heard)


@pytest.mark.requirement("R33")
def test_nothing_is_pulled(runner: Runner) -> None:
    with pytest.raises(EngineError, match="there is no image"):
        run(runner, f"debian:{secrets.token_hex(4)}", "true")
    with pytest.raises(EngineError, match="there is no image"):
        runner.inspect(image_name("sha256:" + "0" * 64))


def test_gpus_that_the_engine_cannot_give_are_named(runner: Runner, image: str) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    with pytest.raises(EnvironmentProblem, match="cannot give GPUs") as caught:
        run(runner, image, "true", gpus="all")
    assert "nvidia-container-toolkit" in (caught.value.hint or "")


def test_inspect_tells_the_configuration(runner: Runner, image: str) -> None:
    found = runner.inspect(image_name(image))
    assert found["id"] == image
    assert found["env"]["GREETING"] == "hello"
    assert found["labels"]["com.example.team"] == "vision"
    assert found["user"] == "1234:1234"
    assert found["workdir"] == "/srv"
    assert found["entrypoint"][-1] == "entry"
    assert found["cmd"] == ("true",)
    assert found["architecture"] in ("amd64", "arm64")
    assert found["os"] == "linux"
    assert found["size"] > 1_000_000
