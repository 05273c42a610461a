import io
import tarfile
from pathlib import Path

import pytest

from envkit.ground.errors import TimeLimitError, UsageError
from envkit.run import containers, docker, podman
from envkit.run.containers import Command, Output
from envkit.run.model import RunLimits
from envkit.run.rootless.sandbox import host_mounts


def test_the_command_runs_under_the_limit() -> None:
    argv = containers.timed(["python", "a b"], RunLimits(timeout_s=2.5))
    assert argv[:2] == ("/bin/sh", "-c")
    assert argv[-3:] == ("2.5", "python", "a b")


def test_each_folder_of_files_is_one_volume() -> None:
    assert containers.folders({"/run/envkit/a": b"", "/run/envkit/sub/b": b"", "/srv/c": b""}) == (
        "/run/envkit",
        "/srv",
    )
    assert containers.folders({}) == ()


@pytest.mark.parametrize("name", ["a", "/a", "/run/../a/b", "/run//a", "/run/./a", ""])
def test_odd_places_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid path for a file in a container") as caught:
        containers.folders({name: b""})
    assert caught.value.hint == "/run/envkit/NAME"


def test_the_archive_holds_the_files_of_its_folder() -> None:
    files = {"/run/envkit/a": b"A", "/run/envkit/sub/deep/b": b"B", "/srv/c": b"C"}
    with tarfile.open(fileobj=io.BytesIO(containers.archive(files, "/run/envkit"))) as tar:
        found = {entry.name: (entry.mode, entry.uid, entry.isdir()) for entry in tar.getmembers()}
    assert found == {
        "a": (0o644, 0, False),
        "sub": (0o755, 0, True),
        "sub/deep": (0o755, 0, True),
        "sub/deep/b": (0o644, 0, False),
    }


@pytest.mark.parametrize(
    ("code", "duration", "over"),
    [(124, 5.1, True), (137, 10.2, True), (143, 5.0, True), (124, 1.0, False), (137, 1.0, False), (0, 9.0, False)],
)
def test_the_limit_is_told_from_an_exit_code_of_the_same_number(code: int, duration: float, *, over: bool) -> None:
    limits = RunLimits(timeout_s=5.0, last_line="end 1")
    output = Output(limits)
    if over:
        with pytest.raises(TimeLimitError, match="reached its time limit of 5 s"):
            containers.exit_code(code, duration, limits, output, image="an image")
    else:
        assert containers.exit_code(code, duration, limits, output, image="an image") == code
    # What had said everything did not fail, however it had to be ended.
    output.take(error=False, piece=b"all of it\nend 1\n")
    assert containers.exit_code(code, duration, limits, output, image="an image") == (0 if over else code)
    assert containers.exit_code(137, 1.0, limits, output, over=True, image="an image") == 0


@pytest.mark.parametrize(
    ("pieces", "complete"),
    [((b"x\nend 1\n",), True), ((b"x\nen", b"d 1\n"), True), ((b"x\nend 2\n",), False), ((b"x\nend 1",), False)],
)
def test_output_is_complete_with_its_last_line(pieces: tuple[bytes, ...], *, complete: bool) -> None:
    output = Output(RunLimits(last_line="end 1"))
    for piece in pieces:
        output.take(error=True, piece=b"end 1\n")
        output.take(error=False, piece=piece)
    assert output.complete is complete


def test_output_is_kept_up_to_its_limit() -> None:
    output = Output(RunLimits(output_bytes=4))
    assert output.take(error=False, piece=b"abcd")
    assert output.take(error=True, piece=b"err")
    assert not output.take(error=False, piece=b"e")
    assert (bytes(output.stdout), bytes(output.stderr), output.cut) == (b"abcd", b"err", True)


def test_an_image_without_a_shell_is_recognized() -> None:
    assert containers.without_shell('exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown')
    assert not containers.without_shell("exit status 1")


def test_containers_are_named_after_the_run() -> None:
    assert containers.container_name() != containers.container_name()
    assert containers.container_name().startswith("envkit-")


@pytest.mark.parametrize(
    ("limits", "memory", "expected"),
    [
        (RunLimits(), 16 << 30, (12288, 3072)),
        (RunLimits(memory_mb=400), 16 << 30, (400, 100)),
        (RunLimits(memory_mb=400, tmp_mb=7), 16 << 30, (400, 7)),
        (RunLimits(memory_mb=2), None, (2, 1)),
        (RunLimits(), None, (None, None)),
        (RunLimits(), 1, (1, 1)),
    ],
)
def test_what_nobody_limits_gets_a_share_of_the_machine(
    limits: RunLimits, memory: int | None, expected: tuple[int | None, int | None]
) -> None:
    found = containers.bounded(limits, memory)
    assert (found.memory_mb, found.tmp_mb) == expected


def test_the_lower_one_of_machine_and_control_group_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envkit.ground.host.memory_total", lambda: 5)
    for limit, expected in ((None, 5), (3, 3), (9, 5)):
        monkeypatch.setattr("envkit.ground.host.memory_limit", lambda limit=limit: limit)
        assert containers.memory_here() == expected


def test_the_users_folder_is_the_one_mount_and_read_only() -> None:
    data = Path("/srv/my data")
    command = Command(
        image="sha256:" + "a" * 64,
        argv=("true",),
        files={},
        gpus=None,
        limits=RunLimits(data=data),
        entrypoint=False,
    )
    assert "--mount=type=bind,source=/srv/my data,destination=/run/envkit-data,ro=true" in podman._create(
        "name", command, ()
    )
    (mount,) = docker._mounts(data)
    assert mount == {"Target": "/run/envkit-data", "Source": "/srv/my data", "Type": "bind", "ReadOnly": True}
    assert docker._mounts(None) == []
    assert host_mounts(None, data) == (("/srv/my data", "/run/envkit-data"),)
