"""Each kind of limit is named from a made-up record that has it, with a gain that follows from the numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import UsageError
from envkit.watch.advice import Advice
from envkit.watch.judge import Answer, Judgment, judge, judge_file
from envkit.watch.model import Process, Record, Sample, Total, gpu_id
from envkit.watch.text import lines
from tests.support import watched
from tests.support.watched import H100, card, facts, gpu_steps, on_cpu, process, record, sample, short, total


def first(found: Judgment) -> str:
    return found.findings[0].kind


def advice(found: Judgment, ident: str) -> Advice:
    return next(one for finding in found.findings for one in finding.advice if one.id == ident)


HEALTHY = process(
    gpu_steps(0.0) | {"step.autocast": Total(count=watched.STEPS)},
    facts=facts(training={"fused": True}, compile={"used": True}),
)
SLOW_LOADER = {"next": total(0.6), "fetch": Total(count=200, seconds=12.0, amount=0.4)}
COPIES = {
    "copy": Total(count=200, seconds=6.0, amount=200 * 240e6),
    "copy.pageable": Total(count=200, amount=200 * 240e6),
    "copy.blocking": Total(count=200, seconds=6.0),
    "copy_device": Total(count=200, seconds=6.0, amount=200 * 240e6),
}


def test_nothing_is_found_in_a_training_without_waits_that_uses_everything() -> None:
    found = judge(record(HEALTHY))
    assert (found.answer, found.findings) == (Answer.NOTHING, ())
    assert found.headline.startswith("nothing found: no part that a change could shorten takes more than 10%")


@pytest.mark.parametrize(("steps", "seconds"), [(5, 20.0), (200, 1.0)])
def test_few_steps_or_seconds_are_too_short_whatever_they_show(steps: int, seconds: float) -> None:
    found = judge(short(on_cpu(SLOW_LOADER), steps, seconds))
    assert (found.answer, found.findings) == (Answer.TOO_SHORT, ())


def unseen() -> Process:
    return replace(process(steps=0), totals={})


def test_a_record_without_steps_says_so() -> None:
    assert judge(record(unseen())).answer is Answer.NO_STEPS


@pytest.mark.parametrize(("kind", "unit"), [("optimizer", "optimizer steps"), ("next", "batches")])
def test_a_training_that_ends_within_the_warm_up_was_seen(kind: str, unit: str) -> None:
    found = judge(record(replace(unseen(), totals={kind: Total(count=3, seconds=1.0)})))
    assert (found.answer, found.headline.split("; ")[0]) == (Answer.TOO_SHORT, f"too short to say: {unit}: 3")


END = {"error": "RuntimeError", "where": "train.py:20 in <module>", "raised": "loader.py:7 in get", "probes": 1}
CRASH = {"error": "SIGABRT", "where": None, "raised": "threading.py:9 in wait", "probes": 0}


def died(code: int, **told: dict[str, Any]) -> Record:
    """A job that ended with a code within its warm-up."""
    return replace(record(replace(unseen(), facts=told)), exit_code=code)


def test_a_job_that_failed_says_so_and_where_it_died() -> None:
    found = judge(died(1, end=END, crash=CRASH))
    assert found.answer is Answer.FAILED
    assert found.headline == ("the job failed: exit code 1, SIGABRT in process 100 (train.py), or one that it forked")
    assert found.findings[0].evidence[:2] == (
        "process 100 (train.py), or one that it forked: SIGABRT, raised at threading.py:9 in wait",
        "process 100 (train.py): RuntimeError at train.py:20 in <module>, raised at loader.py:7 in get",
    )


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"end": END}, "is in 1 of 1 tracebacks"),
        ({"crash": CRASH}, "no code of the probes is in the tracebacks"),
        ({}, "no process left a traceback"),
    ],
)
def test_a_job_that_failed_says_what_the_probes_have_to_do_with_it(told: dict[str, Any], says: str) -> None:
    assert says in judge(died(134, **told)).findings[0].evidence[-1]


def test_a_job_that_failed_says_how_to_run_it_without_the_probes() -> None:
    found = judge(died(1))
    assert advice(found, "without_probes").text == "run it without the probes: python train.py"
    inside = judge(replace(died(1), image="train:1"))
    assert advice(inside, "without_probes").text.endswith("envkit run train:1 -- python train.py")


@pytest.mark.parametrize("code", [129, 130, 143])
def test_a_job_that_was_stopped_on_purpose_did_not_fail(code: int) -> None:
    assert judge(died(code)).answer is Answer.NO_STEPS


def test_a_training_that_fails_later_has_its_limit_and_its_end() -> None:
    found = judge(replace(record(process({"next": total(0.5)}, facts=facts(end=END))), exit_code=1))
    assert (found.findings[0].kind, found.findings[-1].kind) == ("data-bound", "failed")
    shown = "\n".join(lines(record(), found, width=100))
    assert "the job failed: exit code 1, RuntimeError in process 100 (train.py)" in shown


def test_waiting_for_batches_is_data_bound_and_workers_are_counted_from_the_time_of_a_batch() -> None:
    found = judge(on_cpu(SLOW_LOADER, num_workers=0))
    assert first(found) == "data-bound"
    more = advice(found, "num_workers")
    # 60 ms to make a batch, 40 ms for the rest: two workers, and one for unevenness.
    assert more.text == "num_workers=3 (now 0)"
    assert more.gain == pytest.approx((2.25, 2.75))
    assert more.reason == ("a batch takes 60.0 ms to make and the rest of the step 40.0 ms: 100.0 ms become 40.0 ms")


def test_workers_that_compute_are_not_promised_more_than_the_cpus_can_do() -> None:
    computing = {"next": total(0.6), "fetch": Total(count=200, seconds=12.0, amount=12.0)}
    found = judge(on_cpu(computing, samples=(sample(cpus=1.0),), num_workers=0))
    more = advice(found, "num_workers")
    assert more.text.startswith("num_workers=2 (now 0); more does not help with 2 CPUs")
    # 100 ms of CPU time on two CPUs: never below 50 ms.
    assert more.gain == pytest.approx((1.8, 2.2))


def test_a_loader_that_is_as_fast_as_its_cpus_gets_no_more_workers() -> None:
    computing = {"next": total(0.6), "fetch": Total(count=200, seconds=40.0, amount=40.0)}
    found = judge(on_cpu(computing, samples=(sample(cpus=2.0),), num_workers=2))
    assert [one.id for one in found.findings[0].advice] == ["less_work"]


def test_pauses_at_the_edges_of_epochs_want_persistent_workers() -> None:
    edges = {"next": total(0.4), "next.edge": total(0.3), "iter": total(0.1)}
    found = judge(on_cpu(edges, persistent_workers=False))
    gain = advice(found, "persistent_workers").gain
    assert first(found) == "data-bound"
    assert gain == pytest.approx((1 / 0.6 * 0.9, 1 / 0.6))


def test_data_that_comes_from_elsewhere_than_a_loader_is_no_matter_of_workers() -> None:
    one = process({"next": total(0.5)}, facts={"training": {"device": "cpu", "threads": 2}})
    found = judge(record(one, samples=(sample(),), gpus=()))
    assert [change.id for change in found.findings[0].advice] == ["loader"]


def test_copies_from_pageable_memory_are_copy_bound_and_the_link_bounds_the_gain() -> None:
    found = judge(record(process(gpu_steps(0.0) | COPIES)))
    assert first(found) == "copy-bound"
    assert found.findings[0].share == pytest.approx(0.3)
    gain = advice(found, "pin_memory").gain
    # 8 GB/s become at most the 80 % of PCIe 5.0 x16 that copies reach.
    assert gain == pytest.approx((1.0, 1 / (0.7 + 0.3 * 8 / (0.8 * 16 * 3.93846))))


def test_pinned_copies_that_block_want_non_blocking_and_the_gpus_own_numa_node() -> None:
    pinned = {name: one for name, one in COPIES.items() if name != "copy.pageable"}
    found = judge(record(process(gpu_steps(0.0) | pinned), numa_nodes=2))
    assert {"non_blocking", "numa"} <= {one.id for one in found.findings[0].advice}
    assert "--cpunodebind=1" in advice(found, "numa").text


def test_a_device_that_waits_for_its_host_is_launch_bound() -> None:
    busy = (sample(main_cpus=0.99, gpus=(card(util=40.0, memory_used=20 << 30),)),)
    found = judge(record(process(gpu_steps(0.95) | {"sync": total(0.05, count=400)}), samples=busy))
    assert first(found) == "launch-bound"
    assert {"sync", "compile_launch", "batch_size"} <= {one.id for one in found.findings[0].advice}
    assert advice(found, "compile_launch").gain == pytest.approx((1.0, 2.5))


def test_a_device_that_caught_up_but_is_busy_is_not_launch_bound() -> None:
    found = judge(record(process(gpu_steps(0.95)), samples=(sample(gpus=(card(util=97.0),)),)))
    assert "launch-bound" not in [one.kind for one in found.findings]


def test_a_host_that_waits_for_its_device_is_not_launch_bound_though_the_device_has_caught_up() -> None:
    """GradScaler reads a number before each optimizer step."""
    found = judge(record(process(gpu_steps(1.0) | {"sync": total(0.6)}), samples=(sample(gpus=(card(util=75.0),)),)))
    assert [one.kind for one in found.findings] == ["compute-bound"]


def test_a_busy_device_is_compute_bound_and_wants_the_precision_of_its_generation() -> None:
    found = judge(record(process(gpu_steps(0.0))))
    assert first(found) == "compute-bound"
    assert advice(found, "amp").text == "torch.autocast('cuda', dtype=torch.bfloat16)"
    old = process(gpu_steps(0.0), facts=facts(training={"capability": [7, 5]}))
    assert "GradScaler" in advice(judge(record(old)), "amp").text


def test_a_device_without_tensor_cores_is_promised_nothing_of_autocast() -> None:
    found = judge(record(process(gpu_steps(0.0), facts=facts(training={"capability": [6, 1]}))))
    assert "amp" not in [one.id for one in found.findings[0].advice]


def test_convolutions_want_channels_last_unless_they_have_it() -> None:
    for last, wanted in ((False, True), (True, False)):
        told = facts(training={"convolutions": 20, "channels_last": last})
        found = judge(record(process(gpu_steps(0.0), facts=told)))
        assert ("channels_last" in [one.id for one in found.findings[0].advice]) is wanted


def test_one_thread_on_two_cpus_is_compute_bound_by_its_threads() -> None:
    found = judge(on_cpu(threads=1))
    assert first(found) == "compute-bound"
    threads = advice(found, "threads")
    assert threads.text == "OMP_NUM_THREADS=2 (now 1): 2 CPUs for one process"
    assert threads.gain == pytest.approx((1 / (0.01 + 0.99 / 1.5), 1 / (0.01 + 0.99 / 2)))


def ranks(*own_s: float) -> Record:
    """Ranks that take so long for their own work, and wait for the rest of 100 ms in an all-reduce."""
    told = facts(training={"device": "cpu", "threads": 1, "parameter_bytes": 4e8})
    return record(
        *(
            process({"collective": Total(count=200, seconds=200 * (0.1 - own))}, pid=100 + at, rank=at, facts=told)
            for at, own in enumerate(own_s)
        ),
        samples=(sample(),),
        gpus=(),
    )


def test_ranks_that_wait_for_each_other_are_communication_bound() -> None:
    found = judge(ranks(0.06, 0.06))
    assert first(found) == "communication-bound"
    assert found.findings[0].share == pytest.approx(0.4)
    assert advice(found, "accumulate").gain == pytest.approx((0.9 / 0.7, 1.1 / 0.7))
    assert "400 MB of gradients are reduced in each step" in found.findings[0].evidence


def test_ranks_of_unequal_work_are_told_to_even_it_out() -> None:
    assert "imbalance" in [one.id for one in judge(ranks(0.08, 0.04)).findings[0].advice]
    assert "imbalance" not in [one.id for one in judge(ranks(0.06, 0.06)).findings[0].advice]


def test_the_passes_that_ddp_timed_stand_for_all_steps() -> None:
    passes = {"ddp": Total(count=10, seconds=0.5, amount=0.3)}  # 30 ms of each that nothing covers
    told = facts(training={"device": "cpu", "threads": 1})
    found = judge(record(*(process(passes, pid=at, rank=at, facts=told) for at in (1, 2)), gpus=()))
    assert found.measures.communication == pytest.approx(0.3)


def test_threads_that_queue_for_cpus_are_starved_by_their_own_number() -> None:
    found = judge(on_cpu(threads=16, samples=(sample(cpus=2.0, main_queued=0.5),)))
    assert first(found) == "cpu-starved"
    less = advice(found, "threads_less")
    assert less.text.startswith("OMP_NUM_THREADS=2 (now 16)")
    assert less.gain == pytest.approx((1.0, 2.0))


def test_a_quota_that_stops_the_training_is_named() -> None:
    found = judge(on_cpu(samples=(sample(cpus=2.0, throttled=0.3),)))
    assert advice(found, "quota").text.endswith("stops the training 30% of the time")


def test_cpus_that_others_use_are_not_held_against_the_training() -> None:
    found = judge(on_cpu(samples=(sample(cpus=0.5, main_queued=0.4),)))
    assert [one.id for one in found.findings[0].advice] == ["neighbors"]


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"events": ("hw_thermal_slowdown",), "sm_mhz": 990}, "cooling"),
        ({"events": ("sw_power_cap",), "sm_mhz": 990}, "power"),
    ],
)
def test_a_clock_that_is_held_down_is_throttled(fields: dict[str, object], change: str) -> None:
    found = judge(record(HEALTHY, samples=(sample(gpus=(card(**fields),)),)))
    assert first(found) == "throttled"
    assert advice(found, change).gain == pytest.approx((1.0, 2.0))


def test_a_power_cap_at_full_clock_is_the_normal_state_of_a_card() -> None:
    found = judge(record(HEALTHY, samples=(sample(gpus=(card(events=("sw_power_cap",), sm_mhz=1900),)),)))
    assert found.answer is Answer.NOTHING


def test_an_idle_gpus_low_clock_is_no_throttling() -> None:
    idle = card(util=0.0, sm_mhz=345, events=("sw_power_cap",))
    assert "throttled" not in [one.kind for one in judge(record(HEALTHY, samples=(sample(gpus=(idle,)),))).findings]


def test_allocations_that_are_tried_again_are_memory_bound() -> None:
    full = dict(HEALTHY.totals) | {"allocator": Total(count=20, amount=400.0)}
    found = judge(record(replace(HEALTHY, totals=full), samples=(sample(gpus=(card(memory_used=79 << 30),)),)))
    assert first(found) == "memory-bound"
    assert found.findings[0].evidence[0].startswith("2.0 allocations per step failed")


def test_memory_of_the_gpu_that_is_always_busy_is_memory_bound() -> None:
    found = judge(record(HEALTHY, samples=(sample(gpus=(card(memory_util=80.0),)),)))
    assert (first(found), found.findings[0].advice[0].id) == ("memory-bound", "fuse")


@pytest.mark.parametrize("how", [{"memory_util": 80.0}, {}])
def test_memory_and_computing_that_are_one_part_of_the_step_are_one_limit(how: dict[str, float]) -> None:
    """Without autocast and torch.compile, computing has advice of its own, which the limit keeps."""
    retries = {} if how else {"allocator": Total(count=10, amount=400.0)}
    found = judge(record(process(gpu_steps(0.0) | retries), samples=(sample(gpus=(card(**how),)),)))
    assert [one.kind for one in found.findings] == ["memory-bound"]
    given = [change.id for change in found.findings[0].advice]
    assert {"amp", "compile"} < set(given)
    assert len(given) == len(set(given))


def test_from_outside_a_training_without_cpus_is_told_once() -> None:
    seen = (sample(cpus=15.9, main_queued=0.5, gpus=(card(util=40.0),)),) * 20
    found = judge(replace(record(samples=seen), injected=False))
    assert [one.kind for one in found.findings] == ["cpu-starved"]


def test_a_machine_that_reads_pages_back_is_memory_bound() -> None:
    found = judge(record(HEALTHY, samples=(sample(gpus=(card(),), pressure_memory=0.25, major_faults_per_s=900.0),)))
    assert first(found) == "memory-bound"


def test_the_largest_share_comes_first_and_computing_last() -> None:
    both = {"next": total(0.2), "collective": Total(count=200, seconds=8.0)}
    told = facts(training={"device": "cpu", "threads": 1})
    found = judge(record(*(process(both, pid=at, rank=at, facts=told) for at in (1, 2)), samples=(sample(),), gpus=()))
    assert [one.kind for one in found.findings] == ["communication-bound", "data-bound"]


def test_only_samples_within_the_steps_count() -> None:
    found = judge(on_cpu(samples=(sample(at_s=2.0, main_queued=0.9), sample(), sample(at_s=29.0, main_queued=0.9))))
    assert found.measures.queued == 0.0


def outside(**fields: object) -> Record:
    return replace(record(samples=(sample(**fields),)), injected=False, processes=(), exit_code=None)


def test_from_outside_an_idle_gpu_is_told_without_a_claim_about_its_reason() -> None:
    found = judge(outside(gpus=(card(util=30.0),)))
    assert first(found) == "data-bound"
    assert "is not visible whether" in found.findings[0].evidence[1]
    assert judge(outside(gpus=(card(util=30.0),), cpus=15.9)).findings[0].kind == "cpu-starved"


def test_from_outside_a_busy_gpu_is_nothing_found() -> None:
    assert judge(outside(gpus=(card(),))).answer is Answer.NOTHING


def test_from_outside_no_sample_is_too_short() -> None:
    assert judge(replace(outside(), samples=())).answer is Answer.TOO_SHORT


def test_the_parts_of_a_step_add_up_to_it() -> None:
    parts = judge(record(process(gpu_steps(0.0) | COPIES | {"next": total(0.9)}))).measures.parts
    assert sum(share for _, share in parts) == pytest.approx(1.0)


def test_a_judgment_is_json() -> None:
    tree = judge(on_cpu(SLOW_LOADER, num_workers=0)).to_json()
    assert json.loads(json.dumps(tree))["findings"][0]["advice"][0]["id"] == "num_workers"


def waits(*shares: float) -> tuple[Sample, ...]:
    """Samples over all steps, with the share of each that was spent waiting for data."""
    return tuple(sample(at_s=5.5 + 0.5 * at, cpus=0.5, waiting=share, steps=5.0) for at, share in enumerate(shares))


@pytest.mark.parametrize(("last", "kinds"), [(0.02, ["compute-bound"]), (0.4, ["data-bound"])])
def test_a_first_epoch_that_fills_a_cache_is_not_held_against_the_others(last: float, kinds: list[str]) -> None:
    """A fifth of the time in all, but none of it in the last third."""
    found = judge(on_cpu({"next": total(0.2)}, threads=1, samples=waits(*[0.3] * 20, *[last] * 10)))
    assert [one.kind for one in found.findings][:1] == kinds
    told = "\n".join(lines(on_cpu(), found, width=100))
    assert ("waiting for data fell to 2% in the last third of the time" in told) is (last < 0.1)


def test_pauses_at_the_edges_of_epochs_come_again_though_the_last_third_has_none() -> None:
    edges = {"next": total(0.1), "next.edge": total(0.1), "iter": total(0.1)}
    found = judge(on_cpu(edges, persistent_workers=False, samples=waits(*[0.3] * 20, *[0.0] * 10)))
    assert first(found) == "data-bound"


def test_few_samples_do_not_say_that_waiting_is_over() -> None:
    found = judge(on_cpu({"next": total(0.2)}, samples=waits(*[0.3] * 6, *[0.0] * 3)))
    assert first(found) == "data-bound"


TWO = ({**H100, "id": gpu_id("GPU-AA")}, {**H100, "id": gpu_id("GPU-BB")})


def test_the_gpu_of_another_program_is_not_counted() -> None:
    """Ours waits for its host, and that of the others computes."""
    own = process(gpu_steps(0.95), facts=facts(training={"gpu": gpu_id("bb")}))
    busy = (sample(gpus=(card(index=0, util=100.0), card(index=1, util=40.0))),)
    found = judge(record(own, samples=busy, gpus=TWO))
    assert (first(found), found.measures.cards.util) == ("launch-bound", 40.0)


def test_a_gpu_that_nobody_uses_is_not_counted() -> None:
    idle = (sample(gpus=(card(index=0, util=95.0), card(index=1, util=0.0))),)
    found = judge(record(process(gpu_steps(0.95)), samples=idle, gpus=TWO))
    assert found.measures.cards.util == 95.0
    assert "launch-bound" not in [one.kind for one in found.findings]


def test_gradients_that_are_accumulated_already_are_to_be_accumulated_longer() -> None:
    told = facts(training={"device": "cpu", "threads": 1})
    events = {"collective": total(0.4), "backward": total(0.3, count=4 * watched.STEPS)}
    found = judge(record(*(process(events, pid=at, rank=at, facts=told) for at in (1, 2)), gpus=()))
    assert advice(found, "accumulate").text.endswith("16 backward passes per step (now 4)")


def test_many_workers_that_wait_for_something_else_still_get_an_advice() -> None:
    waiting = {"next": total(0.6), "fetch": Total(count=200, seconds=2000.0, amount=0.4)}
    found = judge(on_cpu(waiting, num_workers=16))
    assert [one.id for one in found.findings[0].advice] == ["source"]
    assert "with 16 workers" in advice(found, "source").text


def test_workers_of_another_loader_say_nothing_of_the_one_that_is_waited_for() -> None:
    told = facts(loader={"number": 1, "num_workers": 1}, training={"device": "cpu", "threads": 2})
    rank = process({"next": total(0.6)}, facts=told)
    worker = process(pid=101, parent=100, steps=0, facts={"process": {"loader": 1}})
    other = replace(worker, pid=102, facts={"process": {"loader": 2}})
    makers = (
        replace(worker, totals={"fetch": Total(count=100, seconds=6.0)}),
        replace(other, totals={"fetch": Total(count=100, seconds=60.0)}),
    )
    assert judge(record(rank, *makers, gpus=())).measures.loading.make_s == pytest.approx(0.06)


@pytest.mark.parametrize(("share", "is_bound"), [(0.4, False), (0.95, True)])
def test_copies_on_a_second_stream_are_a_limit_only_where_they_take_the_whole_step(
    share: float, is_bound: bool
) -> None:
    found = judge(record(process(gpu_steps(0.0) | {"copy_device.side": total(share)})))
    assert (first(found) == "copy-bound") is is_bound


@pytest.mark.parametrize(
    "damage",
    [{"seconds": 0.0}, {"at_s": "soon"}, {"waiting": [1]}],
    ids=["no time", "text for a number", "a list for a number"],
)
def test_a_record_that_cannot_be_computed_with_is_an_error_of_its_file(tmp_path: Path, damage: dict[str, Any]) -> None:
    made = record(HEALTHY, samples=tuple(sample(at_s=float(at), waiting=0.3, steps=5.0) for at in range(1, 21)))
    tree = json.loads(json.dumps(made.to_json()))
    (tmp_path / "sound.json").write_text(json.dumps(tree))
    assert judge_file(tmp_path / "sound.json") == judge(made)
    tree["samples"] = [one | damage for one in tree["samples"]]
    (tmp_path / "odd.json").write_text(json.dumps(tree))
    with pytest.raises(UsageError, match=r"odd\.json: the record cannot be judged: ") as caught:
        judge_file(tmp_path / "odd.json")
    assert caught.value.hint == "envkit watch -o FILE -- COMMAND writes a record"
