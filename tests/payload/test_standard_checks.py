"""The checks of the standard and deep tiers, run for real with this interpreter's torch, and each of them broken."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from envkit.verify import thresholds
from envkit.verify.catalog import select
from envkit.verify.judge import judge
from envkit.verify.model import Finding, Verdict
from envkit.verify.payload import parse_document, payload_archive
from envkit.verify.rules import RULES
from envkit.verify.trace import packed_trace, unpacked

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install envkit[bench]")

NONCE = "0123456789abcdef"


def module(name: str) -> Any:
    return import_module(f"envkit.smoke.{name}")


def context(tier: str = "standard", **spec: Any) -> Any:
    return module("context").Ctx({"nonce": NONCE, **spec}, tier=tier)


def observe(name: str, ctx: Any = None) -> dict[str, dict[str, Any]]:
    found = module(f"checks.{name}").run(ctx or context())
    json.dumps(found, allow_nan=False)
    return {item["id"]: item for item in found}


def found(item: dict[str, Any], spec: dict[str, Any] | None = None) -> Finding:
    """The finding; the noise of the machine that runs the tests is left out of it."""
    quiet = {**item, "noise": item["noise"] and {**item["noise"], "gate": "clean"}}
    (judged,) = judge({"env": {}, "checks": [quiet]}, spec or {}, (), RULES)
    return judged.finding


def said(item: dict[str, Any], spec: dict[str, Any] | None = None) -> tuple[Verdict, str | None]:
    finding = found(item, spec)
    return finding.verdict, finding.reason_code


def ruled(item: dict[str, Any]) -> Finding:
    """What the rule says of the numbers, whatever the controls say: those on a clock need a quiet machine."""
    return RULES[item["id"].partition(".")[0]](item, {}, {})


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


# C07


def test_equal_products_are_equal_bit_by_bit() -> None:
    items = observe("c07_repeat")
    assert said(items["C07.gemm.fp32"]) == (Verdict.PASS, None)
    assert said(items["C07.training"]) == (Verdict.PASS, None)


def test_a_product_that_changes_in_one_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check = module("checks.c07_repeat")
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
    assert found(item).rule["gates"] is False


def test_a_training_that_never_repeats_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "manual_seed", lambda _seed: torch.seed())
    assert said(observe("c07_repeat")["C07.training"]) == (Verdict.WARN, "NONDETERMINISTIC_TRAINING")


# C12


def test_the_matrix_covers_every_option_and_recommends_from_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, plan = module("loader_bench"), module("loader_plan")
    monkeypatch.setattr(bench, "MATRIX_S", 1.5)
    (decoding, storage) = bench.matrix(context(), "C12")
    assert [decoding["id"], storage["id"]] == ["C12.matrix.cpu", "C12.matrix.io"]
    for item in (decoding, storage):
        observed = item["observed"]
        cells = observed["cells"] + observed["cells_left_out"]
        assert {(cell["persistent_workers"], cell["prefetch_factor"]) for cell in cells if cell["num_workers"]} == {
            (persistent, prefetch) for persistent in (False, True) for prefetch in plan.PREFETCHES
        }
        assert observed["recommended"] in [{name: cell[name] for name in plan.AXES} for cell in observed["cells"]]
        assert ruled(item).rule["gates"] is False


def test_the_quick_tier_has_no_matrix() -> None:
    assert module("loader_bench").matrix(context("quick"), "C12") == []


def test_workers_that_fight_over_one_lock_bring_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaders, bench = module("loaders"), module("loader_bench")

    class Serial(loaders.Slow):  # type: ignore[misc,name-defined]  # the payload is not typed
        def __getitem__(self, index: int) -> Any:
            with (tmp_path / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return super().__getitem__(index)

    work = {"io": (4, 48, lambda length, factor=1: Serial(length, 0.004 * factor))}
    monkeypatch.setattr(bench, "works", lambda: work)
    (item,) = bench.run(context("quick"), "C12")
    item["observed"]["effective_cpus"] = 2.0
    assert (ruled(item).verdict, ruled(item).reason_code) == (Verdict.WARN, "WORKERS_BRING_NOTHING")


# C15 and C16


def test_the_gain_of_reduced_precision_is_measured_against_strict_float32() -> None:
    items = observe("c15_amp_speed")
    assert set(items) == {"C15.gemm.tf32", "C15.gemm.fp16", "C15.gemm.bf16"}
    assert said(items["C15.gemm.tf32"]) == (Verdict.SKIP, "NO_TF32")
    ran = [item for item in items.values() if item["status"] == "ran"]
    for item in ran:
        assert ruled(item).verdict is Verdict.PASS
        assert ruled(item).rule["gates"] is False


def test_reduced_precision_without_tensor_cores_is_noticed() -> None:
    check = module("checks.c15_amp_speed")
    ctx = context()
    with module("timing").single_thread(torch):
        product = check.Product(ctx, "fp32", 256)
        clock = module("timing").wall_clock()
        measured = module("timing").measure(
            [("fp32", product), ("fp16", product)], clock, samples=5, warmup_cap_s=0.05, budget_s=0.5
        )
    observed = {
        "precision": "fp16",
        "capability": "8.0",
        "tflops": 1.0,
        "tflops_fp32": 1.0,
        "over_fp32": check._gain(measured, "fp32", "fp16"),
        "over_tf32": None,
    }
    held = [module("observation").control("planted", True)]
    item = module("observation").ran("C15.gemm.fp16", "gpu:0", observed, held, noise={"gate": "clean"})
    assert said(item) == (Verdict.FAIL, "TENSOR_CORES_UNUSED")
    assert found(item).rule["gates"] is True


def test_mixed_precision_keeps_less_where_activations_rule_and_more_with_few_samples() -> None:
    items = observe("c16_amp_memory")
    assert items["C16.batch8"]["observed"]["saved_ratio"] > 10
    assert "copies of the weights" in found(items["C16.batch8"]).message
    if items["C16.batch8192"]["status"] == "ran":
        assert said(items["C16.batch8192"]) == (Verdict.PASS, None)


def test_autocast_that_lowers_nothing_saves_nothing_and_its_control_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    compat = module("compat")
    real = compat.autocast
    monkeypatch.setattr(compat, "autocast", lambda *arguments, **_: real(*arguments, enabled=False))
    monkeypatch.setattr(module("checks.c16_amp_memory"), "BATCHES", (512,))
    item = observe("c16_amp_memory")["C16.batch512"]
    assert said(item) == (Verdict.ERROR, "CONTROL_FAILED")
    held = {**item, "controls": [{"name": "planted", "held": True, "detail": ""}]}
    assert said(held) == (Verdict.WARN, "AMP_SAVES_LITTLE")


# C18


def compiled(promise: str | None, limit_s: float = 75.0) -> dict[str, Any]:
    ctx = context(features={"compile": promise})
    check = module("checks.c18_compile")
    before, check.LIMIT_S = check.LIMIT_S, limit_s
    try:
        return observe("c18_compile", ctx)["C18.inductor"]
    finally:
        check.LIMIT_S = before


def test_torch_compile_generates_kernels_here_or_says_why_not() -> None:
    item = compiled("required")
    spec = {"features": {"compile": "required"}}
    if item["observed"]["error"] is None:
        assert said(item, spec) == (Verdict.PASS, None)
        assert item["observed"]["kernels"]
    else:
        assert found(item, spec).reason_code in ("NO_COMPILER", "NO_PYTHON_HEADERS", "COMPILE_TIME_LIMIT")


def test_an_image_without_a_compiler_fails_where_compiling_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setenv("CXX", "no-such-compiler")
    item = compiled("required")
    assert item["observed"]["compilers"] == {}
    assert said(item, {"features": {"compile": "required"}}) == (Verdict.FAIL, "NO_COMPILER")
    assert said(item, {"features": {"compile": "optional"}}) == (Verdict.WARN, "NO_COMPILER")
    assert found(item, {"features": {"compile": "required"}}).rule["gates"] is True


def test_a_compiler_variable_that_is_empty_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    finding = found(compiled("required"), {"features": {"compile": "required"}})
    assert finding.verdict is Verdict.FAIL
    assert finding.reason_code in ("COMPILER_VARIABLE_EMPTY", "NO_COMPILER")


def test_a_compiler_that_never_answers_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "g++"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(slow))
    item = compiled("required", limit_s=6.0)
    assert said(item, {"features": {"compile": "required"}}) == (Verdict.INCONCLUSIVE, "COMPILE_TIME_LIMIT")


def test_an_image_that_is_not_to_compile_is_not_asked() -> None:
    with pytest.raises(module("observation").Skip, match="does not compile"):
        compiled("absent")


# C19


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


# C20


def test_two_processes_add_up_and_share_gradients() -> None:
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == said(items["C20.ddp.gloo"]) == (Verdict.PASS, None)
    assert said(items["C20.bandwidth.nccl"]) == (Verdict.SKIP, "NO_GPU")


def site(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have every Python that is started import ``text`` first."""
    (folder / "sitecustomize.py").write_text(text)
    known = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(known))


