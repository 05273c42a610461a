"""C04: did a real kernel compute the right answer, and do errors surface?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.fields import last_line, number, text
from envkit.checks.model import Finding, Verdict
from envkit.knowledge import matching

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

# The reason codes of the rows of known failures that keep a kernel from running.
_CODES = frozenset({
    "CPU_BUILD_INSTALLED", "DRIVER_NOT_READY", "DRIVER_TOO_OLD", "GPU_EXCLUSIVE", "GPU_NOT_VISIBLE",
    "GPU_OUT_OF_MEMORY", "NO_KERNEL_IMAGE",
})  # fmt: skip
_SLOW = ("Turn on persistence mode (nvidia-smi -pm 1) or give the container fewer GPUs, and run it again.",)


def judge(observation: Observation, _spec: Spec, env: Env) -> Finding:
    """Judge C04.kernel: any answer but the exact one is a failure of the GPU."""
    observed = observation["observed"]
    rule = {"type": "equals", "total": observed.get("expected_total"), "last": observed.get("expected_last")}
    outcome = text(observed, "outcome")
    # Without persistence mode the driver initializes every GPU of the container before CUDA starts.
    if outcome == "timeout" and observed.get("driver_answers") is True and observed.get("started") is False:
        message = f"CUDA did not start: {text(observed, 'text')}; the driver itself answers"
        return Finding(Verdict.INCONCLUSIVE, message, "GPU_SLOW_TO_START", _SLOW, rule)
    if outcome == "timeout":
        advice = ("The GPU hangs: read the kernel log for Xid messages (dmesg), reset the GPU or restart the machine.",)
        return Finding(Verdict.FAIL, f"the GPU gave {text(observed, 'text')}", "GPU_HANGS", advice, rule)
    if outcome != "answered":
        return _failed(text(observed, "text"), rule, env)
    expected, last = number(observed, "expected_total"), observed.get("expected_last")
    # The image reports the expected values as well, so two empty lists must not pass as equal.
    if number(observed, "total") != expected or observed.get("last") != last or not last:
        message = (
            f"the kernel returned {observed.get('total')} and {observed.get('last')}, not {expected:.0f} and {last}"
        )
        advice = ("The GPU computes wrong results: run dcgmi diag -r 3 on the host.",)
        return Finding(Verdict.FAIL, message, "WRONG_RESULT", advice, rule)
    seconds = number(observed, "init_s")
    metric = {"name": "cuda_init", "value": seconds, "unit": "s", "better": "lower"}
    return Finding(Verdict.PASS, f"exact result; CUDA was ready after {seconds:.2f} s", rule=rule, metric=metric)


def _failed(error: str, rule: dict[str, object], env: Env) -> Finding:
    last = last_line(error) or "no message"
    known = matching.reason(error, _CODES)
    if known is not None:
        code, row = known
        return Finding(Verdict.FAIL, last, code, _hidden(code, env) or row.fix, rule)
    advice = "Run the failing command by hand: python -c 'import torch; print(torch.zeros(1, device=\"cuda\"))'"
    return Finding(Verdict.FAIL, last, "KERNEL_FAILED", (advice,), rule)


def _hidden(code: str, env: Env) -> tuple[str, ...]:
    """Return the advice if a variable hides the container's GPUs, else an empty tuple."""
    flags = env.get("flags")
    value = flags.get("CUDA_VISIBLE_DEVICES") if isinstance(flags, dict) else None
    if code != "GPU_NOT_VISIBLE" or value is None:
        return ()
    return (f"CUDA_VISIBLE_DEVICES={value!s:.80} hides the GPUs: unset it, or name one that nvidia-smi -L lists.",)
