"""Launches with given numbers, and records of them, for tests of comparisons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.verify.compare.decide import Launch
from envkit.verify.compare.metrics import Reading
from envkit.verify.driver import Options, verify_image
from tests.support.judging import Replay, document, inspected, observation, plan, printed

NOISY = "CPU pressure 0.40 above 0.10"


def reading(value: float, name: str = "C14.bench.mlp.fp32", **changed: Any) -> Reading:
    """Return one metric of one launch: CPU time on a quiet machine, unless `changed`."""
    known: dict[str, Any] = {"id": name, "subject": "cpu", "name": "t", "unit": "ms", "better": "lower", "clock": "cpu"}
    return Reading(value=value, **{**known, **changed})


def side(values: Sequence[float], name: str = "C14.bench.mlp.fp32", **changed: Any) -> list[Launch]:
    """Return launches of one metric with these values."""
    return [{f"{name}@cpu": reading(value, name, **changed)} for value in values]


def timed(
    value: float, check_id: str = "C14.bench.mlp.fp32", *, gate: str = "clean", cpu: bool = True
) -> dict[str, Any]:
    """Return an observation of the step-time benchmark with a step of `value` ms."""
    samples: dict[str, Any] = {"unit": "ms", "n": 3, "clock": "perf_counter", "values": [value, 1.1 * value, 2 * value]}
    if cpu:
        samples["cpu_values"] = [value, 1.05 * value, 1.2 * value]
    observed = {"network": "mlp", "precision": "fp32", "step_ms": value, "time_ratio_to_fp32": 1.0, "threads": 1}
    errors = {"loss_rel_err": 0.0, "grad_rel_l2": 0.0, "grad_one_minus_cos": 0.0, "saved_bytes": 1, "peak_bytes": None}
    noise = {"gate": gate, "psi_cpu_some": 0.0 if gate == "clean" else 0.4}
    return observation(check_id, observed={**observed, **errors}, samples=samples, noise=noise)


def record(
    value: float, *, host: Mapping[str, Any] | None = None, options: Options | None = None, **changed: Any
) -> Any:
    """Return a record as plain JSON, made by the driver, of a run whose only timed check took `value` ms."""

    def answer(spec: dict[str, Any]) -> bytes:
        tree = document(timed(value, **changed), nonce=spec["nonce"])
        tree["env"]["host"].update(host or {})
        return printed(tree, spec["nonce"])

    made = plan(cuda=None)
    runner = Replay(answer, image=inspected(made))
    return json.loads(
        verify_image(image_name("img"), made, runner, Silent(), options or Options(only=("C14",))).to_bytes()
    )
