from __future__ import annotations

from envkit.checks.c22_storage.show import accesses
from tests.support.records import check, gpu_record
from tests.support.shown import named, of


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
