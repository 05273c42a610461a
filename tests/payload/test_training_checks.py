"""Loaders, mini training and its trace, run for real with this interpreter's torch, and each of them broken."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.model import Verdict
from envkit.verify.trace import packed_trace, unpacked
from tests.support.payloads import context, module, observe, observer, ruled

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")


@pytest.mark.long
def test_the_matrix_covers_every_option_and_recommends_from_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = module("loader_bench")
    monkeypatch.setattr(bench, "MATRIX_S", 1.5)
    monkeypatch.setattr(bench, "SWEEP_S", 0.1)
    (*_, decoding, storage) = bench.run(context())
    assert [decoding["id"], storage["id"]] == ["C12.matrix.cpu", "C12.matrix.io"]
    for item in (decoding, storage):
        observed = item["observed"]
        cells = observed["cells"] + observed["cells_left_out"]
        assert {(cell["persistent_workers"], cell["prefetch_factor"]) for cell in cells if cell["num_workers"]} == {
            (persistent, prefetch) for persistent in (False, True) for prefetch in bench.PREFETCHES
        }
        assert observed["recommended"] in [{name: cell[name] for name in bench.AXES} for cell in observed["cells"]]
        assert ruled(item).rule["gates"] is False


def test_the_quick_tier_has_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("loader_bench"), "SWEEP_S", 0.1)
    found = module("loader_bench").run(context("quick"))
    assert [item["id"] for item in found] == ["C12.throughput.cpu", "C12.throughput.io"]


class _OneClock:
    """Time that passes only where a sample is read; the workers' samples pass through one lock, so it adds up."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_text("0.0")

    def perf_counter(self) -> float:
        with self._file.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return float(file.read())

    def wait(self, seconds: float) -> None:
        with self._file.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            now = float(file.read())
            file.seek(0)
            file.write(f"{now + seconds:.6f}")


def test_workers_that_fight_over_one_lock_bring_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaders, bench = module("loaders"), module("loader_bench")
    clock = _OneClock(tmp_path / "clock")

    class Serial(loaders.Numbered):  # type: ignore[misc,name-defined]  # the payload is not typed
        def __init__(self, length: int, seconds: float) -> None:
            super().__init__(length)
            self.seconds = seconds

        def __getitem__(self, index: int) -> Any:
            clock.wait(self.seconds)
            return super().__getitem__(index)

    work = {"io": (4, 48, lambda length, factor=1: Serial(length, 0.004 * factor))}
    monkeypatch.setattr(bench, "works", lambda: work)
    monkeypatch.setattr(bench, "time", clock)
    (item,) = bench.run(context("quick"))
    item["observed"]["effective_cpus"] = 2.0
    assert item["observed"]["best_workers_over_none"] == pytest.approx(1.0)
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.WARN, "WORKERS_BRING_NOTHING")


def test_the_mini_training_learns_and_its_parts_are_named() -> None:
    ctx = context()
    item = observe("c23_training", ctx)["C23.training"]
    finding = ruled(item)
    bottleneck = finding.derived["bottleneck"]
    assert finding.verdict is (Verdict.WARN if bottleneck == "overlap" else Verdict.PASS)
    assert item["observed"]["loss_last"] < item["observed"]["loss_first"]
    assert bottleneck in ("data", "overlap", "contention", "compute")
    assert ctx.notes["starved_share"] == item["observed"]["starved_share"]


@pytest.mark.long
def test_a_loader_without_workers_that_sleeps_is_the_bottleneck(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = module("loaders")
    plain = loaders.Pictures.__getitem__

    def asleep(self: Any, index: int) -> Any:
        module("mini_train").time.sleep(0.008)
        return plain(self, index)

    monkeypatch.setattr(loaders.Pictures, "__getitem__", asleep)
    item = observe("c23_training", context(loader={"num_workers": 0}))["C23.training"]
    assert item["observed"]["starved_share"] > 0.5
    assert ruled(item).derived["bottleneck"] == "data"
    on_gpu = ruled({**item, "subject": "gpu:0"})
    assert (on_gpu.verdict, on_gpu.reason_code) == (Verdict.WARN, "DATA_BOUND")


@pytest.mark.long
def test_a_training_that_learns_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.SGD, "step", lambda _self, closure=None: closure)
    loaders = module("loaders")
    monkeypatch.setattr(
        module("mini_train"), "_network", lambda nn, *_: nn.Sequential(nn.Flatten(), nn.Linear(37632, 10))
    )
    item = observe("c23_training", context(loader={"num_workers": 0}))["C23.training"]
    assert loaders.Pictures.BYTES == 37632
    item["observed"]["loss_last"] = max(item["observed"]["loss_first"], item["observed"]["loss_last"])
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.FAIL, "LOSS_DOES_NOT_FALL")


def test_a_trace_holds_the_parts_of_a_step() -> None:
    taken = module("mini_train").trace(context())
    tree = json.loads(unpacked(packed_trace({"trace": taken})))
    names = {event.get("name") for event in tree["traceEvents"]}
    assert {"data_wait", "h2d", "train"} <= names


def test_a_trace_that_does_not_fit_is_taken_again_with_fewer_steps() -> None:
    taken = module("mini_train").trace(context(loader={"num_workers": 0}))
    again = module("mini_train").trace(context(loader={"num_workers": 0}), limit=int(len(taken["data"]) * 0.7))
    assert again["steps"] < taken["steps"]
    with pytest.raises(ValueError, match="one step"):
        module("mini_train").trace(context(loader={"num_workers": 0}), limit=100)


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, Any]]:
    with module("timing").single_thread(torch):
        return {item["id"]: item for item in observer("c23_training").options(context())}


def test_each_option_of_a_step_is_timed_and_gives_the_same_result(options: dict[str, dict[str, Any]]) -> None:
    assert set(options) == {"C23.optimizer", "C23.channels_last", "C23.attention"}
    for item in options.values():
        observed = item["observed"]
        assert ruled(item).verdict is Verdict.PASS
        assert observed["speed_up"][observed["base"]] == 1.0
        assert item["controls"][0] == {**item["controls"][0], "name": "another_result_is_noticed", "held": True}
    assert {"loop", "foreach"} <= set(options["C23.optimizer"]["observed"]["took_ms"])
    assert set(options["C23.channels_last"]["observed"]["took_ms"]) == {"contiguous", "channels_last"}
    told = options["C23.attention"]["observed"]
    assert set(told["took_ms"]) | set(told["refused"]) == {"math", "flash", "efficient", "cudnn"}
    assert told["default"] in told["took_ms"]


def test_an_option_that_changes_the_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.nn.functional.scaled_dot_product_attention

    def other(*parts: Any) -> Any:
        enabled = torch.backends.cuda.flash_sdp_enabled()
        return plain(*parts) * (1.5 if enabled else 1.0)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", other)
    with module("timing").single_thread(torch):
        item = observer("c23_training").attention(context(), torch)
    assert ruled(item).reason_code == "OPTION_CHANGES_RESULT"
