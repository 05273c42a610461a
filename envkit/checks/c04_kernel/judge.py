"""C04: did a real kernel compute the right answer, and do errors surface?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import last_line
from envkit.knowledge import matching

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Env, Finding

# The reason codes of the rows of known failures that keep a kernel from running.
_CODES = frozenset({
    "CPU_BUILD_INSTALLED", "DRIVER_NOT_READY", "DRIVER_TOO_OLD", "GPU_EXCLUSIVE", "GPU_NOT_VISIBLE",
    "GPU_OUT_OF_MEMORY", "NO_KERNEL_IMAGE",
})  # fmt: skip
_SLOW = "Turn on persistence mode (nvidia-smi -pm 1) or give the container fewer GPUs, and run it again."


def judge(case: Case) -> Finding:
    """Judge C04.kernel: any answer but the exact one is a failure of the GPU."""
    observed = case.observed
    case.rule("equals", total=observed.get("expected_total"), last=observed.get("expected_last"))
    outcome = case.text("outcome")
    # Without persistence mode the driver initializes every GPU of the container before CUDA starts.
    if outcome == "timeout" and observed.get("driver_answers") is True and observed.get("started") is False:
        message = f"CUDA did not start: {case.text('text')}; the driver itself answers"
        return case.inconclusive("GPU_SLOW_TO_START", message, _SLOW)
    if outcome == "timeout":
        advice = "The GPU hangs: read the kernel log for Xid messages (dmesg), reset the GPU or restart the machine."
        return case.fail("GPU_HANGS", f"the GPU gave {case.text('text')}", advice)
    if outcome != "answered":
        return _failed(case)
    expected, last = case.value("expected_total"), observed.get("expected_last")
    # The image reports the expected values as well, so two empty lists must not pass as equal.
    if case.value("total") != expected or observed.get("last") != last or not last:
        returned = f"{observed.get('total')} and {observed.get('last')}"
        advice = "The GPU computes wrong results: run dcgmi diag -r 3 on the host."
        return case.fail("WRONG_RESULT", f"the kernel returned {returned}, not {expected:.0f} and {last}", advice)
    seconds = case.value("init_s")
    case.metric("cuda_init", seconds, "s", "lower")
    return case.passed(f"exact result; CUDA was ready after {seconds:.2f} s")


def _failed(case: Case) -> Finding:
    error = case.text("text")
    last = last_line(error) or "no message"
    known = matching.reason(error, _CODES)
    if known is not None:
        code, row = known
        return case.fail(code, last, *(_hidden(code, case.env) or row.fix))
    advice = "Run the failing command by hand: python -c 'import torch; print(torch.zeros(1, device=\"cuda\"))'"
    return case.fail("KERNEL_FAILED", last, advice)


def _hidden(code: str, env: Env) -> tuple[str, ...]:
    """Return the advice if a variable hides the container's GPUs, else an empty tuple."""
    flags = env.get("flags")
    value = flags.get("CUDA_VISIBLE_DEVICES") if isinstance(flags, dict) else None
    if code != "GPU_NOT_VISIBLE" or value is None:
        return ()
    return (f"CUDA_VISIBLE_DEVICES={value!s:.80} hides the GPUs: unset it, or name one that nvidia-smi -L lists.",)
