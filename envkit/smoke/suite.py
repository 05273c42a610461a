"""Run checks one after another, each within its time limit, and send what they observe."""

import contextlib
import signal
import sys
import time

from . import compat, env, observation, timing, trace

TIME_FACTOR = 4
# Seconds on top for the check that imports torch first: half a minute from a cold disk on a busy machine.
IMPORT_S = 30.0
# Seconds for one reading of the environment: NVML on every card.
ENV_S = 20.0
# How many times the measured start of CUDA the first check that starts it in this process gets on top.
START_FACTOR = 2.0


class TimeLimit(BaseException):
    """Raised into a check by the timer. Not an Exception, so that no check swallows it."""


def run_suite(ctx, checks, send, with_trace=False):
    """Run ``checks`` and ``send(kind, value)`` what they observe as it is made; see ``supervisor``.

    A check that exceeds TIME_FACTOR times its budget is interrupted and the next one starts. One that cannot be
    interrupted (a call that never returns from the driver) is up to the supervisor, which knows its limit.
    ``with_trace`` adds a profile of the small training job.
    """
    send("env", observation.finite(env.collect(ctx, first=True)))
    asked = False
    for check in checks:
        limit = _limit(ctx, check)
        on_gpu = check.needs == "cuda" or ctx.uses_gpu
        send("doing", {"check": check.id, "limit_s": limit, "gpu": bool(on_gpu)})
        print(f"{check.id} {check.title}", file=sys.stderr, flush=True)
        run_check(ctx, check, limit, lambda item: send("observation", item))
        if ctx.uses_gpu and not asked:
            # Later, the driver may no longer answer.
            asked = True
            _send_env(ctx, send)
    if with_trace:
        send("doing", {"doing": "the trace", "limit_s": trace.BUDGET_S, "gpu": False})
        send("trace", _guarded_trace(ctx))
    _send_env(ctx, send)


def _send_env(ctx, send):
    send("doing", {"doing": "reading the environment", "limit_s": ENV_S, "gpu": False})
    try:
        with _interrupted_after(ENV_S):
            found = env.collect(ctx)
    except TimeLimit:
        return
    send("env", observation.finite(found))


def run_check(ctx, check, limit=None, tell=None):
    """Run one check and return its observations; ``tell`` gets each of them as it is made.

    Whatever the check raises becomes an observation. A CUDA error after which nothing works on the device is named
    once, and later checks that need the device are skipped.
    """
    begin = time.monotonic()
    limit = _limit(ctx, check) if limit is None else limit
    ctx.deadline = begin + limit
    found = []

    def take(item):
        if item["duration_s"] is None:
            item["duration_s"] = round(time.monotonic() - begin, 4)
        found.append(item)
        if tell is not None:
            tell(item)

    try:
        with _interrupted_after(limit):
            for item in _applicable(ctx, check) or check.run(ctx):
                take(item)
    except observation.Skip as skip:
        take(observation.skipped(check.id, _subject(ctx, check), skip.code, skip.message))
    except TimeLimit:
        take(_over_time(check, limit))
    except Exception as error:
        take(_raised(ctx, check, error))
    finally:
        ctx.deadline = None
    if not found:
        take(observation.failed(check.id, "host", "NOTHING_OBSERVED", "the check returned no observation"))
    return found


def _raised(ctx, check, error):
    """Return the observation of a check that raised, with the cause where the device explains it."""
    if not (ctx.tried_torch and ctx.has_cuda):
        return observation.raised(check.id, _subject(ctx, check), error)
    short = compat.out_of_memory(ctx.torch, error)
    if short is not None:
        return observation.skipped(check.id, ctx.subject, "GPU_MEMORY_SHORT", short)
    if not compat.is_cuda_error(ctx.torch, error) or _works(ctx.torch):
        return observation.raised(check.id, _subject(ctx, check), error)
    ctx.lose_device(check.id)
    text = str(error).strip().splitlines() or [type(error).__name__]
    return observation.failed(
        check.id, "gpu:0", "CUDA_CONTEXT_LOST", f"{text[0]}; no later operation works on this GPU"
    )


def _works(torch):
    """Whether the device still computes: an error that only ended one call leaves it usable."""
    try:
        torch.zeros(1, device="cuda:0").add_(1).item()
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _applicable(ctx, check):
    if check.needs == "host":
        return None
    if not ctx.has_torch:
        message = f"torch cannot be imported: {ctx.torch_error}"
        return [observation.skipped(check.id, "image", "TORCH_MISSING", message)]
    if check.needs == "cuda" and not ctx.has_cuda:
        if ctx.lost_in is not None:
            message = f"{ctx.lost_in} ended with a CUDA error after which nothing works on this GPU"
            return [observation.skipped(check.id, "gpu:0", "CUDA_CONTEXT_LOST", message)]
        if not ctx.cuda_usable:
            return [observation.skipped(check.id, "gpu:0", "CUDA_UNUSABLE", "the kernel check failed on this GPU")]
        return [observation.skipped(check.id, "gpu:0", "NO_GPU", "torch sees no CUDA device here")]
    return None


def _subject(ctx, check):
    return "host" if check.needs == "host" else ctx.subject


@contextlib.contextmanager
def _interrupted_after(seconds):
    previous = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _interrupt(_signum, _frame):
    raise TimeLimit


def _limit(ctx, check):
    first = 0.0 if ctx.tried_torch or check.needs == "host" else IMPORT_S
    # A machine with many GPUs, or without persistence mode, needs long for the first context of a process.
    start = 0.0 if ctx.looked_for_cuda or check.needs == "host" else START_FACTOR * ctx.notes.get("cuda_start_s", 0.0)
    return check.budget(ctx.tier) * TIME_FACTOR * timing.effort() + first + start


def _over_time(check, limit):
    return observation.failed(
        check.id, "host", "TIME_LIMIT", f"{check.id} ran longer than {limit:g} s: it was interrupted"
    )


def _guarded_trace(ctx):
    try:
        with _interrupted_after(trace.BUDGET_S):
            return trace.capture(ctx)
    except TimeLimit:
        return {"error": f"it took longer than {trace.BUDGET_S:g} s"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
