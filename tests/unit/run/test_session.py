"""Ports and folders as they are typed."""

from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.image.name import image_name
from envkit.run import containers
from envkit.run.bubblewrap import session_limits
from envkit.run.session import Mount, Port, Session, in_use, parse_mount, parse_port


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("8888", Port(container=8888, host=8888)),
        ("8889:8888", Port(container=8888, host=8889)),
        ("0.0.0.0:80:8888", Port(container=8888, host=80, address="0.0.0.0")),
        ("[::1]:80:8888", Port(container=8888, host=80, address="::1")),
        ("53/udp", Port(container=53, host=53, kind="udp")),
    ],
)
def test_ports(text: str, port: Port) -> None:
    assert parse_port(text) == port
    assert parse_port(str(port)) == port


@pytest.mark.parametrize("text", ["", "0", "65536", "a", "1:2:3", "1.2.3:1:2", "80/sctp", ":80", "80:", "\u0661", "-1"])
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(UsageError, match="is not a port") as caught:
        parse_port(text)
    assert caught.value.hint is not None


def test_a_port_in_use_has_a_next_command() -> None:
    error = in_use(Port(container=8888, host=8889))
    assert (error.exit_code, error.hint) == (9, "envkit run --port 8890:8888")


def test_folders(tmp_path: Path) -> None:
    assert parse_mount(str(tmp_path), "/data", read_only=True, option="--data") == Mount(
        source=tmp_path, target="/data", read_only=True
    )
    found = parse_mount(f"{tmp_path}:/mnt/set/", "/data", read_only=True, option="--data")
    assert (found.source, found.target) == (tmp_path, "/mnt/set")


def test_a_folder_behind_a_link_is_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert parse_mount(str(tmp_path / "link"), "/data", read_only=True, option="--data").source == tmp_path / "real"
    with pytest.raises(UsageError, match="has a character that engines read as a separator"):
        parse_mount(str(tmp_path / "a:b"), "/data", read_only=True, option="--data")


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("/nowhere", "--data '/nowhere' does not exist", "mkdir -p /nowhere"),
        ("/etc/passwd", "--data '/etc/passwd' is not a folder", "--data DIR"),
        ("/tmp:data", "--data: 'data' is not a folder in a container", "--data /tmp:/data"),
        ("/tmp:/../etc", "is not a folder in a container", "--data /tmp:/data"),
        ("/tmp:/", "is not a folder in a container", "--data /tmp:/data"),
        ("/tmp:/proc", "--data: '/proc' belongs to the container's system", "--data /tmp:/data"),
        ("/tmp:/usr/..//dev/shm/", "is not a folder in a container", "--data /tmp:/data"),
        ("/tmp://dev/shm/", "belongs to the container's system", "--data /tmp:/data"),
        ("/", "--data / would give the container the whole machine", "--data DIR"),
    ],
)
def test_folders_that_are_refused(text: str, said: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse_mount(text, "/data", read_only=True, option="--data")
    assert said in caught.value.message
    assert caught.value.hint == hint


def test_an_entry_point_that_is_an_init() -> None:
    assert Session(image=image_name("a"), argv=(), entrypoint=("/usr/bin/tini", "--", "run")).has_init
    assert not Session(image=image_name("a"), argv=(), entrypoint=("/bin/sh", "-c")).has_init
    assert not Session(image=image_name("a"), argv=()).has_init


@pytest.mark.parametrize(("memory", "tmp_mb"), [(8 << 30, 4096), (3 << 20, 1), (1 << 20, 1), (None, None)])
def test_tmp_of_a_session_is_half_of_the_memory_that_this_process_may_use(
    memory: int | None, tmp_mb: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "memory_here", lambda: memory)
    found = session_limits(Session(image=image_name("app:1"), argv=(), shm_mb=300))
    assert (found.tmp_mb, found.shm_mb, found.memory_mb) == (tmp_mb, 300, None)
