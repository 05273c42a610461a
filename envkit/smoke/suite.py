"""Run checks one after another, each within its time limit, and build the document."""

import contextlib
import datetime as dt
import os
import signal
import sys
import threading
import time

from . import SCHEMA, SUITE_VERSION, env, observation, timing, trace

TIME_FACTOR = 4
# Seconds on top for the check that imports torch first: half a minute from a cold disk on a busy machine.
IMPORT_S = 30.0
GRACE_S = 5.0


class TimeLimit(BaseException):
    """Raised into a check by the timer. Not an Exception, so that no check swallows it."""


def run_suite(ctx, checks, tier, emit, with_trace=False):
    """Run ``checks`` and hand the finished document to ``emit``.

    A check that exceeds TIME_FACTOR times its budget is interrupted and the next one starts. One that cannot be
    interrupted (a call that never returns from the driver) ends the process after GRACE_S, with the document so far.
    ``with_trace`` adds a profile of the small training job.
    """
    run = Run(ctx, tier, emit)
    for check in checks:
        run.order.append(check.id)
        limit = _limit(ctx, check)
        watchdog = threading.Timer(limit + GRACE_S, run.abandon, (check, checks, limit))
        watchdog.daemon = True
        watchdog.start()
        print(f"{check.id} {check.title}", file=sys.stderr, flush=True)
        try:
            run.observations.extend(run_check(ctx, check, limit))
        finally:
            watchdog.cancel()
    if with_trace:
        run.trace = _guarded_trace(ctx)
    run.finish(_guarded_env(ctx))


class Run:
    """The document in the making. Only the first ``finish`` prints it: the watchdog and the suite may meet."""

    def __init__(self, ctx, tier, emit):
        self.ctx = ctx
        self.tier = tier
        self.emit = emit
        self.observations = []
        self.order = []
        self.trace = None
        self._started = dt.datetime.now(dt.timezone.utc).isoformat()
        self._begin = time.monotonic()
        self._once = threading.Lock()

    def finish(self, environment):
        """Print the document, unless it is printed already."""
        if not self._once.acquire(blocking=False):
            return
        self.emit(
            {
                "schema": SCHEMA,
                "nonce": str(self.ctx.spec.get("nonce", "")),
                "suite_version": SUITE_VERSION,
                "started": self._started,
                "duration_s": round(time.monotonic() - self._begin, 3),
                "tier": self.tier,
                "seed": self.ctx.seed,
                "env": observation.finite(environment),
                "checks": self.observations,
                "order": self.order,
                **({} if self.trace is None else {"trace": self.trace}),
            }
        )

    def abandon(self, check, checks, limit):
        """End the process with what is known: ``check`` never returned and cannot be interrupted."""
        self.observations.append(_over_time(check, limit, "it could not be interrupted; the suite stopped here"))
        left = [other.id for other in checks if other.id not in self.order]
        message = f"{check.id} never returned"
        self.observations.extend(observation.failed(name, "host", "SUITE_STOPPED", message) for name in left)
        self.finish({})
        os._exit(0)


def run_check(ctx, check, limit=None):
    """Run one check and return its observations; whatever it raises becomes an observation."""
    begin = time.monotonic()
    limit = _limit(ctx, check) if limit is None else limit
    ctx.deadline = begin + limit
    try:
        with _interrupted_after(limit):
            result = _applicable(ctx, check) or list(check.run(ctx))
    except observation.Skip as skip:
        result = [observation.skipped(check.id, _subject(ctx, check), skip.code, skip.message)]
    except TimeLimit:
        result = [_over_time(check, limit, "it was interrupted")]
    except Exception as error:
        result = [observation.raised(check.id, _subject(ctx, check), error)]
    finally:
        ctx.deadline = None
    if not result:
        result = [observation.failed(check.id, "host", "NOTHING_OBSERVED", "the check returned no observation")]
    elapsed = time.monotonic() - begin
    for item in result:
        if item["duration_s"] is None:
            item["duration_s"] = round(elapsed, 4)
    return result


def _applicable(ctx, check):
    if check.needs == "host":
        return None
    if not ctx.has_torch:
        message = f"torch cannot be imported: {ctx.torch_error}"
        return [observation.skipped(check.id, "image", "TORCH_MISSING", message)]
    if check.needs == "cuda" and not ctx.has_cuda:
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
    return check.budget(ctx.tier) * TIME_FACTOR * timing.effort() + first


def _over_time(check, limit, what):
    message = f"{check.id} ran longer than {limit:g} s: {what}"
    return observation.failed(check.id, "host", "TIME_LIMIT", message)


def _guarded_trace(ctx):
    try:
        with _interrupted_after(trace.BUDGET_S):
            return trace.capture(ctx)
    except TimeLimit:
        return {"error": f"it took longer than {trace.BUDGET_S:g} s"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _guarded_env(ctx):
    try:
        return env.collect(ctx)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
