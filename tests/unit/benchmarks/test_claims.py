import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims.__main__ import main
from benchmarks.claims.figures import FIGURES
from benchmarks.claims.model import Claim, load
from benchmarks.claims.page import (
    BEGIN,
    END,
    PAGE,
    RESULTS,
    answer,
    chosen,
    committed,
    machines,
    page,
    shown_part,
    tables,
    text,
)
from benchmarks.claims.reading import Part
from envkit.verify.record import seal
from tests.support.records import check, cpu_record, gpu_record

CLEAN = {"gate": "clean"}
BUSY = {"gate": "CPU pressure 0.42 above 0.10"}
CLAIMS = {claim.id: claim for claim in load()}
# Folders that every machine or image has; any other root is somebody's own.
COMMON = {"bin", "dev", "etc", "lib", "lib64", "opt", "proc", "sys", "usr"}
ROOTS = re.compile(r"(?<![\w./])/([\w.+-]+)")


def parts(name: str, record: dict[str, Any]) -> dict[str, Part]:
    return {part.label: part for part in answer(CLAIMS[name], record).parts}


def finding(check_id: str, observed: dict[str, Any], **rest: Any) -> dict[str, Any]:
    base = {"verdict": "PASS", "reason_code": None, "status": "ran", "message": "", "derived": {}, "noise": CLEAN}
    return {"id": check_id, "observed": observed, "stats": None, "samples": None, **base, **rest}


def record_of(*findings: dict[str, Any], gpus: int = 1, logical: int = 4) -> dict[str, Any]:
    return {"checks": list(findings), "env": {"gpu": [{"name": "H200"}] * gpus, "host": {"logical": logical}, "sw": {}}}


def cell(workers: int, rate: float, **options: Any) -> dict[str, Any]:
    base = {"persistent_workers": bool(workers), "pin_memory": False, "prefetch_factor": 2 if workers else None}
    return {"num_workers": workers, "samples_per_s": rate, "epochs_ms": [100.0, 110.0], **base, **options}


def test_the_tables_of_the_page_are_those_of_the_committed_records() -> None:
    found = PAGE.read_text(encoding="utf-8")
    assert found.count(BEGIN) == found.count(END) == 1
    assert found == page(committed()), "run: python -m benchmarks.claims --write"


def test_every_figure_belongs_to_a_claim_and_every_claim_has_its_figure() -> None:
    assert {claim.figure for claim in CLAIMS.values() if claim.figure} == set(FIGURES)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_record_names_no_machine_and_no_person(path: Path) -> None:
    texts = list(strings(json.loads(path.read_text(encoding="utf-8"))))
    texts = [item for item in texts if item != "/tmp"]  # a working folder of images
    assert {root for item in texts for root in ROOTS.findall(item)} <= COMMON
    assert not [item for item in texts if "torchinductor_" in item or "~" in item[:1]]


def strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from strings(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from strings(value)
    elif isinstance(tree, str):
        yield tree


@pytest.mark.parametrize(
    "item", ["/home/ada/x", "--json=/tmp/r.json", "host:/root/env", "a /work/b", "PATH=/usr/bin:/srv/x"]
)
def test_a_path_of_ones_own_would_be_seen(item: str) -> None:
    assert set(ROOTS.findall(item)) - COMMON


def test_without_a_gpu_a_claim_on_transfers_says_so_and_has_no_number() -> None:
    for name in ("pinned-30", "numactl"):
        skipped = finding("C10", {}, status="skip", verdict="SKIP", reason_code="NO_GPU", message="no CUDA device")
        found = answer(CLAIMS[name], record_of(skipped, gpus=0))
        assert (found.parts, found.why) == ((), "not measured: no GPU")


def test_a_check_that_did_not_run_is_not_a_figure() -> None:
    assert answer(CLAIMS["amp-memory"], cpu_record()).why == "not in this record: C16 did not run"


def test_a_check_left_out_on_purpose_did_not_run_either() -> None:
    left = finding("C10", {}, status=None, verdict="SKIP", reason_code="NOT_SELECTED", message="left out by --only")
    gone = finding("C10", {}, status="skip", verdict="SKIP", reason_code="NO_GPU", message="no CUDA device")
    assert answer(CLAIMS["numactl"], record_of(left)).why == "not in this record: C10 did not run"
    whole, part = record_of(gone, gpus=0), record_of(left, gpus=0)
    records = {"a.new": {**part, "run": {"started": "2027"}}, "a": {**whole, "run": {"started": "2026"}}}
    assert chosen(CLAIMS["numactl"], records)[1].why == "not measured: no GPU"


def test_another_reason_is_given_in_its_own_words() -> None:
    gone = finding("C21", {}, status="skip", verdict="SKIP", reason_code="PILLOW_ABSENT", message="no Pillow here")
    assert answer(CLAIMS["turbojpeg"], record_of(gone)).why == "not measured: no Pillow here"


def test_page_locked_gain_is_the_ratio_of_the_medians_with_the_quartiles_of_both() -> None:
    record = gpu_record()
    slow, fast = (check(record, f"C10.h2d_{kind}_256MiB")["stats"] for kind in ("pageable", "pinned"))
    part = parts("pinned-30", record)["256 MiB"]
    assert part.value == slow["median"] / fast["median"]
    assert part.spread == (slow["p25"] / fast["p75"], slow["p75"] / fast["p25"])


def test_a_busy_machine_gives_no_number() -> None:
    record = gpu_record()
    check(record, "C10.h2d_pageable_256MiB")["noise"] = BUSY
    found = parts("pinned-30", record)
    assert found["256 MiB"].value is None
    assert found["256 MiB"].why == "inconclusive: CPU pressure 0.42 above 0.10"
    assert found["64 MiB"].value is not None


def test_a_control_that_did_not_hold_gives_no_number() -> None:
    wrong = finding("C16.batch8", {"batch": 8, "saved_ratio": 0.5}, verdict="ERROR", message="control did not fail")
    (part,) = parts("amp-memory", record_of(wrong)).values()
    assert (part.value, part.why) == (None, "inconclusive: control did not fail")


def test_overlap_on_one_stream_is_what_the_claim_is_about() -> None:
    shares = {"overlap": {"pinned": 0.93, "same_stream": 0.02, "pageable": 0.1}}
    found = parts("non-blocking", record_of(finding("C11.overlap", shares)))
    assert [part.label for part in found.values() if part.claimed] == ["same stream"]
    assert not CLAIMS["non-blocking"].holds(found["same stream"].value or 0)


def test_more_than_the_whole_is_not_hidden() -> None:
    shares = {"overlap": {"pinned": 0.995, "same_stream": 0.0, "pageable": 1.984}}
    found = parts("non-blocking", record_of(finding("C11.overlap", shares)))
    pageable = found["two streams, pageable source"]
    assert (pageable.value, pageable.why) == (None, "inconclusive: the copy alone took longer than both")


def test_rules_for_workers_are_held_to_the_best_of_the_sweep() -> None:
    cells = [cell(0, 100.0), cell(3, 60.0), cell(4, 200.0)]
    record = record_of(finding("C12.matrix.cpu", {"cells": cells}))
    (by_gpu,) = parts("workers-per-gpu", record).values()
    (by_core,) = parts("workers-per-core", record).values()
    assert (by_gpu.value, by_core.value) == (1.0, 0.3)
    assert by_core.spread == pytest.approx((0.3 * 105 / 110, 0.3 * 105 / 100))


def test_a_number_of_workers_that_was_not_tried_is_not_guessed() -> None:
    record = record_of(finding("C12.matrix.cpu", {"cells": [cell(0, 1.0), cell(2, 2.0)]}), gpus=2)
    (part,) = parts("workers-per-gpu", record).values()
    assert (part.value, part.why) == (None, "not measured: the sweep has 0, 2")


def test_an_option_is_judged_by_pairs_that_differ_in_it_alone() -> None:
    cells = [
        cell(2, 100.0, persistent_workers=False),
        cell(2, 130.0),
        cell(4, 100.0, persistent_workers=False),
        cell(4, 110.0),
        cell(4, 900.0, prefetch_factor=8),
    ]
    (part,) = parts("persistent-workers", record_of(finding("C12.matrix.io", {"cells": cells}))).values()
    assert part.value == pytest.approx(1.2)
    assert part.spread == pytest.approx((1.1, 1.3))


def test_the_matrix_comes_before_the_short_sweep() -> None:
    short = finding("C12.throughput.cpu", {"cells": [cell(0, 10.0), cell(4, 1.0)]})
    whole = finding("C12.matrix.cpu", {"cells": [cell(0, 10.0), cell(4, 10.0)]})
    (part,) = parts("workers-per-gpu", record_of(short, whole)).values()
    assert part.value == 1.0


def test_the_worst_error_over_networks_counts() -> None:
    rows = [
        finding(f"C14.error.{name}.bf16", {"precision": "bf16", "loss_rel_err": loss, "grad_rel_l2": 10 * loss})
        for name, loss in (("mlp", 0.001), ("cnn", 0.002))
    ]
    found = parts("amp-error", record_of(*rows))
    assert [part.value for part in found.values()] == [0.002, 0.02]
    assert [CLAIMS["amp-error"].holds(part.value or 0) for part in found.values()] == [True, False]


def test_mixed_precision_on_a_cpu_is_shown_and_not_held_to_a_claim_about_gpus() -> None:
    record = gpu_record()
    assert "as claimed" in section(record, "amp-speed")
    record["env"]["gpu"] = []
    assert "as claimed" not in section(record, "amp-speed")
    assert "a CPU; the claim is about GPUs" in section(record, "amp-speed")


def section(record: dict[str, Any], name: str) -> str:
    return next(block for block in text({"mine": record}).split("\n\n") if block.startswith(f"{name}:"))


def test_the_tables_change_with_the_record() -> None:
    record, other = gpu_record(), gpu_record()
    check(other, "C10.h2d_pinned_256MiB")["stats"]["median"] *= 2
    assert tables({"mine": record}) != tables({"mine": other})


def test_of_two_records_of_a_machine_the_one_that_can_be_read_answers() -> None:
    busy, quiet = gpu_record(), gpu_record()
    for size in (1, 16, 64, 256):
        check(busy, f"C10.h2d_pinned_{size}MiB")["noise"] = BUSY
    busy["run"]["started"] = "2027-01-01T00:00:00Z"
    for records in ({"h.1": busy, "h.2": quiet}, {"h.2": quiet, "h.1": busy}):
        assert chosen(CLAIMS["pinned-30"], records)[0] == "h.2"
        assert chosen(CLAIMS["amp-speed"], records)[0] == "h.1", "the newest, where both can be read"


def test_records_of_two_machines_are_not_mixed_under_one_name() -> None:
    one, other = gpu_record(), gpu_record()
    assert list(machines({"a.1": one, "a.2": other, "b": other})) == ["a", "b"]
    other["env"]["fingerprint"]["hw"] = "h:0000000000000000"
    with pytest.raises(ValueError, match="a: records of 2 machines"):
        machines({"a.1": one, "a.2": other})


def test_every_measured_claim_names_the_command_that_measures_it() -> None:
    for claim in CLAIMS.values():
        assert bool(claim.command) == bool(claim.figure)
    assert CLAIMS["prefetch-factor"].command == "envkit verify IMAGE --tier standard --only C12"
    assert CLAIMS["no-grad"].command == "envkit verify IMAGE --only C17"


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Part(label="a", value=1.689, spread=(1.67, 1.72)), "a: 1.69× (1.67 to 1.72)"),  # noqa: RUF001 - the sign of multiplication is meant
        (Part(label="b", value=0.0000107, unit="share"), "b: 0.00107 %"),
        (Part(label="c", value=0.000001, unit="share"), "c: 1e-04 %"),
        (Part(label="d", value=25693.2, unit="reads/s"), "d: 25700 reads/s"),
        (Part(label="e", value=0.0, unit="share"), "e: 0 %"),
        (Part(label="f", why="not measured: one GPU"), "f: not measured: one GPU"),
    ],
)
def test_numbers_are_shown_with_three_digits(part: Part, shown: str) -> None:
    assert shown_part(part) == shown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"checks": ["C99"]}, "unknown check C99"),
        ({"tier": "quick"}, "tier quick does not run its checks"),
        ({"unmeasured": "both"}, "needs either figure or unmeasured"),
        ({"sources": []}, "needs known and sources"),
        ({"color": "red"}, "unknown color"),
    ],
)
def test_an_incomplete_claim_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    item = {"id": "one", "says": "s", "checks": ["C16"], "tier": "standard", "figure": "amp_memory", "known": "k"}
    tree = {"schema": "envkit.claims/1", "topics": [{"title": "t", "claims": [{**item, "sources": ["s"], **change}]}]}
    file = tmp_path / "claims.yaml"
    file.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        load(file)


def test_the_command_prints_the_rows_of_ones_own_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(sealed(gpu_record())), encoding="utf-8")
    assert main([str(file)]) == 0
    out = capsys.readouterr().out
    assert "pinned-30: Page-locked" in out
    assert "$ envkit verify IMAGE --only C10" in out


def test_a_file_that_is_no_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.json"
    file.write_text("{}", encoding="utf-8")
    assert main([str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_a_changed_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = sealed(gpu_record())
    check(tree, "C10.h2d_pinned_256MiB")["stats"]["median"] = 0.001
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(tree), encoding="utf-8")
    assert main([str(file)]) == 10
    assert "changed" in capsys.readouterr().err


def sealed(tree: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(tree)
    return {**found, "sha256": seal(found)}


def test_a_claim_is_held_to_both_of_its_ends() -> None:
    claim: Claim = CLAIMS["turbojpeg"]
    assert [claim.holds(value) for value in (1.9, 2.0, 3.0, 3.1)] == [False, True, True, False]
