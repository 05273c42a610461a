from __future__ import annotations

from typing import Any

import pytest

from tests.support.verdicts import FAIL, PASS, WARN, said

MIB = 1 << 20


PINNED = {
    "pinned_bytes": 256 * MIB,
    "cap_bytes": 256 * MIB,
    "need_bytes": 64 * MIB,
    "cgroup_bytes": None,
    "is_pinned": True,
    "error": None,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (PASS, None)),
        ({"need_bytes": None}, (PASS, None)),
        ({"pinned_bytes": 128 * MIB, "error": "cudaErrorMemoryAllocation"}, (PASS, None)),
        ({"pinned_bytes": 32 * MIB, "error": "cudaErrorMemoryAllocation"}, (FAIL, "PINNING_FAILED")),
        ({"pinned_bytes": 0, "need_bytes": None, "error": "x"}, (WARN, "PINNING_FAILED")),
        ({"is_pinned": False}, (FAIL, "NOT_PINNED")),
        ({"need_bytes": 2048 * MIB}, (WARN, "PINNED_NEED_NOT_TRIED")),
        ({"cgroup_bytes": 256 * MIB}, (PASS, None)),
        ({"cgroup_bytes": 200 * MIB}, (WARN, "PINNED_SHARE")),
    ],
)
def test_pinned(changed: dict[str, Any], expected: tuple[str, str | None]) -> None:
    observed = {**PINNED, **changed}
    if changed.get("error"):
        observed["is_pinned"] = changed.get("is_pinned", True)
    assert said("C09.pinned", observed, subject="gpu:0") == expected
