from __future__ import annotations

import os
from pathlib import Path

import pytest

from envkit.ground.pressure import BUSY, STRETCH, Pressure
from envkit.smoke import pressure as inside

PSI = "some avg10={} avg60=1.00 avg300=1.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


class Machine:
    """A machine's /proc, and its clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 0.0
        (root / "proc/pressure").mkdir(parents=True)

    def says(self, *, avg10: object = 0.0, waited_s: float = 0.0) -> None:
        """Set what PSI says."""
        (self.root / "proc/pressure/cpu").write_text(PSI.format(avg10, int(waited_s * 1e6)))

    def made(self) -> Pressure:
        """Return a reading that begins now."""
        return Pressure(self.root, lambda: self.now)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return Machine(tmp_path)


def test_a_run_on_a_busy_machine_is_told_by_its_share(machine: Machine) -> None:
    machine.says(waited_s=100.0)
    reading = machine.made()
    machine.says(waited_s=139.0)
    machine.now = 40.0
    assert reading.share() == pytest.approx(0.975)
    assert reading.busy() == "CPU pressure 0.97 above 0.10"


def test_what_waited_before_does_not_count(machine: Machine) -> None:
    machine.says(avg10=90.0, waited_s=100.0)
    reading = machine.made()
    machine.says(waited_s=103.0)
    machine.now = 40.0
    assert reading.busy() is None


def test_a_limit_stretches_with_the_pressure_when_it_begins(machine: Machine) -> None:
    for avg10, factor in ((0.0, 1.0), (50.0, 2.5), (100.0, 4.0)):
        machine.says(avg10=avg10)
        assert machine.made().stretched(100.0) == pytest.approx(100.0 * factor)


@pytest.mark.parametrize(
    ("load", "busy"), [("1.9 1 1", False), ("2.1 1 1", False), ("2.3 1 1", True), ("16 1 1", True)]
)
def test_without_psi_the_load_average_decides(load: str, busy: bool, machine: Machine) -> None:
    (machine.root / "proc/loadavg").write_text(load)
    assert (machine.made().busy() is not None) == busy


@pytest.mark.parametrize("text", ["", "some avg10=x total=y\n", "some\n", "full avg10=99.0 total=9\n"])
def test_a_machine_that_says_nothing_is_not_busy(text: str, machine: Machine) -> None:
    (machine.root / "proc/pressure/cpu").write_text(text)
    reading = machine.made()
    machine.now = 10.0
    assert reading.busy() is None
    assert reading.stretched(60.0) == 60.0


def test_inside_and_outside_have_the_same_limit_and_factor() -> None:
    assert (inside.PSI_LIMIT, inside.STRETCH) == (BUSY, STRETCH)