def test_an_all_reduce_that_loses_an_element_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(
        tmp_path,
        monkeypatch,
        "import torch.distributed as group\n"
        "plain = group.all_reduce\n"
        "def lossy(tensor, *rest, **named):\n"
        "    plain(tensor, *rest, **named)\n"
        "    tensor[-1] -= 1\n"
        "group.all_reduce = lossy\n",
    )
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == (Verdict.FAIL, "COLLECTIVE_WRONG")
    assert found(items["C20.allreduce.gloo"]).rule["gates"] is True


def test_ddp_that_shares_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(
        tmp_path,
        monkeypatch,
        "import torch\n"
        "class Alone(torch.nn.Module):\n"
        "    def __init__(self, module, device_ids=None):\n"
        "        super().__init__()\n"
        "        self.module = module\n"
        "    def forward(self, inputs):\n"
        "        return self.module(inputs)\n"
        "torch.nn.parallel.DistributedDataParallel = Alone\n",
    )
    assert said(observe("c20_collectives")["C20.ddp.gloo"]) == (Verdict.FAIL, "DDP_GRADIENT_WRONG")


def test_an_interface_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == (Verdict.FAIL, "SOCKET_INTERFACE")


def test_a_group_that_never_meets_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(tmp_path, monkeypatch, "import sys, time\nif len(sys.argv) > 3 and sys.argv[3] == '1': time.sleep(60)\n")
    monkeypatch.setitem(module("checks.c20_collectives").LIMITS_S, "gloo", 5.0)
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == (Verdict.INCONCLUSIVE, "COLLECTIVE_TIME_LIMIT")


