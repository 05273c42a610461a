import os
from pathlib import Path

import pytest

from envkit.ground import host


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n', "debian12"),
        ('ID=ubuntu\nVERSION_ID="22.04"\n', "ubuntu22.04"),
        ('ID="rocky"\nVERSION_ID="9.3"\n', "rockylinux9"),
        ('ID="rhel"\nVERSION_ID="9.4"\n', "ubi9"),
        ('ID="centos"\nVERSION_ID="7"\n', "centos7"),
        ("# nothing\n", None),
    ],
)
def test_os_release_gives_our_name(text: str, name: str | None) -> None:
    assert host.parse_os_release(text)[0] == name


def test_a_machine_is_what_its_files_say(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12"\n')
    here = host.read(tmp_path)
    assert (here.os, here.os_title) == ("debian12", "Debian 12")
    assert host.read(tmp_path / "none").os is None


def test_cores_are_those_that_this_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert host.cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("user", "held", "lacks"),
    [(0, "000001ffffffffff", False), (0, "00000000a80425bb", True), (0, "00000000a80425fb", False), (1000, "0", False)],
)
def test_root_may_lack_what_root_has_elsewhere(
    user: int, held: str, lacks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's usual capabilities, with and without CAP_SETGID."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tpython\nCapEff:\t{held}\n")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert host.root_without(6, 7, root=tmp_path) == lacks


@pytest.mark.parametrize("name", ["proc/driver/nvidia/version", "usr/lib/wsl/lib/libnvidia-ml.so.1"])
def test_a_driver_is_found_without_asking_it(name: str, tmp_path: Path) -> None:
    assert not host.has_nvidia_driver(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    assert host.has_nvidia_driver(tmp_path)
