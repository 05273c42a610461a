from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

observation: Any = import_module("envkit.smoke.observation")
suite: Any = import_module("envkit.smoke.suite")
supervisor: Any = import_module("envkit.smoke.supervisor")
Ctx: Any = import_module("envkit.smoke.context").Ctx


def check(run: Any, needs: str = "host", budget: float = 1.0, name: str = "C90", tier: str = "quick") -> Any:
    row = {"id": name, "title": "a check", "tier": tier, "needs": needs, "budget_s": budget, "budgets_s": {}}
    return suite.Check(row, run)


def context(**spec: Any) -> Any:
    return Ctx({"nonce": "n", **spec})


def without_torch() -> Any:
    ctx = context()
    ctx.torch_error = ImportError("libcudart.so.12: cannot open shared object file")
    return ctx


def only(found: list[dict[str, Any]]) -> dict[str, Any]:
    assert len(found) == 1
    return found[0]


def test_an_exception_becomes_an_observation() -> None:
    def run(_ctx: Any) -> Any:
        raise KeyError("lost")

    found = only(suite.run_check(context(), check(run)))
    assert (found["id"], found["status"], found["reason"]["code"]) == ("C90", "error", "EXCEPTION")
    assert "KeyError" in found["reason"]["message"]


def test_a_skip_keeps_its_reason() -> None:
    def run(_ctx: Any) -> Any:
        raise observation.Skip("NOT_PROMISED", "the plan declares no loader")

    found = only(suite.run_check(context(), check(run)))
    assert (found["status"], found["reason"]["code"]) == ("skip", "NOT_PROMISED")


def test_a_check_without_an_observation_is_an_error() -> None:
    assert only(suite.run_check(context(), check(lambda _ctx: [])))["reason"]["code"] == "NOTHING_OBSERVED"


def test_a_check_over_its_time_is_interrupted_even_where_it_swallows_exceptions() -> None:
    def run(_ctx: Any) -> Any:
        while True:
            try:
                time.sleep(0.01)
            except Exception:  # noqa: BLE001 - what a careless check does
                continue

    found = only(suite.run_check(context(), check(run, budget=0.05)))
    assert found["reason"]["code"] == "TIME_LIMIT"


