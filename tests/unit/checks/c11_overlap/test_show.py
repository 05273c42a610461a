from __future__ import annotations

from envkit.checks.c11_overlap.show import overlap
from tests.support.records import gpu_record
from tests.support.shown import named, of


def test_overlap_is_read() -> None:
    checks = gpu_record()["checks"]
    found = overlap(of(checks, "C11"))
    assert found is not None
    assert (found.copy_ms, found.kernels_ms, found.both_ms, found.one_stream_ms) == (4.86, 4.95, 5.05, 9.83)
    assert dict(found.shares) == {"pinned": 0.979, "same_stream": -0.004, "pageable": 0.01}
    assert named(gpu_record(), "Copy/compute").rows[1] == ["pinned memory, one stream", "0%"]


def test_a_share_that_cannot_be_is_unclear() -> None:
    # Recorded on an H200: copies from pageable memory took 60.6 ms beside kernels and 65.3 ms alone.
    record = gpu_record()
    (check,) = of(record["checks"], "C11")
    check["observed"]["overlap"]["pageable"] = 1.984
    assert named(record, "Copy/compute").rows[2] == ["pageable memory, two streams", "unclear: the copy's time varied"]
