"""Which processes are a training's, from a made-up /proc."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from envkit.watch.family import Container

PLACE = "/run/envkit-1a2b"
OURS = f"36 35 8:1 / / ro - ext4 /dev/sda rw\n77 36 8:1 /tmp/envkit-1a2b {PLACE} rw,relatime - ext4 /dev/sda rw\n"
OTHER = "36 35 8:1 / / rw - ext4 /dev/sda rw\n77 36 8:1 /run/envkit-1a2b /mnt rw - ext4 /dev/sda rw\n"


def process(root: Path, pid: int, *own: int, mounts: str = OURS) -> None:
    """A process with its ids in the namespaces that it is in, this machine's first."""
    folder = root / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "mountinfo").write_text(mounts)
    (folder / "status").write_text("Name:\tx\nNSpid:\t" + "\t".join(map(str, (pid, *own))) + "\n")


@pytest.fixture
def container(tmp_path: Path) -> Container:
    """A container that was not started yet, on a machine with one process, which has the folder mounted as well."""
    process(tmp_path, 50, 50)
    return Container(PLACE, root=tmp_path)


def test_a_container_has_the_processes_with_its_mount(tmp_path: Path, container: Container) -> None:
    process(tmp_path, 101, 1)
    process(tmp_path, 102, 40, 2)
    process(tmp_path, 103, mounts=OTHER)
    (tmp_path / "self").mkdir()
    container.update()
    assert container.every() == {101, 102}
    assert (container.here(1), container.here(2), container.here(103)) == (101, 102, None)
    assert container.peer == "101"


def test_a_process_may_get_its_mounts_after_it_began(tmp_path: Path, container: Container) -> None:
    process(tmp_path, 101, mounts=OTHER)
    container.update()
    assert container.every() == set()
    process(tmp_path, 101, 1)
    container.update()
    assert container.every() == {101}


def test_a_process_that_ended_is_gone(tmp_path: Path, container: Container) -> None:
    process(tmp_path, 101, 1)
    process(tmp_path, 102, 2)
    container.update()
    shutil.rmtree(tmp_path / "102")
    container.update()
    assert (container.is_gone(1), container.is_gone(2)) == (False, True)


def test_nothing_is_gone_of_a_container_whose_processes_cannot_be_seen(container: Container) -> None:
    container.update()
    assert not container.is_gone(1)
    assert container.peer is None
