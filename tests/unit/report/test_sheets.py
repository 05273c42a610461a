from __future__ import annotations

from envkit.ground.text import cells
from envkit.report.measured import sheets
from envkit.report.text import _measured, plain
from tests.support.records import cpu_record, gpu_record


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


def test_the_record_is_judged_without_a_malformed_observation() -> None:
    assert [item["id"] for item in gpu_record()["checks"] if item["verdict"] == "ERROR"] == ["C17"]
