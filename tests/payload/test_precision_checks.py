"""Repeats, mixed precision and checkpoints, run for real with this interpreter's torch, and each of them broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envkit.checks.model import Verdict
from tests.support.payloads import context, finding_of, module, observe, observer, ruled, said

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")


@pytest.fixture(autouse=True)
def _settings_stay() -> Iterator[None]:
    def settings() -> tuple[Any, ...]:
        return torch.get_num_threads(), module("compat").fp32_settings(torch), torch.is_grad_enabled()

    before = settings()
    yield
    assert settings() == before


def test_equal_products_are_equal_bit_by_bit() -> None:
    items = observe("c07_repeat")
    assert said(items["C07.gemm.fp32"]) == (Verdict.PASS, None)
    assert said(items["C07.training"]) == (Verdict.PASS, None)


def test_a_product_that_changes_in_one_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check = observer("c07_repeat")
    count = iter(range(10**6))
    plain = torch.Tensor.__matmul__

    def unsteady(left: Any, right: Any) -> Any:
        product = plain(left, right)
        if next(count) == 7:
            check.bits(product)[3, 5] ^= 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", unsteady)
    item = observe("c07_repeat")["C07.gemm.fp32"]
    assert (item["observed"]["repeats_different"], item["observed"]["elements_different"]) == (1, 1)
    assert said(item) == (Verdict.FAIL, "NONDETERMINISTIC_GEMM")
    assert finding_of(item).rule["gates"] is True


def test_a_training_that_never_repeats_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "manual_seed", lambda _seed: torch.seed())
    assert said(observe("c07_repeat")["C07.training"]) == (Verdict.WARN, "NONDETERMINISTIC_TRAINING")


def test_the_gain_of_reduced_precision_is_measured_against_strict_float32() -> None:
    items = observe("c15_amp_speed")
    assert set(items) == {"C15.gemm.tf32", "C15.gemm.fp16", "C15.gemm.bf16"}
    assert said(items["C15.gemm.tf32"]) == (Verdict.SKIP, "NO_TF32")
    ran = [item for item in items.values() if item["status"] == "ran"]
    for item in ran:
        assert ruled(item).verdict is Verdict.PASS
        assert ruled(item).rule["gates"] is False


def _a_millisecond_each(work: Callable[[], object], loops: int) -> float:
    for _ in range(loops):
        work()
    return float(loops)


_a_millisecond_each.label = "counted"  # type: ignore[attr-defined]  # the payload's clocks name themselves


def test_reduced_precision_without_tensor_cores_is_noticed() -> None:
    check = observer("c15_amp_speed")
    ctx = context()
    product = check.Product(ctx, "fp32", 256)
    measured = module("timing").measure([("fp32", product), ("fp16", product)], _a_millisecond_each, samples=5)
    observed = {
        "precision": "fp16",
        "capability": "8.0",
        "tflops": 1.0,
        "tflops_fp32": 1.0,
        "over_fp32": check._gain(measured, "fp32", "fp16"),
        "over_tf32": None,
        "output_dtype": "float16",
    }
    held = [module("observation").control("planted", True)]
    item = module("observation").ran("C15.gemm.fp16", "gpu:0", observed, held, noise={"gate": "clean"})
    assert said(item) == (Verdict.FAIL, "TENSOR_CORES_UNUSED")
    assert finding_of(item).rule["gates"] is True


def test_mixed_precision_keeps_less_where_activations_rule_and_more_with_few_samples() -> None:
    items = observe("c16_amp_memory")
    assert items["C16.batch8"]["observed"]["saved_ratio"] > 10
    assert "copies of the weights" in finding_of(items["C16.batch8"]).message
    if items["C16.batch8192"]["status"] == "ran":
        assert said(items["C16.batch8192"]) == (Verdict.PASS, None)


def test_autocast_that_lowers_nothing_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compat = module("compat")
    real = compat.autocast
    monkeypatch.setattr(compat, "autocast", lambda *arguments, **_: real(*arguments, enabled=False))
    monkeypatch.setattr(observer("c16_amp_memory"), "BATCHES", (512,))
    item = observe("c16_amp_memory")["C16.batch512"]
    assert item["observed"]["saved_ratio"] == 1
    assert said(item) == (Verdict.WARN, "AMP_SAVES_LITTLE")


def test_a_training_goes_on_from_its_checkpoint() -> None:
    items = observe("c19_checkpoints", context("quick"))
    assert said(items["C19.state"]) == said(items["C19.activations"]) == (Verdict.PASS, None)
    names = {control["name"] for control in items["C19.state"]["controls"]}
    assert "code_in_a_checkpoint_is_refused" in names


def test_a_checkpoint_that_loses_a_bit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    compat = module("compat")
    real = compat.load_weights

    def lossy(*arguments: Any) -> Any:
        state, safe = real(*arguments)
        for name, tensor in state["model"].items():
            state["model"][name] = tensor.half().float()
        return state, safe

    monkeypatch.setattr(compat, "load_weights", lossy)
    item = observe("c19_checkpoints", context("quick"))["C19.state"]
    assert said(item) == (Verdict.FAIL, "STATE_CHANGED")


def test_an_optimizer_that_is_not_restored_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.Adam, "load_state_dict", lambda _self, _state: None)
    item = observe("c19_checkpoints", context("quick"))["C19.state"]
    assert said(item) == (Verdict.FAIL, "STATE_CHANGED")


def test_checkpointing_that_changes_gradients_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("compat"), "checkpoint", lambda _torch, block, inputs: block(inputs) * 1.001)
    item = observe("c19_checkpoints", context("quick"))["C19.activations"]
    assert said(item) == (Verdict.FAIL, "CHECKPOINTED_GRADIENT")


def test_checkpointing_that_keeps_everything_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("compat"), "checkpoint", lambda _torch, block, inputs: block(inputs))
    item = observe("c19_checkpoints", context("quick"))["C19.activations"]
    assert said(item) == (Verdict.FAIL, "CHECKPOINT_KEEPS_ALL")
