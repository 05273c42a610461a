"""How many builds at once, and what that follows from."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.fleet import concurrency
from envkit.fleet.concurrency import DISK, MEMORY, ParallelBuilds, Resources, parallel_builds, resources_here
from envkit.ground.errors import EnvironmentProblem

RESOURCES = Resources(processors=8, memory=64 << 30, disk=500 << 30, folder=Path("/cache"))


@pytest.mark.parametrize(
    ("resources", "images", "jobs", "why"),
    [
        (RESOURCES, 24, 8, "8 processors"),
        (RESOURCES, 3, 3, "3 images"),
        (RESOURCES, 1, 1, "1 image"),
        (RESOURCES, 0, 1, "0 images"),
        (replace(RESOURCES, processors=1), 24, 1, "1 processor"),
        (replace(RESOURCES, memory=3 * MEMORY), 24, 3, "2.2 GB of memory, 0.7 GB for each"),
        (replace(RESOURCES, memory=0), 24, 1, "0.0 GB of memory, 0.7 GB for each"),
        (replace(RESOURCES, disk=2 * DISK), 24, 2, "13 GB free in /cache, 6 GB for each"),
        (replace(RESOURCES, disk=DISK // 2), 24, 1, "3 GB free in /cache, 6 GB for each"),
    ],
)
def test_the_least_room_decides_and_is_named(resources: Resources, images: int, jobs: int, why: str) -> None:
    assert parallel_builds(resources, images) == ParallelBuilds(jobs=jobs, why=why)


def test_what_is_asked_for_is_taken() -> None:
    assert parallel_builds(RESOURCES, 24, 40) == ParallelBuilds(jobs=24, why="24 images")
    assert parallel_builds(replace(RESOURCES, disk=0, memory=0), 24, 12) == ParallelBuilds(jobs=12, why="--jobs")


def test_a_full_disk_is_told_before_anything_begins() -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        parallel_builds(replace(RESOURCES, disk=1 << 30), 24)
    assert caught.value.message == "/cache has 1.1 GB free, too little for the downloads and layers of a build"
    assert caught.value.hint == "envkit cache prune, set XDG_CACHE_HOME to a larger disk, or --jobs 1 to try"


@given(st.integers(1, 256), st.integers(0, 1 << 42), st.integers(DISK // 4, 1 << 46), st.integers(0, 1000))
def test_there_is_always_one_and_never_more_than_fit(processors: int, memory: int, disk: int, images: int) -> None:
    found = parallel_builds(Resources(processors=processors, memory=memory, disk=disk, folder=Path("/cache")), images)
    assert 1 <= found.jobs <= max(processors, 1)
    assert found.jobs <= max(images, 1)
    assert found.jobs * MEMORY <= max(memory, MEMORY)
    assert found.jobs * DISK <= max(disk, DISK)


def test_this_machine_has_room(tmp_path: Path) -> None:
    found = resources_here(tmp_path / "not" / "yet")
    assert found.folder == tmp_path
    assert min(found.processors, found.memory, found.disk) > 0


def test_a_container_has_what_its_group_may_take(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n")
    assert concurrency._memory(meminfo, tmp_path) == 20_000_000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert concurrency._memory(meminfo, tmp_path) == 20_000_000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    assert concurrency._memory(meminfo, tmp_path) == 1_000_000
