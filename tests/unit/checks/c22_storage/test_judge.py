from typing import Any

import pytest

from tests.support.verdicts import FAIL, WARN, found, said

READ = {"exact": True, "filesystem": "ext4", "direct": True, "bytes": 512 << 20, "gb_per_s": 1.04}


RANDOM = {"exact": True, "filesystem": "ext4", "direct": True, "reads_per_s": 8666.0, "median_ms": 0.05, "p99_ms": 1.6}


def test_storage_is_told_with_its_file_system() -> None:
    assert found("C22.image_read", READ).message == "512 MiB sequential read: 1.04 GB/s (ext4)"
    written = {key: value for key, value in READ.items() if key != "direct"}
    assert found("C22.scratch_write", written).message == "512 MiB write and sync: 1.04 GB/s (ext4)"
    assert found("C22.image_random", RANDOM).message.startswith("random reads of 4 KiB: 8666 reads/s")


@pytest.mark.parametrize("part", ["image_read", "scratch_write"])
def test_bytes_that_come_back_changed_fail(part: str) -> None:
    finding = found(f"C22.{part}", {**READ, "exact": False, "direct": False})
    assert (finding.verdict, finding.reason_code, finding.rule["gates"]) == (FAIL, "BYTES_CHANGED", False)


@pytest.mark.parametrize(("part", "observed"), [("image_read", READ), ("image_random", RANDOM)])
def test_what_the_page_cache_may_have_answered_is_marked(part: str, observed: dict[str, Any]) -> None:
    assert said(f"C22.{part}", {**observed, "direct": False}) == (WARN, "PAGE_CACHE")
