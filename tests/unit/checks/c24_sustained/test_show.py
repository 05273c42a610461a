from __future__ import annotations

from envkit.checks.c24_sustained.show import sustained
from envkit.report.measured import sheets
from tests.support.records import check, gpu_record
from tests.support.shown import named, of


def test_a_load_shows_its_clock_and_what_the_device_said() -> None:
    tree = gpu_record()
    load = sustained(of(tree["checks"], "C24"))
    assert load is not None
    assert (load.boost, load.celsius, len(load.clocks)) == (1980, 64, 200)
    found = named(tree, "Sustained load")
    assert found.rows == [["60 s", "771", "744", "1740", "1980", "64", "694"]]
    assert found.notes == (
        "During the load: no Xid messages, no uncorrectable memory errors, no PCIe replays.",
        "The clock was limited by sw_power_cap.",
    )
    check(tree, "C24.telemetry")["observed"].update(xids=[79], uncorrected_ecc=None)
    assert named(tree, "Sustained load").notes[0] == "During the load: 1 Xid messages, no PCIe replays."


def test_a_load_without_telemetry_has_its_rates() -> None:
    tree = gpu_record()
    kept = [item for item in tree["checks"] if item["id"] != "C24.telemetry"]
    (found,) = [sheet for sheet in sheets(kept) if sheet.title.startswith("Sustained")]
    assert found.rows == [["60 s", "771", "744", "-", "-", "-", "-"]]
    assert found.notes == ()
