"""The parts of checks that queue work on a device, on one that does everything at once and in turn: the CPU.

Such a device computes right, keeps time and overlaps nothing, so the code runs to its end and overlap has to fail.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from envkit.checks.case import Case
from envkit.checks.catalog import judges
from envkit.checks.model import Finding, Verdict
from tests.support.payloads import module, observer, said

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")

MIB = 1 << 20


class Event:
    """An event of a device whose work is done when it is queued."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.timing = enable_timing
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        del stream
        self.at = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        assert self.timing
        return (later.at - self.at) * 1e3


class Stream:
    """A stream of the same device: waiting for it takes no time."""

    def wait_event(self, event: Event) -> None:
        assert event.at

    def wait_stream(self, other: Stream) -> None:
        del other


@pytest.fixture
def ctx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    cuda = torch.cuda
    main = Stream()
    monkeypatch.setattr(cuda, "Event", Event)
    monkeypatch.setattr(cuda, "Stream", Stream)
    monkeypatch.setattr(cuda, "current_stream", lambda: main)
    monkeypatch.setattr(cuda, "stream", lambda _stream: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda, "_sleep", lambda _cycles: None)
    monkeypatch.setattr(cuda, "get_device_name", lambda *_: "Model")
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(cuda, "memory_allocated", lambda: 10 * MIB)
    monkeypatch.setattr(cuda, "max_memory_allocated", lambda: 30 * MIB)
    monkeypatch.setattr(module("compat"), "capability", lambda _torch, _device: (8, 0))
    monkeypatch.setattr(module("one_gpu"), "limits", lambda _torch, _index: {"capability": "8.0"})
    link = SimpleNamespace(read=lambda: {"gen": 4, "width": 16, "c2c": False, "cc_mode": False})
    monkeypatch.setattr(module("gpus"), "HostLink", lambda _torch: link)

    class Device(module("context").Ctx):  # type: ignore[misc]  # the payload is not typed
        has_cuda = True
        device = "cpu"
        subject = "gpu:0"

        def pinned_slab(self) -> Any:
            self._slab = torch.zeros(4 * MIB, dtype=torch.uint8)
            return self._slab

    with module("timing").single_thread(torch):
        yield Device({"loader": {"num_workers": 0, "pin_memory": False}}, tier="standard")


def ruled(item: dict[str, Any]) -> Finding:
    return judges()[item["id"].partition(".")[0]](Case(item, {}, {}))


def test_a_device_that_takes_turns_overlaps_nothing(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check = observer("c11_overlap")
    monkeypatch.setattr(check, "SIZE", 128)
    (item,) = check.run(ctx)
    observed = item["observed"]
    assert observed["exact"] is True
    assert observed["kernels"] >= 1
    assert set(observed["times_ms"]) == set(check.Bench(ctx).variants())
    assert item["controls"] == [
        {"name": "flipped_byte_is_noticed", "held": True, "detail": "one byte of the copy changed"}
    ]
    for name in ("both", "both_pageable", "same_stream"):
        observed["times_ms"][name] = max(
            observed["times_ms"][name], observed["times_ms"]["copy"] + observed["times_ms"]["compute"]
        )
    observed["overlap"].update(pageable=0.0, same_stream=0.0)
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.FAIL, "NO_OVERLAP")