@pytest.mark.parametrize(("import_s", "whole"), [(0.3, True), (300.0, False)])
def test_an_import_ends_before_its_check_is_interrupted_unless_it_takes_as_long_again(
    import_s: float, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that was half imported made every later check fail with "module has no attribute"."""
    (tmp_path / "slow_package.py").write_text(f"import time\ntime.sleep({import_s})\nends = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_package", raising=False)

    def run(_ctx: Any) -> Any:
        import_module("slow_package")
        time.sleep(300)

    found = only(suite.run_check(context(), check(run), 0.2))
    assert found["reason"]["code"] == "TIME_LIMIT"
    assert hasattr(sys.modules.get("slow_package"), "ends") == whole


def test_the_check_that_imports_torch_has_time_for_it() -> None:
    class Slow(Ctx):  # type: ignore[misc]  # the payload is not typed
        tried_torch = False

        @property
        def torch(self) -> Any:
            if not self.tried_torch:
                time.sleep(0.5)
                self.tried_torch = True
            return SimpleNamespace()

    quick = check(lambda _ctx: [observation.ran("C90", "cpu", {})], needs="torch", budget=0.05)
    ctx = Slow({"nonce": "n"})
    assert only(suite.run_check(ctx, quick))["status"] == "ran"
    late = check(lambda _ctx: time.sleep(5), needs="torch", budget=0.05)
    assert only(suite.run_check(ctx, late))["reason"]["code"] == "TIME_LIMIT"


def test_the_first_check_that_starts_cuda_has_time_for_it() -> None:
    ctx = context()
    ctx.torch_error = ImportError("none")
    ctx.notes["cuda_start_s"] = 40.0
    first = suite._limit(ctx, check(None, needs="cuda"))
    assert suite._limit(ctx, check(None, needs="host")) == suite.TIME_FACTOR
    ctx._cuda = True
    assert first == suite._limit(ctx, check(None, needs="cuda")) + 80.0


@pytest.mark.parametrize("needs", ["torch", "cuda"])
def test_without_torch_the_checks_that_need_it_say_so(needs: str) -> None:
    def run(_ctx: Any) -> Any:
        raise AssertionError("must not run")

    found = only(suite.run_check(without_torch(), check(run, needs=needs)))
    assert (found["status"], found["reason"]["code"]) == ("skip", "TORCH_MISSING")
    assert "libcudart.so.12" in found["reason"]["message"]


def test_every_observation_gets_a_duration() -> None:
    found = only(suite.run_check(context(), check(lambda _ctx: [observation.ran("C90.x", "host", {})])))
    assert found["duration_s"] >= 0


def sent(ctx: Any, checks: list[Any]) -> list[tuple[str, Any]]:
    """What a run sends, in order."""
    messages: list[tuple[str, Any]] = []
    suite.run_suite(ctx, checks, lambda kind, value: messages.append((kind, value)))
    return messages


def test_the_document_names_its_run_and_survives_strict_json() -> None:
    ran = check(lambda _ctx: [observation.ran("C90.x", "host", {"value": float("nan")})])
    broken = check(lambda _ctx: 1 / 0, name="C91")
    ctx = without_torch()
    run = supervisor.Run(ctx, "quick", [ran, broken])
    for message in sent(ctx, [ran, broken]):
        run.take(json.loads(json.dumps(message, allow_nan=False)))
    document = run.document()
    assert (document["schema"], document["nonce"], document["order"]) == ("envkit.payload/1", "n", ["C90", "C91"])
    assert [item["status"] for item in document["checks"]] == ["ran", "error"]
    assert set(document["env"]) == {"host", "gpu", "sw", "flags"}


def test_an_observation_is_sent_when_it_is_made_and_kept_where_the_check_fails_later() -> None:
    order: list[str] = []

    def run(_ctx: Any) -> Any:
        yield observation.ran("C90.first", "host", {})
        order.append("goes on")
        raise ValueError("later")

    suite.run_suite(without_torch(), [check(run)], lambda kind, value: order.append(value.get("id") or kind))
    begin = order.index("C90.first")
    assert order[begin : begin + 3] == ["C90.first", "goes on", "C90"]


def test_the_environment_is_sent_first_without_torch_or_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    env = import_module("envkit.smoke.env")
    monkeypatch.setattr(env.nvml, "open_session", lambda: pytest.fail("a driver may hang"))
    ctx = context()
    first = env.collect(ctx, first=True)
    assert (first["gpu"], ctx.tried_torch) == ([], False)
    assert first["host"]["effective"] > 0


def test_a_tier_holds_the_cheaper_ones_and_only_narrows() -> None:
    modules = [check(None, name="C90"), check(None, name="C91", tier="deep")]
    assert [m.id for m in suite.select(modules, "quick")] == ["C90"]
    assert [m.id for m in suite.select(modules, "deep")] == ["C90", "C91"]
    assert [m.id for m in suite.select(modules, "quick", ["C91"])] == ["C91"]
    with pytest.raises(ValueError, match="no such check: C99"):
        suite.select(modules, "quick", ["C99"])


def lost(error: Exception) -> tuple[Any, Any]:
    """Return a context whose device an earlier check lost, and a check that raises this error."""

    def run(_ctx: Any) -> Any:
        raise error

    ctx = context()
    ctx._torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True))
    ctx.lose_device("C05")
    return ctx, check(run, needs="torch")


@pytest.mark.parametrize(
    "text", ["CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'", "cuBLAS: CUBLAS_STATUS_ALLOC"]
)
def test_a_check_that_meets_a_lost_device_is_skipped(text: str) -> None:
    """torch.manual_seed reaches for every device, also in a check that computes on the CPU."""
    found = only(suite.run_check(*lost(RuntimeError(text))))
    assert (found["status"], found["subject"]) == ("skip", "gpu:0")
    assert found["reason"]["code"] == "CUDA_CONTEXT_LOST"
    assert found["reason"]["message"].startswith("C05 ended with a CUDA error")


def test_another_error_after_a_lost_device_stays_an_error() -> None:
    found = only(suite.run_check(*lost(ValueError("a bug"))))
    assert (found["status"], found["reason"]["code"]) == ("error", "EXCEPTION")
