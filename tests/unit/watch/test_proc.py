"""Texts of /proc as kernels write them, and samples made of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envkit.watch import proc, sampling
from envkit.watch.family import Tree
from tests.support.nvml import UUID, session
from tests.support.watched import card, sample

STAT = "42 (a) b) R 1 42 42 0 -1 4194304 900 0 7 0 150 50 0 0 20 0 3 0 12345 1000000 250 18446744073709551615"
TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def test_a_stat_line_is_read_behind_a_name_with_brackets() -> None:
    assert proc.parse_stat(STAT) == (200 / TICK, 7, 250 * PAGE)
    assert proc.parse_stat("") is None


def test_the_time_without_a_processor_is_the_second_number_of_schedstat() -> None:
    assert proc.parse_schedstat("3000000000 1500000000 7\n") == (3.0, 1.5)
    assert proc.parse_schedstat("") is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("throttled_usec 1500000\n", 1.5), ("throttled_time 1500000000\n", 1.5), ("", None)]
)
def test_both_forms_of_cpu_stat_give_seconds(text: str, seconds: float | None) -> None:
    assert proc.parse_throttled(f"nr_periods 3\n{text}") == seconds


def test_a_process_that_is_gone_has_no_use(tmp_path: Path) -> None:
    assert proc.used(42, root=tmp_path) is None


def test_where_the_kernel_tells_less_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text(STAT)
    found = proc.used(42, root=tmp_path)
    assert found is not None
    assert (found.main_queued_s, found.read_bytes, found.faults) == (None, None, 7)


def test_bytes_that_came_from_disks_are_not_those_of_the_cache() -> None:
    assert proc.parse_read_bytes("rchar: 900\nread_bytes: 4096\n") == 4096


def test_a_sample_has_what_the_driver_tells_of_each_gpu() -> None:
    driver = session(
        nvmlDeviceGetUtilizationRates=({"gpu": 40, "memory": 30},),
        nvmlDeviceGetPcieThroughput=(2_000_000,),
        nvmlDeviceGetCurrentClocksThrottleReasons=(0x40,),
        nvmlDeviceGetPowerUsage=(350_000,),
    )
    (found,) = sampling.cards(driver)
    assert (found.util, found.memory_util, found.watts, found.rx_mb_per_s) == (40, 30, 350.0, 2000.0)
    assert (found.events, found.sm_mhz, found.memory_used) == (("hw_thermal_slowdown",), None, None)


def test_without_a_driver_there_is_no_card() -> None:
    assert list(sampling.cards(None)) == []
    assert sampling.machine(None).gpus == ()


def test_the_machine_is_described_with_its_gpus_and_without_their_ids() -> None:
    found = sampling.machine(session(nvmlDeviceGetName="NVIDIA T4", nvmlDeviceGetMaxClockInfo=(1590,)))
    assert found.gpus[0]["name"] == "NVIDIA T4"
    assert found.gpus[0]["max_sm_mhz"] == 1590
    assert UUID not in str(found.gpus)


def test_samples_merge_to_half_as_many_weighted_by_their_time() -> None:
    first = sample(at_s=1.0, seconds=1.0, cpus=4.0, steps=10.0, gpus=(card(util=50.0, events=("hw_slowdown",)),))
    second = sample(at_s=4.0, seconds=3.0, cpus=0.0, steps=2.0, gpus=(card(util=100.0),))
    left, right = sampling.merged([first, second, sample(at_s=5.0)])
    assert (left.at_s, left.seconds, left.cpus, left.steps) == (4.0, 4.0, 1.0, 12.0)
    assert (left.gpus[0].util, left.gpus[0].events) == (75.0, ("hw_slowdown",))
    assert right == sample(at_s=5.0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_sampler_counts_from_its_last_look_and_stays_small() -> None:
    clock = Clock()
    sampler = sampling.Sampler(Tree(os.getpid()), 0.0, None, clock)
    for _ in range(1300):
        clock.now += 0.5
        sampler.taken.append(sample(at_s=clock.now))
        if len(sampler.taken) > 1200:
            break
    clock.now += 0.5
    sampler.take((), (), 0.25, 3.0)
    assert len(sampler.taken) <= 601
    assert (sampler.taken[-1].waiting, sampler.taken[-1].at_s) == pytest.approx((0.25, clock.now))


def test_no_time_is_no_sample() -> None:
    sampler = sampling.Sampler(Tree(os.getpid()), 0.0, None, Clock())
    sampler.take((), (), None, None)
    assert sampler.taken == []
