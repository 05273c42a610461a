"""The checks of this payload, run one after another, each with its own time limit."""

import contextlib
import importlib
import json
import pkgutil
import signal
import sys
import time
import traceback

from . import compat, env, mini_train, observation, timing

TIERS = ("quick", "standard", "deep")
CATALOG = "catalog.json"
TIME_FACTOR = 4  # limit / budget of a check, for slow and busy machines
# Extra seconds for the first check that imports torch: half a minute from a cold disk on a busy machine.
IMPORT_S = 30.0
# Seconds for one reading of the environment, which calls NVML for every GPU.
ENV_S = 20.0
# Extra time for the first check that starts CUDA in this process, as a multiple of the measured start.
START_FACTOR = 2.0


class Check:
    """One check: its row of the catalog, and the function ``run`` of its ``observe`` module."""

    def __init__(self, row, run):
        self.id = row["id"]
        self.title = row["title"]
        self.tier = row["tier"]
        self.needs = row["needs"]  # "host", "torch" or "cuda"
        self.budget_s = row["budget_s"]
        self.budgets_s = row["budgets_s"]
        self.run = run

    def budget(self, tier):
        """Return the check's time budget in ``tier`` in seconds; it may be larger in a deeper tier."""
        return self.budgets_s.get(tier, self.budget_s)


def packed():
    """Return the rows of the catalog in the payload's archive, in the order in which the checks run."""
    return json.loads(pkgutil.get_data("envkit.checks", CATALOG).decode("utf-8"))


def load(rows):
    """Import the checks of ``rows`` and return them in the same order."""
    return [Check(row, _code(row["folder"]).run) for row in rows]


def _code(folder):
    """Return the module of a check: in the payload's archive a file, in envkit the ``observe.py`` of its folder."""
    module = importlib.import_module("envkit.checks." + folder)
    return module if hasattr(module, "run") else importlib.import_module(module.__name__ + ".observe")


def select(checks, tier, only=()):
    """Return the checks of ``tier`` and of the cheaper tiers; with ``only``, the checks with these IDs of any tier."""
    allowed = TIERS[: TIERS.index(tier) + 1]
    unknown = sorted(set(only) - {check.id for check in checks})
    if unknown:
        raise ValueError("no such check: " + ", ".join(unknown))
    return [check for check in checks if (check.id in only if only else check.tier in allowed)]


class TimeLimit(BaseException):
    """Raised by the timer inside a check. It is not an Exception, so that no check catches it by accident."""


def run_suite(ctx, checks, send, with_trace=False):
    """Run ``checks`` and pass each observation to ``send(kind, value)`` at once; see ``supervisor``.

    A check that exceeds TIME_FACTOR times its budget is interrupted, and the next one starts. If it cannot be
    interrupted (a call into the driver never returns), the supervisor ends it, which got the limit from ``send``.
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
            # Read now: after later checks the driver may not answer any more.
            asked = True
            _send_env(ctx, send)
    if with_trace:
        send("doing", {"doing": "the trace", "limit_s": mini_train.TRACE_S, "gpu": False})
        send("trace", _guarded_trace(ctx))
    _send_env(ctx, send)


def _send_env(ctx, send):
    send("doing", {"doing": "reading the environment", "limit_s": ENV_S, "gpu": False})
    try:
        with interrupted_after(ENV_S):
            tree = env.collect(ctx)
    except TimeLimit:
        return
    send("env", observation.finite(tree))


def run_check(ctx, check, limit=None, send=None):
    """Run one check and return its observations; ``send`` is called with each of them at once.

    Anything that the check raises becomes an observation. After a CUDA error that makes the device unusable, later
    checks that need the device are skipped.
    """
    begin = time.monotonic()
    limit = _limit(ctx, check) if limit is None else limit
    ctx.deadline = begin + limit
    items = []

    def take(item):
        if item["duration_s"] is None:
            item["duration_s"] = round(time.monotonic() - begin, 4)
        items.append(item)
        if send is not None:
            send(item)

    try:
        with interrupted_after(limit):
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
    if not items:
        take(observation.failed(check.id, "host", "NOTHING_OBSERVED", "the check returned no observation"))
    return items


def _raised(ctx, check, error):
    """Return the observation of a check that raised: GPU memory was short, the device is lost, or any other error."""
    if ctx.lost_in is not None and ctx.tried_torch and compat.is_cuda_error(ctx.torch, error):
        # torch.manual_seed reaches for every device, so checks fail on the CPU as well.
        return _skipped_lost(ctx, check)
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
    """Whether the device still computes: after an error of a single call it does."""
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
            return [_skipped_lost(ctx, check)]
        if not ctx.cuda_usable:
            return [observation.skipped(check.id, "gpu:0", "CUDA_UNUSABLE", "the kernel check failed on this GPU")]
        return [observation.skipped(check.id, "gpu:0", "NO_GPU", "torch sees no CUDA device here")]
    return None


def _skipped_lost(ctx, check):
    message = f"{ctx.lost_in} ended with a CUDA error after which nothing works on this GPU"
    return observation.skipped(check.id, "gpu:0", "CUDA_CONTEXT_LOST", message)


def _subject(ctx, check):
    return "host" if check.needs == "host" else ctx.subject


@contextlib.contextmanager
def interrupted_after(seconds):
    """Raise TimeLimit in the block after ``seconds``; the limit of an enclosing block continues afterwards.

    An import gets as many seconds again to finish: a module that is imported in part would break every later check.
    """

    def interrupt(_signum, frame):
        imports = any("importlib" in caller.f_code.co_filename for caller, _ in traceback.walk_stack(frame))
        if not imports or time.monotonic() > begin + 2 * seconds:
            raise TimeLimit
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    previous = signal.signal(signal.SIGALRM, interrupt)
    begin, left = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, seconds)[0]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left and max(0.001, left - time.monotonic() + begin))
        signal.signal(signal.SIGALRM, previous)


def _limit(ctx, check):
    first = 0.0 if ctx.tried_torch or check.needs == "host" else IMPORT_S
    # With many GPUs, or without persistence mode, the first context of a process takes long.
    start = 0.0 if ctx.looked_for_cuda or check.needs == "host" else START_FACTOR * ctx.notes.get("cuda_start_s", 0.0)
    own = (ctx.spec.get("data") or {}).get("limit_s", 0.0) if check.id == "C12" else 0.0
    return check.budget(ctx.tier) * TIME_FACTOR * timing.effort() + first + start + own


def _over_time(check, limit):
    return observation.failed(
        check.id, "host", "TIME_LIMIT", f"{check.id} ran longer than {limit:g} s: it was interrupted"
    )


def _guarded_trace(ctx):
    try:
        with interrupted_after(mini_train.TRACE_S):
            return mini_train.trace(ctx)
    except TimeLimit:
        return {"error": f"it took longer than {mini_train.TRACE_S:g} s"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
