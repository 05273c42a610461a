"""C23: a small training job with its loader, without it, and the loader alone: where a step's time goes."""

import time

from envkit.smoke import loaders, mini_train, noise, timing, train_options
from envkit.smoke.observation import control, ran

STEPS = 8
ROUNDS, ROUNDS_MIN = 6, 2
# Seconds after which no further round begins.
ROUNDS_S = 7.0
QUIET_S = 0.15
PATIENCE = 20
STARVED_LINE = 0.2
PARTS = ("data_wait_s", "h2d_s", "compute_s")


def run(ctx):
    """Return C23.training, the breakdown of a step and whether the loss falls, and what options of a step bring."""
    with timing.single_thread(ctx.seeded()):
        return [_run(ctx), *train_options.run(ctx)]


def _run(ctx):
    job = mini_train.Job(ctx)
    before = noise.quiet_window(QUIET_S)
    source = job.loader()
    try:
        first, batch = _first(source)
        rounds, waits = _rounds(job, source, batch)
        controls = _controls(job, batch)
    finally:
        loaders.stop(source)
    after = noise.quiet_window(QUIET_S)
    full = [item["full"]["step_s"] for item in rounds]
    middle = {name: timing.median([item[name]["step_s"] for item in rounds]) for name in ("full", "reuse")}
    losses = [float(loss) for loss in job.losses]
    observed = {
        "loader": job.settings,
        "batch": job.batch,
        "precision": job.precision,
        "threads": ctx.torch.get_num_threads(),
        "rounds": len(rounds),
        "steps_per_round": STEPS,
        "first_batch_s": first,
        "step_s": middle["full"],
        "step_without_loader_s": middle["reuse"],
        "loader_alone_s": timing.median([item["loader_s"] for item in rounds]),
        **{part: timing.median([item["full"][part] for item in rounds]) for part in PARTS},
        "starved_share": mini_train.starved_share(middle["full"], middle["reuse"]),
        "launch_share": job.launch_share(batch),
        "waits_ms": [wait * 1e3 for wait in waits[:100]],
        "loss_first": timing.median(losses[:5]),
        "loss_last": timing.median(losses[-5:]),
    }
    ctx.notes["starved_share"] = observed["starved_share"]
    step_ms = [seconds * 1e3 for seconds in full]
    label = "perf_counter+sync" if ctx.has_cuda else "perf_counter"
    samples = timing.sample_record(step_ms, clock=label, inner_loops=STEPS, warmup_discarded=job.queued())
    gate = before if before["gate"] != "clean" else after
    stats = timing.statistics(step_ms)
    return ran("C23.training", ctx.subject, observed, controls, samples=samples, stats=stats, noise=gate)


def _first(source):
    begin = time.perf_counter()
    batch = next(source)
    return time.perf_counter() - begin, batch


def _rounds(job, source, batch):
    """Time the three variants in turns, each after as many untimed steps as the workers keep batches ready."""
    still, lead = mini_train.same(batch), max(3, job.queued())
    job.steps(still, 3)
    job.losses.clear()
    rounds, waits, begin = [], [], time.monotonic()
    while len(rounds) < ROUNDS and (len(rounds) < ROUNDS_MIN or time.monotonic() - begin < ROUNDS_S):
        job.steps(source, lead)
        full = job.steps(source, STEPS)
        waits.extend(full.pop("waits_s"))
        for _ in range(lead):
            next(source)
        asked = time.perf_counter()
        for _ in range(STEPS):
            next(source)
        alone = (time.perf_counter() - asked) / STEPS
        # The workers refill their queues meanwhile, which would slow the first steps down.
        job.steps(still, lead)
        rounds.append({"full": full, "reuse": job.steps(still, STEPS), "loader_s": alone})
    return rounds, waits


def _controls(job, batch):
    """Control: a loader that takes three times a step starves the job, and no loader at all does not."""
    alone = min(job.steps(mini_train.same(batch), 2)["step_s"] for _ in range(3))
    starving = job.steps(mini_train.same(batch, 3 * alone), 2)["step_s"]
    again = min(job.steps(mini_train.same(batch), 2)["step_s"] for _ in range(3))
    for _ in range(PATIENCE):  # a burst of other work may last longer than three tries
        if mini_train.starved_share(again, alone) <= STARVED_LINE:
            break
        again = min(again, job.steps(mini_train.same(batch), 2)["step_s"])
    starved, fed = mini_train.starved_share(starving, alone), mini_train.starved_share(again, alone)
    return [
        control("planted_starvation_is_seen", starved > STARVED_LINE, f"starved share {starved:.2f}"),
        control("no_loader_no_starvation", fed <= STARVED_LINE, f"starved share {fed:.2f}"),
    ]
