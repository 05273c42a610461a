from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.c11_overlap.show import overlap
from envkit.checks.c18_compile.show import compiled
from envkit.checks.c20_collectives.show import process_groups
from envkit.checks.c21_jpeg.show import decodings
from envkit.checks.c22_storage.show import accesses
from envkit.checks.c23_training.show import step_time
from envkit.checks.c24_sustained.show import sustained
from envkit.checks.shown import Sheet
from envkit.ground.text import cells
from envkit.report.layout import _measured
from envkit.report.lines import plain
from envkit.report.measured import sheets
from tests.support.records import check, cpu_record, gpu_record


def of(checks: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The findings of one check."""
    return [item for item in checks if item["id"].startswith(name)]


def named(tree: dict[str, Any], begin: str) -> Sheet:
    (found,) = [sheet for sheet in sheets(tree["checks"]) if sheet.title.startswith(begin)]
    return found


def test_every_sheet_has_a_title_and_rows_as_wide_as_its_head() -> None:
    found = sheets(gpu_record()["checks"])
    assert [sheet.title for sheet in found] == [
        "Copies with pinned and pageable memory, GB/s",
        "Copy/compute overlap",
        "Data loading, samples per second",
        "Mixed precision, one training step",
        "Matrix products",
        "Memory kept for the backward pass",
        "torch.compile, one small function",
        "Collectives",
        "Where a training step's time goes",
        "JPEG decoders, images per second on one thread",
        "Storage, past the page cache",
        "Sustained load, bfloat16",
    ]
    for sheet in found:
        assert {len(row) for row in sheet.rows} == {len(sheet.head)}, sheet.title


def test_what_was_not_measured_has_no_sheet() -> None:
    assert sheets(cpu_record()["checks"]) == []


def test_the_tables_fit_eighty_columns() -> None:
    lines = [plain(line) for line in _measured(gpu_record()["checks"], 80)]
    assert [line for line in lines if cells(line) > 80] == []


def test_the_loader_is_recommended_for_this_machine_with_the_effect_of_each_option() -> None:
    found = named(gpu_record(), "Data loading")
    use, effects, left = found.notes[:3]
    assert use == (
        "Recommended on this machine, bound by decoding: num_workers=8, prefetch_factor=2, persistent_workers=True:"
        " 3904 samples/s; up to 6.08x the throughput of num_workers=0; the image declares 4 workers."
    )
    assert effects == (
        "Effect of each option, bound by decoding: prefetch_factor 1.02x, persistent_workers 1.23x, pin_memory 0.96x."
    )
    assert left == "Settings skipped for lack of time, bound by decoding: 1."
    assert found.noisy


def test_the_declared_number_of_workers_is_not_repeated_where_it_is_the_recommended_one() -> None:
    tree = gpu_record()
    check(tree, "C12.matrix.cpu")["observed"]["declared_num_workers"] = 8
    assert "the image declares" not in named(tree, "Data loading").notes[0]


def test_a_step_names_its_bottleneck_and_what_to_do() -> None:
    found = named(gpu_record(), "Where a training")
    assert found.rows[1] == ["of it waiting for data", "13.1", "32%"]
    assert found.notes[0] == "Starved share 35%: a step takes 41.2 ms, and 26.7 ms without waiting for its loader."
    assert found.notes[1].startswith("Bottleneck data: the loader is the bottleneck: starved 35% of 41.2 ms a step")
    assert found.advice[0].startswith("The loader alone is slower than the device")


def test_a_loss_that_does_not_fall_is_no_advice_on_the_bottleneck() -> None:
    tree = gpu_record()
    check(tree, "C23.training").update(verdict="FAIL", message="the loss does not fall", advice=["look at C05"])
    found = named(tree, "Where a training")
    assert found.notes[1] == "Bottleneck data."
    assert found.advice == ()


def test_parts_that_overlap_are_said_to() -> None:
    tree = gpu_record()
    check(tree, "C23.training")["observed"]["data_wait_s"] = 0.04
    step = step_time(of(tree["checks"], "C23"))
    assert step is not None
    assert step.overlapping
    assert named(tree, "Where a training").notes[2].startswith("The host waits for data while the device")


def test_overlap_compiler_and_decoders_are_read() -> None:
    checks = gpu_record()["checks"]
    found = overlap(of(checks, "C11"))
    assert found is not None
    assert (found.copy_ms, found.kernels_ms, found.both_ms, found.one_stream_ms) == (4.86, 4.95, 5.05, 9.83)
    assert dict(found.shares) == {"pinned": 0.979, "same_stream": -0.004, "pageable": 0.01}
    assert named(gpu_record(), "Copy/compute").rows[1] == ["pinned memory, one stream", "0%"]
    made = compiled(of(checks, "C18"))
    assert made is not None
    assert (made.first_s, made.kernels) == (8.31, 6)
    assert made.speed_up == pytest.approx(0.128 / 0.071)
    small, large = decodings(of(checks, "C21"))
    assert dict(small.rates)["simplejpeg"] == pytest.approx(1e3 / 1.3)
    assert (large.width, large.height, large.differences["torchvision"]) == (1920, 1080, 1)


def test_a_decoder_that_failed_is_not_shown() -> None:
    tree = gpu_record()
    for size in ("small", "large"):
        check(tree, f"C21.{size}")["observed"]["decode_ms"].pop("torchvision")
    assert [row[0] for row in named(tree, "JPEG").rows] == ["pillow", "simplejpeg"]


def test_decoders_come_with_what_is_missing_and_what_would_pay() -> None:
    found = named(gpu_record(), "JPEG")
    share, missing = found.notes
    assert share.startswith("Decoding with Pillow takes 66% at 500 x 375, 95% at 1920 x 1080 of preparing an image")
    assert missing == "Not installed: opencv."
    assert found.advice == (
        "500 x 375: simplejpeg would decode 1.62 times as fast.",
        "1920 x 1080: simplejpeg would decode 1.69 times as fast.",
    )


def test_groups_are_one_row_each_and_one_that_hangs_is_none() -> None:
    tree = gpu_record()
    gloo, nccl = process_groups(of(tree["checks"], "C20"))
    assert (gloo.backend, gloo.ranks, gloo.wrong, gloo.bus) == ("gloo", 2, 0, None)
    assert (nccl.backend, nccl.ranks, nccl.bus) == ("nccl", 8, 472.5)
    kept = [item for item in tree["checks"] if item["id"] != "C20.bandwidth.nccl"]
    for part in ("allreduce", "ddp"):
        check(tree, f"C20.{part}.nccl")["observed"]["outcome"] = "timeout"
    (left,) = [sheet for sheet in sheets(kept) if sheet.title == "Collectives"]
    assert left.rows == [["gloo", "2", "0", "2.2e-16"]]


def test_storage_names_its_file_system_and_a_page_cache_that_may_have_answered() -> None:
    tree = gpu_record()
    assert [(item.what, item.rate, item.cached) for item in accesses(of(tree["checks"], "C22"))] == [
        ("sequential read", 2.31, False),
        ("random reads of 4 KiB", 11200.0, False),
    ]
    check(tree, "C22.image_read")["observed"]["direct"] = False
    found = named(tree, "Storage")
    assert found.rows[0] == ["sequential read", "overlay", "2.31 GB/s"]
    assert found.notes == ("May include the page cache: sequential read.",)


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


def test_the_record_is_judged_without_a_malformed_observation() -> None:
    assert [item["id"] for item in gpu_record()["checks"] if item["verdict"] == "ERROR"] == ["C17"]
