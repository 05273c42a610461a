"""Time limits that stretch while work waits for a CPU, on a machine of files and with a clock of numbers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pressure: Any = import_module("envkit.smoke.pressure")

PSI = "some avg10=1.53 avg60=0.31 avg300=0.34 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
TICKS = 100  # per second; USER_HZ of every Linux


class Machine:
    """A folder like /proc, and a clock. ``run`` lets time pass in which the run's process 7 works and waits."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.source, self.now = folder, source, 0.0
        self.waited, self.used, self.load = 0.0, 0.0, 0.0
        self.run(0.0)

    def run(self, seconds: float, waited: float = 0.0, used: float = 0.0, load: float = 0.0) -> None:
        """Let time pass: seconds of waiting and of CPU time per second, and the load average."""
        self.now += seconds
        self.waited += seconds * waited
        self.used += seconds * used
        ticks = int(self.used * TICKS)
        self._write("7/stat", f"7 (a ) name) S 1 {' '.join(['0'] * 9)} {ticks} 0 0 0 20 0 1\n")
        if self.source == "PSI":
            self._write("pressure/cpu", PSI.format(int(self.waited * 1e6)))
        if self.source == "schedstat":
            self._write("7/task/7/schedstat", f"{int(self.used * 1e9) + 1} {int(self.waited * 1e9)} 3\n")
        self._write("loadavg", f"{load} 0.5 0.5 3/200 99\n")

    def clock(self) -> float:
        """Return the time in seconds."""
        return self.now

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(autouse=True)
def _two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "cpus", lambda: 2.0)
    monkeypatch.setattr(pressure.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(pressure.os, "sysconf", lambda _name: TICKS)


@pytest.fixture
def limit_of(tmp_path: Path) -> Callable[..., tuple[Machine, Any]]:
    def made(seconds: float, source: str = "PSI") -> tuple[Machine, Any]:
        machine = Machine(tmp_path, source)
        waits = pressure.Waits(7, machine.clock, str(tmp_path))
        assert waits.source == source
        return machine, pressure.Limit(seconds, waits)

    return made


SOURCES = ("PSI", "schedstat", "loadavg")
BUSY = {"waited": 1.0, "used": 0.2, "load": 10.0}


def test_psi_reads_the_some_line() -> None:
    assert pressure.psi_total_us(PSI.format(4692495)) == 4692495


@pytest.mark.parametrize("text", [None, "", "full avg10=0.00 total=7\n", "some avg10=0.00 total=x\n"])
def test_psi_absent_or_odd_is_none(text: str | None) -> None:
    assert pressure.psi_total_us(text) is None


@pytest.mark.parametrize("text", ["", "1 2", "x y z", "0 0 0"])
def test_a_kernel_without_counters_of_the_scheduler_says_nothing(text: str) -> None:
    assert pressure.queued_ns(text) is None


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.5 1 1", 0.0), ("2.0 1 1", 0.0), ("3.0 1 1", 0.5), ("12 1 1", 1.0), ("", 0.0), ("nan 1", 0.0), ("x", 0.0)],
)
def test_the_load_average_gives_a_share_from_more_than_one_task_per_cpu(text: str, share: float) -> None:
    assert pressure.load_share(text, 2) == share


@pytest.mark.parametrize("source", SOURCES)
def test_on_a_quiet_machine_a_limit_is_what_it_says(source: str, limit_of: Any) -> None:
    machine, limit = limit_of(48.0, source)
    machine.run(47.0, used=0.9)
    assert limit.left() == pytest.approx(1.0)
    machine.run(2.0, used=0.9)
    assert limit.left() == pytest.approx(-1.0)
    assert limit.readings()["gate"] == "clean"


@pytest.mark.parametrize("source", SOURCES)
def test_on_a_busy_machine_a_limit_stretches_to_four_times_its_length(source: str, limit_of: Any) -> None:
    machine, limit = limit_of(48.0, source)
    machine.run(190.0, **BUSY)
    assert limit.left() == pytest.approx(0.5)
    machine.run(4.0, **BUSY)
    assert limit.left() == pytest.approx(-0.5)
    assert limit.readings()["gate"] == "CPU pressure 1.00 above 0.10"
    assert limit.readings()["source"] == source


def test_only_the_time_in_which_something_waited_stretches(limit_of: Any) -> None:
    machine, limit = limit_of(48.0)
    machine.run(24.0)
    machine.run(40.0, **BUSY)
    assert limit.left() == pytest.approx(14.0)
    assert limit.readings()["psi_cpu_some"] == pytest.approx(40.0 / 64.0)


def test_what_waited_before_the_limit_began_does_not_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "PSI")
    waits = pressure.Waits(7, machine.clock, str(tmp_path))
    machine.run(100.0, **BUSY)
    limit = pressure.Limit(10.0, waits)
    machine.run(11.0)
    assert limit.left() == pytest.approx(-1.0)
    assert limit.readings()["gate"] == "clean"


def test_a_run_that_has_all_cpus_to_itself_is_not_hindered_by_others(limit_of: Any) -> None:
    """Three threads on two CPUs wait for each other: the machine is not busy, and a run that hangs so is an error."""
    machine, limit = limit_of(48.0)
    machine.run(200.0, waited=1.0, used=1.96)
    assert limit.left() < 0
    assert limit.readings()["own_cpu"] == pytest.approx(0.98, abs=0.01)
    assert limit.readings()["gate"] == "clean"


def test_more_threads_than_one_that_wait_stretch_no_limit_further(limit_of: Any) -> None:
    machine, limit = limit_of(10.0, "schedstat")
    machine.run(20.0, waited=6.0, used=0.3)
    assert limit.left() == pytest.approx(5.0)


def test_a_limit_that_is_reached_is_looked_at_again_soon(limit_of: Any) -> None:
    machine, limit = limit_of(48.0)
    assert limit.pause() == 48.0
    machine.run(300.0)
    assert limit.pause() == pressure.LEAST_S


def test_the_queues_of_threads_are_read_every_second(limit_of: Any) -> None:
    assert limit_of(48.0, "schedstat")[1].pause() == pressure.READ_S


def test_a_limit_ends_on_a_machine_whose_counter_stands_still_or_goes_back(limit_of: Any) -> None:
    machine, limit = limit_of(10.0)
    machine.run(5.0, waited=1.0)
    (machine.folder / "pressure/cpu").write_text(PSI.format(3))
    machine.now += 60.0
    assert limit.left() < 0
    (machine.folder / "pressure/cpu").unlink()
    machine.now += 1.0
    assert limit.left() < 0


def test_the_processes_below_one_are_its_family(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (7, 1), (8, 7), (9, 8), (20, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {parent} {' '.join(['0'] * 9)} 100 50 3 4 20\n")
    assert sorted(pressure.family(7, str(tmp_path))) == [7, 8, 9]
    assert pressure.used_s([7, 8], str(tmp_path)) == pytest.approx(3.14)
    assert pressure.used_s([7, 404], str(tmp_path)) == pytest.approx(1.57)


@pytest.mark.parametrize(("source", "waited"), [("PSI", 3.0), ("schedstat", 3.0), ("loadavg", None)])
def test_what_disturbs_a_measurement_is_measured_and_not_estimated(
    source: str, waited: float | None, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, source)
    waits = pressure.Waits(7, machine.clock, str(tmp_path))
    machine.run(5.0, waited=0.6, load=8.0)
    found = waits.measured()
    assert found is None if waited is None else found == pytest.approx(waited)