def test_kernels_are_queued_before_a_copy_that_the_host_waits_for(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round they came after it, so that such a copy never overlapped, on no machine."""
    check = observer("c11_overlap")
    monkeypatch.setattr(check, "SIZE", 64)
    bench = check.Bench(ctx)
    order: list[str] = []
    monkeypatch.setattr(bench, "compute", lambda: order.append("kernels"))
    monkeypatch.setattr(bench, "copy", lambda _source: order.append("copy"))
    bench.timed(bench.plain, True, True)
    bench.timed(bench.host, True, True)
    assert order == ["kernels", "copy", "copy", "kernels"]


def test_a_copy_that_arrives_changed_is_noticed(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check = observer("c11_overlap")
    monkeypatch.setattr(check, "SIZE", 64)
    plain = check.Bench.copy

    def lossy(self: Any, source: Any) -> None:
        plain(self, source)
        self.device[12345] += 1

    monkeypatch.setattr(check.Bench, "copy", lossy)
    (item,) = check.run(ctx)
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.FAIL, "COPY_WRONG")


def test_products_are_timed_by_events(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check = observer("c15_amp_speed")
    monkeypatch.setattr(module("one_gpu"), "GPU_SIZE", 128)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    items = {item["id"]: item for item in check.run(ctx)}
    assert {item["samples"]["clock"] for item in items.values()} == {"cuda_event"}
    item = items["C15.gemm.tf32"]
    assert item["observed"]["capability"] == "8.0"
    assert items["C15.gemm.fp16"]["observed"]["over_tf32"] > 0
    fp16 = items["C15.gemm.fp16"]
    fp16["observed"]["over_fp32"] = 1.0
    assert (ruled(fp16).verdict, ruled(fp16).reason_code) == (Verdict.FAIL, "TENSOR_CORES_UNUSED")


def test_the_peak_of_a_step_is_what_came_on_top(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer("c16_amp_memory"), "BATCHES", (64,))
    (item,) = observer("c16_amp_memory").run(ctx)
    assert (item["observed"]["peak_bytes_fp32"], item["observed"]["peak_bytes_amp"]) == (20 * MIB, 20 * MIB)


def test_a_training_step_is_taken_apart_by_events(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mini, check = module("mini_train"), observer("c23_training")
    monkeypatch.setitem(mini.SIZES, "cuda", (4, 8, 1, 4))
    monkeypatch.setattr(check, "ROUNDS_S", 0.5)
    item, *_ = check.run(ctx)
    observed = item["observed"]
    assert observed["precision"] == "bf16"
    assert observed["h2d_s"] >= 0
    assert 0 < observed["compute_s"] <= observed["step_s"]
    assert 0.9 < observed["launch_share"] <= 1.0
    assert ruled(
        {**item, "observed": {**observed, "step_without_loader_s": observed["step_s"], "h2d_s": 0.0}}
    ).reason_code == ("LAUNCH_BOUND")


def test_a_minute_of_load_is_told_with_and_without_nvml(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check, telemetry = observer("c24_sustained"), module("telemetry")
    for name, value in (("SIZE", 64), ("CHUNK_S", 0.01), ("LOAD_S", 0.3)):
        monkeypatch.setattr(check, name, value)
    monkeypatch.setattr(module("nvml"), "open_session", lambda: None)
    load, silent = check.run(ctx)
    assert ruled(load).verdict is Verdict.PASS
    assert (silent["status"], silent["reason"]["code"]) == ("skip", "NO_NVML")
    session = SimpleNamespace(
        handle=lambda _index: 1, clock_events=lambda _handle: None, call=lambda *_: False, number=lambda *_: 1000
    )
    monkeypatch.setattr(module("nvml"), "open_session", lambda: session)
    monkeypatch.setattr(module("gpus"), "nvml_index", lambda *_: 0)
    monkeypatch.setattr(telemetry, "PERIOD_S", 0.01)
    told = check.run(ctx)[1]
    assert told["controls"][0]["held"]
    assert told["observed"]["max_sm_mhz"] == 1000
    assert ruled(told).verdict is Verdict.PASS


@pytest.fixture
def sustained(monkeypatch: pytest.MonkeyPatch) -> Any:
    """C24 made short, and a driver that tells what the dictionary holds."""
    check = observer("c24_sustained")
    for name, value in (("SIZE", 64), ("CHUNK_S", 0.01), ("LOAD_S", 0.2)):
        monkeypatch.setattr(check, name, value)
    monkeypatch.setattr(module("telemetry"), "PERIOD_S", 0.01)
    monkeypatch.setattr(module("gpus"), "nvml_index", lambda *_: 0)
    return check


def test_a_device_that_fails_under_load_still_says_why(
    ctx: Any, sustained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [79]

    def called(name: str, *arguments: Any) -> bool:
        if name == "nvmlEventSetWait_v2" and messages:
            arguments[1]._obj.data = messages.pop()
            return True
        return name in ("nvmlEventSetCreate", "nvmlDeviceRegisterEvents")

    session = SimpleNamespace(
        handle=lambda _index: 1, clock_events=lambda _handle: None, call=called, number=lambda *_: 1000
    )
    monkeypatch.setattr(module("nvml"), "open_session", lambda: session)
    plain, done = sustained.Load.product, []

    def fails(self: Any) -> None:
        done.append(1)
        if len(done) > 20:
            raise RuntimeError("CUDA error: unspecified launch failure")
        plain(self)

    monkeypatch.setattr(sustained.Load, "product", fails)
    load, told = sustained.run(ctx)
    assert (load["id"], load["status"]) == ("C24.load", "error")
    assert load["reason"]["message"] == "RuntimeError: CUDA error: unspecified launch failure"
    assert load["observed"]["seconds"] >= 0
    assert said(told) == (Verdict.FAIL, "XID")


def test_a_device_that_tells_nothing_of_itself_is_no_error(
    ctx: Any, sustained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SimpleNamespace(
        handle=lambda _index: 1, clock_events=lambda _handle: None, call=lambda *_: False, number=lambda *_: None
    )
    monkeypatch.setattr(module("nvml"), "open_session", lambda: session)
    load, silent = sustained.run(ctx)
    assert said(load) == (Verdict.PASS, None)
    assert said(silent) == (Verdict.SKIP, "NO_TELEMETRY")


def test_bandwidth_is_that_of_the_slowest_rank(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check = observer("c20_collectives")
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda _one, _other: False)
    ends = [
        {"outcome": "answered", "nccl": [2, 26, 2], "bandwidth": {"bytes": 10**9, "values_ms": values}}
        for values in ([10.0, 8.0, 10.0], [9.0, 10.0, 10.0])
    ]
    ctx.notes["nccl"] = ends
    held = {"controls": [{"name": "planted", "held": True, "detail": ""}]}
    item = check._bandwidth(ctx, [held, held], 2, module("noise").snapshot())
    assert item["observed"]["busbw_gb_per_s"] == pytest.approx(100.0)
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.WARN, "NO_PEER_ACCESS")
    assert check._bandwidth(ctx, [held, held], 1, None)["reason"]["code"] == "ONE_GPU"


def test_every_trial_of_an_all_reduce_is_timed_alone(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = module("ranks")
    monkeypatch.setattr(ranks, "BANDWIDTH_BYTES", 4 * MIB)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.mul_(1))
    found = ranks.bandwidth(ctx.torch, "cpu")
    assert len(found["values_ms"]) == ranks.TRIALS
    assert min(found["values_ms"]) > 0


def test_every_eighth_product_under_load_is_compared(ctx: Any, sustained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load, plain, done = sustained.Load(ctx), sustained.Load.product, []

    def wrong_once(self: Any) -> None:
        plain(self)
        done.append(1)
        if len(done) == 8:
            self.out[3, 4] += 1

    monkeypatch.setattr(sustained.Load, "product", wrong_once)
    load.products(20)
    assert (len(done), load.compared, load.different()) == (20, 3, 1)


def test_quick_times_one_network_on_a_gpu_and_a_comparison_all(ctx: Any) -> None:
    bench, names = module("amp_bench"), module("workloads").NAMES
    assert len(names) == 3
    assert bench.networks(ctx) == names
    ctx.tier = "quick"
    assert bench.networks(ctx) == names[-1:]
    ctx.spec = {"launch": {"effort": 2}}
    assert bench.networks(ctx) == names


def test_gradients_are_compared_where_they_are(ctx: Any) -> None:
    amp = module("amp")
    compared: list[str] = []

    class Placed(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
        """Notes what is moved from the device to the host."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name in ("to", "cpu") and args[0].numel() > 1000:
                compared.extend([name] if name == "cpu" else [value for value in args[1:] if isinstance(value, str)])
            return func(*args, **(kwargs or {}))

    one, two = (amp.Stepper(ctx, "mlp", "small", 0, kind) for kind in ("fp32", "bf16"))
    with Placed():
        row = amp.compare(one.gradient(), two.gradient())
    assert 0 < row["grad_rel_l2"] < 5e-2
    assert compared == []
