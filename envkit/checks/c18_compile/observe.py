"""C18: does torch.compile generate kernels? A call that returns is no evidence: without a compiler it returns too."""

import os
import shutil

from envkit.smoke import probe
from envkit.smoke.observation import Skip, control, ran

LIMIT_S = 75.0  # a cold compiler with one thread
COMPILERS = ("c++", "g++", "clang++", "gcc", "cc", "clang")
ERROR_LINE = 1e-3


def run(ctx):
    """Return C18.inductor: the compilers, the error or the kernels, and how far the results are from eager ones."""
    promise = (ctx.spec.get("features") or {}).get("compile")
    if promise == "absent":
        raise Skip("NOT_PROMISED", "the plan says this image does not compile")
    observed = {
        "promise": promise,
        "compilers": {name: shutil.which(name) for name in COMPILERS if shutil.which(name)},
        "environment": {name: os.environ[name] for name in ("CC", "CXX") if name in os.environ},
    }
    if not hasattr(ctx.torch, "compile"):
        error = f"torch {ctx.torch.__version__} has no torch.compile; it begins with 2.0"
        held = not hasattr(ctx.torch, "_inductor")
        return [_absent(ctx, dict(observed, outcome="absent", error=error), control("no_inductor_either", held))]
    # One compile thread, because Inductor's pool of processes would outlive the probe.
    env = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    end = probe.probe(probe.code_of("compiling"), [ctx.device], min(LIMIT_S, ctx.remaining() - 5.0), env)
    observed.update(outcome=end["outcome"], wall_s=end["wall_s"])
    if end["outcome"] != "answered":
        noticed = control("a_broken_probe_is_noticed", True, end["outcome"])
        return [_absent(ctx, dict(observed, error=end["text"]), noticed)]
    plain = end["plain"]
    for key in ("error", "cold_s", "warm_ms", "eager_ms", "kernels", "result_error"):
        observed[key] = end.get(key)
    detail = f"backend='eager' left {plain['kernels'] or 'none'}, error {plain['error']}"
    controls = [control("without_inductor_there_is_no_kernel", not plain["kernels"], detail)]
    planted = end.get("planted_error")
    if planted is not None:
        held = planted > ERROR_LINE
        controls.append(control("one_percent_is_noticed", held, f"error {planted:.1e} of a result off by 1 %"))
    return [ran("C18.inductor", ctx.subject, observed, controls)]


def _absent(ctx, observed, noticed):
    return ran("C18.inductor", ctx.subject, observed, [noticed])
