"""The prepared records of the report's tests have the shapes that the payload makes, and the report reads both."""

from __future__ import annotations

from typing import Any

import pytest

from envkit.report.measured import sheets
from tests.support.measurements import collectives, compiler, decoders, loaders, storage, training
from tests.support.payloads import context, module, observe

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")


def names(items: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The fields of each observation that ran."""
    return {item["id"]: set(item["observed"]) for item in items if item["status"] == "ran"}


@pytest.mark.parametrize(
    ("check", "prepared"),
    [
        pytest.param("c18_compile", [compiler()], marks=pytest.mark.long),
        ("c20_collectives", collectives()),
        ("c21_jpeg", decoders()),
        ("c22_storage", storage()),
        pytest.param("c23_training", [training()], marks=pytest.mark.long),
    ],
)
def test_a_prepared_observation_has_the_fields_of_a_real_one(check: str, prepared: list[dict[str, Any]]) -> None:
    if check == "c21_jpeg":
        pytest.importorskip("PIL", reason="JPEG is decoded with Pillow: pip install pillow")
    real = list(observe(check, context("deep")).values())
    expected = names(prepared)
    found = {name: fields for name, fields in names(real).items() if name in expected}
    assert found == {name: expected[name] for name in found}
    assert found or all(item["status"] == "skip" for item in real)
    readable = [{**item, "derived": {}, "rule": {}, "message": "", "advice": [], "verdict": "PASS"} for item in real]
    assert bool(sheets(readable)) == bool(found)


@pytest.mark.long
def test_a_prepared_matrix_has_the_cells_of_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = module("loader_bench")
    monkeypatch.setattr(bench, "MATRIX_S", 0.2)
    monkeypatch.setattr(bench, "SWEEP_S", 0.1)
    real = [item for item in bench.run(context()) if item["id"].startswith("C12.matrix")]
    prepared = [item for item in loaders() if item["id"].startswith("C12.matrix")]
    assert names(real) == names(prepared)
    assert set(real[0]["observed"]["cells"][0]) == set(prepared[0]["observed"]["cells"][0])
    assert set(real[0]["observed"]["cells_left_out"][0]) == set(prepared[0]["observed"]["cells_left_out"][0])
