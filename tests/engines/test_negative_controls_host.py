"""A sound image in a badly started container: limits, variables and mounts are seen, and called by their names."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.broken_worlds import Sound
from tests.engines.torch_breaks import CODE
from tests.world import apt

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_the_sound_image_has_nothing_of_all_that(sound: Sound) -> None:
    found = sound.checks("", started=True)
    wrong = [one for one in found.values() if one["verdict"] not in ("PASS", "SKIP", "INCONCLUSIVE")]
    assert not [(one["id"], one["verdict"], one["reason_code"], one["message"]) for one in wrong]


@pytest.mark.requirement("R47")
def test_a_small_dev_shm_and_half_a_cpu(sound: Sound) -> None:
    found = sound.said("C00,C08,C13", "--shm-size=64k", "--cpus=0.5")
    assert found["C13.shm"] == ("FAIL", "SHM_TOO_SMALL")
    assert found["C00.shm"][0] in ("WARN", "FAIL")
    assert found["C08.throttling"] in (("WARN", "QUOTA_TOO_SMALL"), ("FAIL", "CPU_THROTTLED"))


def test_settings_that_slow_down_or_change_results(sound: Sound) -> None:
    flags = ("--env=BREAK=threads", "--env=TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1")
    found = sound.said("C00,C08", *flags, image=sound.broken(CODE))
    assert found["C08.threads"] == ("WARN", "TOO_MANY_THREADS")
    assert found["C00.env"] == ("WARN", "BAD_CUDA_ENV")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[str]:
    """A block device with a file system that has less room than one block of the check's."""
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(2 << 20)
    device = ""
    for command in (
        [apt.require("mkfs.ext4", "e2fsprogs"), "-q", "-E", "root_owner=1000:1000", str(disk)],
        [apt.require("losetup", "mount"), "--find", "--show", str(disk)],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{command[0]} cannot be used here: {done.stderr.strip()}")
        device = done.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_scratch_that_is_memory_and_scratch_without_room(sound: Sound, full_disk: str) -> None:
    assert sound.said("C22", "--tmpfs=/tmp")["C22.scratch_write"] == ("SKIP", "IN_MEMORY")
    volume = f"--mount=type=volume,target=/tmp,volume-opt=type=ext4,volume-opt=device={full_disk}"
    found = sound.said("C22", volume)
    assert found["C22.scratch_write"] == ("SKIP", "NO_SPACE")
