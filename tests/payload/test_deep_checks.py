"""Decoders, storage, sustained load and the archive as a whole, run for real, and broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envkit.checks import thresholds
from envkit.checks.catalog import judges, select
from envkit.checks.model import Verdict
from envkit.verify.judge import judge
from envkit.verify.payload import catalog_rows, parse_document, payload_archive
from envkit.verify.trace import packed_trace
from tests.support.payloads import NONCE, context, module, observe, observer, ruled, said

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")


def test_without_pillow_the_check_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    check = observer("c21_jpeg")
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(module("observation").Skip, match="no Pillow"):
        check.run(context())


def test_decoders_agree_and_one_that_does_not_is_named() -> None:
    features = pytest.importorskip("PIL.features", reason="Pillow is not installed: pip install pillow")
    items = observe("c21_jpeg")
    small = items["C21.small"]
    expected = Verdict.PASS if features.check_feature("libjpeg_turbo") else Verdict.WARN
    assert ruled(small).verdict is expected
    small["observed"]["largest_difference"]["pillow"] = 66
    assert (ruled(small).verdict, ruled(small).reason_code) == (Verdict.FAIL, "DECODERS_DISAGREE")


def test_a_picture_that_is_decoded_to_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install pillow")
    plain = image.Image.tobytes
    monkeypatch.setattr(image.Image, "tobytes", lambda self: plain(image.merge("RGB", self.split()[::-1])))
    for item in observe("c21_jpeg").values():
        assert item["controls"][0] == {**item["controls"][0], "name": "swapped_colours_are_noticed", "held": True}
        assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.FAIL, "PICTURE_WRONG")


def test_storage_is_read_past_the_page_cache_or_the_record_says_so() -> None:
    items = observe("c22_storage", context("deep"))
    assert {"C22.image_read", "C22.image_random", "C22.scratch_write"} == set(items)
    for item in items.values():
        direct = item["observed"].get("direct")
        assert said(item)[1] in ((None, "IN_MEMORY") if direct is not False else ("PAGE_CACHE",))
        assert all(control["held"] for control in item["controls"])


def test_a_file_that_reads_differently_past_the_cache_is_noticed(tmp_path: Path) -> None:
    check = observer("c22_storage")
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(bytes(1 << 16))
    other.write_bytes(bytes([1]) * (1 << 16))
    file = check.Direct(one)
    for path, exact in ((one, True), (other, False)):
        found, control = check._same_bytes(file, path)
        assert found is exact
        assert control["held"]
    file.close()


class OnCpu:
    """The context of a load that runs on the CPU: its arithmetic is the same, only slower."""

    device = "cpu"

    def __init__(self) -> None:
        self.torch = torch


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    check = observer("c24_sustained")
    monkeypatch.setattr(check, "SIZE", 64)
    monkeypatch.setattr(check, "CHUNK_S", 0.01)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return check.Load(OnCpu())


def test_equal_products_stay_equal_under_load_and_a_fault_is_counted_once(load: Any) -> None:
    for _ in range(2):
        load.keep_up(0.05)
    assert len(load.chunks) >= 2
    assert all(chunk["products"] >= 1 and chunk["tflops"] > 0 for chunk in load.chunks)
    assert load.different() == 0
    assert load.notices_a_fault()
    assert load.different() == 0


def test_a_result_that_drifts_under_load_is_noticed(load: Any) -> None:
    load.left[0, 0] += 1
    load.keep_up(0.05)
    observed = {"seconds": 1, "products": 2, "tflops_first": 1, "tflops_last": 1, "different": load.different()}
    item = module("observation").ran("C24.load", "gpu:0", observed, [module("observation").control("planted", True)])
    assert said(item) == (Verdict.FAIL, "RESULTS_CHANGE_UNDER_LOAD")
    assert load.notices_a_fault()


@pytest.mark.parametrize("name", ["C11", "C24"])
def test_what_needs_a_gpu_says_so_without_one(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    suite = module("suite")
    (check,) = suite.select(suite.load(catalog_rows()), "deep", [name])
    (item,) = suite.run_check(context("deep"), check)
    assert (item["id"], item["status"], item["reason"]["code"]) == (name, "skip", "NO_GPU")


@pytest.mark.long
def test_the_archive_runs_them_without_a_warning_and_every_threshold_applies(tmp_path: Path) -> None:
    chosen = ("C07", "C11", "C15", "C16", "C19", "C20", "C21", "C22", "C23", "C24")
    (tmp_path / "payload.pyz").write_bytes(payload_archive())
    (tmp_path / "spec.json").write_text(json.dumps({"nonce": NONCE, "loader": {"num_workers": 1}}))
    command = [sys.executable, "-W", "error", "payload.pyz", "--spec", "spec.json", "--tier", "deep"]
    done = subprocess.run(
        [*command, "--only", ",".join(chosen), "--trace"], cwd=tmp_path, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    document = parse_document(done.stdout, NONCE)
    judged = judge(document, {}, select("deep", chosen), judges())
    bad = [
        (item.id, item.finding.message)
        for item in judged
        if item.finding.verdict in (Verdict.FAIL, Verdict.ERROR) and item.finding.reason_code != "CONTROL_FAILED"
    ]
    assert bad == []
    assert set(document["order"]) == set(chosen)
    assert thresholds.load().unmatched([item.id for item in judged]) == ()
    assert packed_trace(document)
    assert "Warning" not in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
