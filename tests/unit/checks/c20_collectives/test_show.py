from __future__ import annotations

from envkit.checks.c20_collectives.show import process_groups
from envkit.report.measured import sheets
from tests.support.records import check, gpu_record
from tests.support.shown import of


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