# C21


def test_without_pillow_the_check_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    check = module("checks.c21_jpeg")
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(module("observation").Skip, match="no Pillow"):
        check.run(context())


def test_decoders_agree_and_one_that_does_not_is_named() -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install pillow")
    items = observe("c21_jpeg")
    small = items["C21.small"]
    assert ruled(small).verdict in (Verdict.PASS, Verdict.WARN)
    small["observed"]["largest_difference"]["pillow"] = 66
    assert (ruled(small).verdict, ruled(small).reason_code) == (Verdict.FAIL, "DECODERS_DISAGREE")


# C22


def test_storage_is_read_past_the_page_cache_or_the_record_says_so() -> None:
    items = observe("c22_storage", context("deep"))
    assert {"C22.image_read", "C22.image_random", "C22.scratch_write"} == set(items)
    for item in items.values():
        direct = item["observed"].get("direct")
        assert said(item)[1] in ((None, "IN_MEMORY") if direct is not False else ("PAGE_CACHE",))
        assert all(control["held"] for control in item["controls"])


def test_a_file_that_reads_differently_past_the_cache_is_noticed(tmp_path: Path) -> None:
    check = module("checks.c22_storage")
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(bytes(1 << 16))
    other.write_bytes(bytes([1]) * (1 << 16))
    file = check.Direct(one)
    assert check._same_bytes(file, one)["held"]
    assert not check._same_bytes(file, other)["held"]
    file.close()


# C23


def test_the_mini_training_learns_and_its_parts_are_named() -> None:
    ctx = context()
    item = observe("c23_training", ctx)["C23.training"]
    finding = ruled(item)
    assert finding.verdict in (Verdict.PASS, Verdict.WARN)
    assert item["observed"]["loss_last"] < item["observed"]["loss_first"]
    assert finding.derived["bottleneck"] in ("data", "overlap", "contention", "compute")
    assert ctx.notes["starved_share"] == item["observed"]["starved_share"]


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


# C24


class OnCpu:
    """The context of a load that runs on the CPU: its arithmetic is the same, only slower."""

    device = "cpu"

    def __init__(self) -> None:
        self.torch = torch


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    check = module("checks.c24_sustained")
    monkeypatch.setattr(check, "SIZE", 64)
    monkeypatch.setattr(check, "CHUNK_S", 0.01)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return check.Load(OnCpu())


def test_equal_products_stay_equal_under_load_and_a_fault_is_counted_once(load: Any) -> None:
    chunks = load.keep_up(0.2)
    assert len(chunks) >= 2
    assert all(chunk["products"] >= 1 and chunk["tflops"] > 0 for chunk in chunks)
    assert load.different() == 0
    assert load.notices_a_fault()
    assert load.different() == 0


def test_a_result_that_drifts_under_load_is_noticed(load: Any) -> None:
    load.left[0, 0] += 1
    load.keep_up(0.05)
    observed = {"seconds": 1, "products": 2, "tflops_first": 1, "tflops_last": 1, "different": load.different()}
    item = module("observation").ran("C24.load", "gpu:0", observed, [module("observation").control("planted", True)])
    assert said(item) == (Verdict.FAIL, "RESULTS_CHANGE_UNDER_LOAD")


# What only a GPU can do


@pytest.mark.parametrize("name", ["C11", "C24"])
def test_what_needs_a_gpu_says_so_without_one(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    suite, registry = module("suite"), module("registry")
    (check,) = registry.select(registry.load(), "deep", [name])
    (item,) = suite.run_check(context("deep"), check)
    assert (item["id"], item["status"], item["reason"]["code"]) == (name, "skip", "NO_GPU")


# The trace


def test_a_trace_holds_the_parts_of_a_step() -> None:
    taken = module("trace").capture(context())
    tree = json.loads(unpacked(packed_trace({"trace": taken})))
    names = {event.get("name") for event in tree["traceEvents"]}
    assert {"data_wait", "h2d", "train"} <= names


def test_a_trace_that_does_not_fit_is_taken_again_with_fewer_steps() -> None:
    taken = module("trace").capture(context(loader={"num_workers": 0}))
    again = module("trace").capture(context(loader={"num_workers": 0}), limit=int(len(taken["data"]) * 0.7))
    assert again["steps"] < taken["steps"]
    with pytest.raises(ValueError, match="one step"):
        module("trace").capture(context(loader={"num_workers": 0}), limit=100)


# The archive


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
    judged = judge(document, {}, select("deep", chosen), RULES)
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
