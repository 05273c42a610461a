from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import UsageError
from envkit.verify.again import judge_again
from envkit.verify.baseline import MAX_LAUNCHES, add_run, read_baseline
from envkit.verify.driver import Options
from tests.support.launches import NOISY, record

NAME = "S07.C14.bench.mlp.fp32"
MEASURED = (2.00, 2.02, 1.98, 2.01, 1.99)


def filled(path: Path, values: tuple[float, ...] = MEASURED, **changed: Any) -> Path:
    for place, value in enumerate(values):
        add_run(path, record(value, **changed), by="ada", reason="first", today=f"2026-01-0{1 + place % 2}")
    return path


def held(path: Path, value: float, **changed: Any) -> dict[str, Any]:
    options = Options(only=("C14",), baseline=read_baseline(path))
    tree = record(value, options=options, **changed)
    assert judge_again(tree).changed == ()
    (check,) = [check for check in tree["checks"] if check["id"].startswith("S07")]
    assert check["gates"] is False
    assert check["kind"] == "ratio"
    return dict(check)


def test_a_baseline_keeps_medians_spread_processes_and_days(tmp_path: Path) -> None:
    tree = json.loads(filled(tmp_path / "b.json").read_bytes())
    (entry,) = tree["entries"]
    metric = entry["metrics"]["C14.bench.mlp.fp32@cpu"]
    assert metric["median"] == 2.0
    assert metric["relative_mad"] == pytest.approx(0.005)
    assert (metric["n_processes"], metric["n_days"]) == (5, 2)
    assert entry["machine"]["processor"] == "Test CPU"
    assert [change["accepted_by"] for change in entry["changes"]] == ["ada"] * 5


@pytest.mark.parametrize(
    ("value", "gate", "cpu", "expected"),
    [
        (2.1, "clean", True, ("PASS", None)),
        (1.0, "clean", True, ("PASS", None)),
        (2.3, "clean", True, ("WARN", "SLOWER_THAN_BASELINE")),
        (2.3, NOISY, True, ("WARN", "SLOWER_THAN_BASELINE")),
    ],
)
def test_a_run_is_held_to_it(
    tmp_path: Path, value: float, gate: str, cpu: bool, expected: tuple[str, str | None]
) -> None:
    check = held(filled(tmp_path / "b.json"), value, gate=gate, cpu=cpu)
    assert (check["verdict"], check["reason_code"]) == expected
    assert check["rule"]["type"] == "not_worse_than_baseline"
    assert check["rule"]["baseline"]["median"] == 2.0


def test_a_wall_clock_on_a_busy_machine_says_nothing(tmp_path: Path) -> None:
    check = held(filled(tmp_path / "b.json", cpu=False), 3.0, cpu=False, gate=NOISY)
    assert (check["verdict"], check["reason_code"]) == ("INCONCLUSIVE", "NOISY")


def test_the_spread_widens_what_counts(tmp_path: Path) -> None:
    check = held(filled(tmp_path / "b.json", (2.0, 2.2, 1.8, 2.2, 1.8)), 2.5)
    assert check["verdict"] == "PASS"
    assert check["derived"]["least"] == pytest.approx(0.3)


def test_another_machine_has_no_baseline_and_it_says_so(tmp_path: Path) -> None:
    check = held(filled(tmp_path / "b.json"), 9.0, host={"cpu_model": "Other CPU"})
    assert (check["id"], check["verdict"], check["reason_code"]) == ("S07", "SKIP", "NO_BASELINE")
    assert "has no entry for machine h:" in check["message"]
    assert check["message"].endswith("; other entries: 1")


def test_fewer_than_five_launches_are_no_baseline_yet(tmp_path: Path) -> None:
    check = held(filled(tmp_path / "b.json", MEASURED[:4]), 9.0)
    assert (check["id"], check["verdict"], check["reason_code"]) == (NAME, "SKIP", "BASELINE_THIN")


def test_a_metric_that_is_gone_is_named(tmp_path: Path) -> None:
    path = filled(tmp_path / "b.json")
    options = Options(only=("C14",), baseline=read_baseline(path))
    tree = record(2.0, options=options, check_id="C14.bench.cnn.fp32")
    (check,) = [check for check in tree["checks"] if check["id"].startswith("S07")]
    assert (check["reason_code"], check["message"]) == (
        "NOT_MEASURED",
        "not measured this time: C14.bench.mlp.fp32@cpu",
    )


def test_holding_a_run_to_a_baseline_changes_nothing_in_it(tmp_path: Path) -> None:
    path = filled(tmp_path / "b.json")
    before = path.read_bytes()
    held(path, 2.3)
    assert path.read_bytes() == before


def test_a_second_machine_gets_its_own_entry_and_the_first_stays(tmp_path: Path) -> None:
    path = filled(tmp_path / "b.json")
    first = json.loads(path.read_bytes())["entries"][0]
    add_run(path, record(4.0, host={"cpu_model": "Other CPU"}), by="ada", reason="x", today="2026-01-03")
    entries = json.loads(path.read_bytes())["entries"]
    assert entries[0] == first
    assert len(entries) == 2


def test_a_run_counts_once_and_a_noisy_wall_clock_never(tmp_path: Path) -> None:
    path, tree = tmp_path / "b.json", record(2.0)
    add_run(path, tree, by="ada", reason="x", today="2026-01-01")
    with pytest.raises(UsageError, match="already has the run"):
        add_run(path, tree, by="ada", reason="x", today="2026-01-01")
    with pytest.raises(UsageError, match="can be a baseline"):
        add_run(path, record(2.0, cpu=False, gate=NOISY), by="ada", reason="x", today="2026-01-01")


def test_a_baseline_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = filled(tmp_path / "b.json", MEASURED[:1])
    tree = json.loads(path.read_bytes())
    metric = tree["entries"][0]["metrics"]["C14.bench.mlp.fp32@cpu"]
    metric["launches"] *= MAX_LAUNCHES
    path.write_text(json.dumps(tree))
    add_run(path, record(3.0), by="ada", reason="x", today="2026-01-01")
    launches = json.loads(path.read_bytes())["entries"][0]["metrics"]["C14.bench.mlp.fp32@cpu"]["launches"]
    assert (len(launches), launches[-1]["value"]) == (MAX_LAUNCHES, 3.0)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"schema": "envkit.baseline/2", "entries": []}',
        '{"schema": "envkit.baseline/1", "entries": [{"hw": 1, "policy": "p", "metrics": {}, "changes": []}]}',
        '{"schema": "envkit.baseline/1", "entries": [{"hw": "h", "policy": "p", "metrics": {"x": {"launches": []}}}]}',
    ],
)
def test_a_file_that_holds_no_baselines_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(UsageError, match=r"b\.json is not (a baseline file|JSON)"):
        read_baseline(tmp_path / "b.json")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_baseline(tmp_path / "b.json")
