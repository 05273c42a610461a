"""What keeps a model waiting beside data: another work of its thread, the compiler, another rank, too few CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from envkit.watch.doing import WAITS
from envkit.watch.judge import Answer, Judgment, judge
from envkit.watch.measures import LEAST_LOOKS
from envkit.watch.model import Activity, Process, Record, Total
from envkit.watch.symptoms import load
from envkit.watch.text import lines
from tests.support.watched import card, facts, gpu_steps, on_cpu, process, record, sample, total

SMALL = {"backward": total(0.05), "optimizer": total(0.01)}


def did(kind: str, where: str, share: float, count: int = 40) -> Activity:
    return Activity(kind=kind, where=where, count=count, seconds=share * 20.0)


def looked(*activities: Activity, totals: dict[str, Total] | None = None, **fields: Any) -> Record:
    """A training on two CPUs whose thread was looked at."""
    made = on_cpu(SMALL | (totals or {}), samples=(sample(cpus=0.1, main_cpus=0.09, **fields),))
    return replace(made, processes=(replace(made.processes[0], activities=activities),))


def kinds(found: Judgment) -> list[str]:
    return [one.kind for one in found.findings]


def changes(found: Judgment, kind: str) -> dict[str, Any]:
    finding = next(one for one in found.findings if one.kind == kind)
    return {one.id: one for one in finding.advice}


def test_a_thread_that_sleeps_keeps_the_model_waiting_and_nothing_is_promised_of_the_model() -> None:
    """A tenth of the step is timed, and of what is left nine tenths are one call of `sleep`."""
    found = judge(looked(did("sleep", "train.py:3 in log", 0.81), did("computing", "train.py:9 in f", 0.09)))
    assert found.headline == "waiting: the model waits 84% of each step: sleeping at train.py:3 in log"
    assert kinds(found) == ["waiting"]
    gain = changes(found, "waiting")["wait_sleep"].gain
    assert gain == pytest.approx((1.0, 1 / (1 - 0.93 * 0.9)))
    assert sum(share for _, share in found.measures.parts) == pytest.approx(1.0)
    assert found.measures.computing == pytest.approx(1 - 0.01 - 0.93 * 0.9)


def test_looks_within_timed_calls_say_nothing_of_the_time_outside_of_them() -> None:
    told = (did("timed", "train.py:9 in f", 0.6, 400), did("sleep", "a.py:1 in f", 0.2), did("computing", "", 0.2))
    found = judge(looked(*told))
    assert found.measures.waiting.share == pytest.approx(0.93 / 2)


def test_what_the_model_computes_in_forward_is_no_waiting() -> None:
    found = judge(looked(did("computing", "model.py:3 in forward", 0.9)))
    assert kinds(found) == ["compute-bound"]
    assert changes(found, "compute-bound")["compile"].gain is None


def test_each_kind_of_waiting_has_a_text_and_a_change_of_its_own() -> None:
    symptoms = load()
    assert set(symptoms.doings) == set(WAITS)
    for kind in WAITS:
        found = judge(looked(did(kind, "train.py:3 in log", 0.9)))
        assert symptoms.doings[kind] in found.headline
        assert list(changes(found, "waiting")) == [f"wait_{kind}"]


def test_several_waits_are_told_with_the_largest_first_and_small_ones_get_no_advice() -> None:
    told = (
        did("checkpoint", "a.py:1 in save", 0.2),
        did("logging", "a.py:9 in log", 0.6),
        did("lock", "a.py:2 in f", 0.02),
    )
    found = judge(looked(*told))
    assert found.findings[0].evidence[0].endswith("logging at a.py:9 in log")
    assert list(changes(found, "waiting")) == ["wait_logging", "wait_checkpoint"]


def test_a_thread_that_cannot_be_looked_at_waits_if_the_training_uses_no_cpu() -> None:
    found = judge(looked(main_queued=0.0))
    assert found.headline == "waiting: the model waits 84% of each step"
    assert "the thread's stack could not be read" in found.findings[0].evidence[0]
    busy = on_cpu(SMALL, samples=(sample(cpus=1.6, main_cpus=0.09),))
    assert kinds(judge(busy)) == ["compute-bound"]


def test_a_few_looks_are_none() -> None:
    found = judge(looked(did("sleep", "train.py:3 in log", 0.9, LEAST_LOOKS - 1), main_queued=0.9))
    assert found.measures.waiting.places == ()


def test_a_host_that_waits_for_its_device_does_not_wait_for_something_else() -> None:
    """The GPU computes while the host is in `item()`, which is a timed call."""
    rank = process(gpu_steps(0.0) | {"sync": total(0.9), "backward": total(0.02)})
    seen = replace(rank, activities=(did("timed", "train.py:9 in f", 0.9), did("sleep", "a.py:1 in f", 0.03)))
    found = judge(record(seen, samples=(sample(gpus=(card(),)),)))
    assert kinds(found) == ["compute-bound"]


def test_the_compiler_is_no_computing() -> None:
    compiled = {"compile": Total(count=150, seconds=9.0, longest_s=0.2)}
    found = judge(looked(did("computing", "train.py:3 in f", 0.4), totals=compiled))
    assert kinds(found)[0] == "compiling"
    assert found.measures.compiling.share == pytest.approx(0.45)
    assert found.findings[0].evidence[0] == "150 compilations in 200 steps after the warm-up, the longest 200.0 ms"
    assert changes(found, "compiling")["recompile"].gain == pytest.approx((1.0, 1 / 0.55))


def test_a_compilation_within_backward_counts_once() -> None:
    totals = {
        "backward": total(0.6),
        "compile": Total(count=9, seconds=8.0),
        "compile.within": Total(count=9, seconds=8.0),
    }
    found = judge(looked(did("computing", "", 0.3), totals=totals))
    assert found.measures.backward == pytest.approx(0.2)
    assert found.measures.compiling.share == pytest.approx(0.4)


def test_a_run_that_compiled_all_the_time_and_made_no_step_is_named() -> None:
    one = replace(process(steps=0), totals={"compile": Total(count=3, seconds=22.0), "optimizer": Total(count=1)})
    found = judge(record(one))
    assert (found.answer, found.headline) == (Answer.FOUND, "compiling: torch.compile compiles during 73% of the run")
    failed = judge(replace(record(one), exit_code=1))
    assert (failed.answer, kinds(failed)) == (Answer.FAILED, ["compiling", "failed"])


def test_a_few_long_steps_that_compile_are_enough_to_say_so() -> None:
    few = replace(process(steps=19, seconds=55.0), totals={"compile": Total(count=38, seconds=44.0)})
    found = judge(record(few))
    assert found.headline == "compiling: torch.compile compiles during 80% of the steps after the warm-up"


def test_a_job_that_failed_in_its_warm_up_is_judged_by_what_was_seen() -> None:
    one = replace(
        process(steps=0), totals={"next": Total(count=3, seconds=21.0), "backward": Total(count=2, seconds=6.0)}
    )
    found = judge(replace(record(one), exit_code=1))
    assert found.findings[0].evidence[-1] == "before that: 70% waiting for data, 20% in backward"
    later = judge(replace(record(process({"next": total(0.5)})), exit_code=1))
    assert "before that" not in later.findings[-1].evidence[-1]  # the parts of a step say it


def test_a_batch_is_many_batches() -> None:
    found = judge(record(replace(process({"next": total(0.6)}), unit="batch")))
    assert "200 batches of 100.0 ms" in "\n".join(lines(record(), found, width=100))


def rank(number: int, own_s: float, **fields: Any) -> Process:
    """A rank whose step takes 100 ms, in which it waits for others when it has done its own work."""
    waits = {"collective": Total(count=200, seconds=200 * (0.1 - own_s)), "backward": total(0.01)}
    told = facts(training={"device": "cpu", "threads": 1})
    return process(waits | fields.pop("totals", {}), pid=100 + number, rank=number, world_size=2, facts=told, **fields)


def test_the_rank_that_all_others_wait_for_is_named_and_its_parts_are_shown() -> None:
    slow = rank(1, 0.1, totals={"next": total(0.95)})
    found = judge(record(rank(0, 0.01), slow, samples=(sample(),), gpus=()))
    assert found.headline == "waiting for a rank: rank 0 waits 90% of each step for rank 1"
    assert kinds(found)[:2] == ["rank-bound", "data-bound"]
    assert found.measures.loading.share == pytest.approx(0.95)  # of rank 1, not the mean of both
    assert changes(found, "rank-bound")["imbalance"].gain == pytest.approx((1.0, 0.1 / 0.055))


def test_a_loader_of_the_slowest_rank_is_promised_no_more_than_the_next_rank_allows() -> None:
    loader = {"next": total(0.95), "fetch": Total(count=200, seconds=19.0, amount=0.2)}
    told = facts(training={"device": "cpu", "threads": 1}, loader={"num_workers": 1})
    slow = replace(rank(1, 0.1, totals=loader), facts=told)
    found = judge(record(rank(0, 0.05), slow, samples=(sample(),), gpus=()))
    gain = changes(found, "data-bound")["num_workers"].gain
    assert gain == pytest.approx((0.1 / 0.05 * 0.9, 0.1 / 0.05 * 1.1))


@pytest.mark.parametrize(("queued", "advised"), [(1.5, "less_work"), (0.0, "num_workers")])
def test_workers_that_wait_for_a_cpu_do_not_wait_for_storage(queued: float, advised: str) -> None:
    loader = {"next": total(0.7), "fetch": Total(count=200, seconds=63.0, amount=21.0)}
    found = judge(on_cpu(loader, num_workers=4, samples=(sample(cpus=1.4, queued=queued),)))
    assert next(iter(changes(found, "data-bound"))) == advised


def test_on_a_machine_that_others_use_more_workers_are_promised_what_is_left() -> None:
    """A batch needs 5 ms of a CPU and the rest of a step 5 ms, of which each takes four times as long here."""
    loader = {"next": total(0.95), "fetch": Total(count=200, seconds=19.0, amount=1.0)}
    alone = judge(on_cpu(loader, num_workers=0, samples=(sample(cpus=0.1, queued=0.0),)))
    crowded = judge(on_cpu(loader, num_workers=0, samples=(sample(cpus=0.1, queued=0.3),)))
    assert changes(alone, "data-bound")["num_workers"].gain == pytest.approx(
        (0.1 / 0.005938 * 0.9, 0.1 / 0.005938 * 1.1), rel=1e-3
    )
    assert changes(crowded, "data-bound")["num_workers"].gain == pytest.approx((0.1 / 0.02 * 0.9, 0.1 / 0.02 * 1.1))


def test_two_trainings_side_by_side_do_not_wait_for_each_other() -> None:
    one = process({"next": total(0.9)}, pid=1, facts=facts(training={"device": "cpu"}))
    other = replace(process(pid=2, facts=facts(training={"device": "cpu"})), seconds=2.0)
    assert "rank-bound" not in kinds(judge(record(one, other, samples=(sample(),), gpus=())))


def test_a_job_that_hung_after_a_few_steps_and_failed_is_judged_by_that() -> None:
    after = {"backward": Total(count=1, seconds=60.0, longest_s=60.0)}
    few = (rank(0, 0.09, after=after), rank(1, 0.09))
    cut = tuple(replace(one, steps=5, seconds=0.5) for one in few)
    found = judge(replace(record(*cut, samples=(sample(),), gpus=()), exit_code=1))
    assert (found.answer, kinds(found)) == (Answer.FAILED, ["rank-bound", "failed"])
    assert found.headline == "waiting for a rank: rank 0 waited 60.0 s for rank 1 after its last step"


def hung(**first: Any) -> Judgment:
    other = rank(1, 0.09, steps=150, after_activities=(did("sleep", "train.py:12 in <module>", 3.0),))
    return judge(record(rank(0, 0.09, **first), other, samples=(sample(),), gpus=()))


@pytest.mark.parametrize(
    "waited",
    [
        {"after": {"backward": Total(count=1, seconds=60.0, longest_s=60.0)}},
        {"after_activities": (did("timed", "train.py:10 in <module>", 3.0),)},
    ],
    ids=["the call raised", "the call never ended"],
)
def test_a_rank_that_waits_for_ever_after_its_last_step_is_told_with_the_one_that_does_not_come(waited: Any) -> None:
    found = hung(**waited)
    assert found.headline.startswith("waiting for a rank: rank 0 waited 60.0 s")
    assert found.headline.endswith("for rank 1 after its last step")
    assert found.findings[0].evidence[1] == "rank 1: 155 steps, then it was sleeping at train.py:12 in <module>"
    assert found.findings[0].share is None
    assert "DistributedSampler" in changes(found, "rank-bound")["uneven"].text


@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_a_short_pause_at_the_end_is_no_hang(seconds: float) -> None:
    after = {"backward": Total(count=1, seconds=seconds, longest_s=seconds)}
    assert kinds(hung(after=after))[:1] != ["rank-bound"]


def test_ranks_that_all_wait_have_none_that_is_waited_for() -> None:
    after = {"collective": Total(count=1, seconds=60.0, longest_s=60.0)}
    both = (rank(0, 0.09, after=after), rank(1, 0.09, after=after))
    assert "rank-bound" not in kinds(judge(record(*both, samples=(sample(),), gpus=())))


def test_a_training_that_is_pinned_is_told_so_and_not_that_others_use_its_cpus() -> None:
    slow = {"next": total(0.8), "fetch": Total(count=200, seconds=20.0, amount=19.0)}
    found = judge(on_cpu(slow, num_workers=2, samples=(sample(cpus=0.97, allowed=1, main_queued=0.3),)))
    assert found.headline == "pinned to too few CPUs: the training may use 1 of 2 CPUs"
    assert "neighbors" not in {one.id for finding in found.findings for one in finding.advice}
    assert changes(found, "pinned")["affinity"].gain == pytest.approx((1.0, 2.0))
    assert "1.0 of 1 CPUs are busy" in found.findings[1].evidence


def test_a_training_that_is_pinned_where_others_use_its_cpu_still_wants_more() -> None:
    slow = {"next": total(0.8), "fetch": Total(count=200, seconds=20.0, amount=19.0)}
    found = judge(on_cpu(slow, num_workers=2, samples=(sample(cpus=0.3, allowed=1, queued=1.6),)))
    assert found.findings[0].kind == "pinned"
    assert found.findings[0].evidence[1] == "they keep 0.3 CPUs busy and could use 1.9"


@pytest.mark.parametrize("fields", [{"allowed": 2, "cpus": 2.0, "main_queued": 0.3}, {"allowed": 1, "cpus": 0.4}])
def test_all_cpus_or_cpus_to_spare_are_no_pin(fields: dict[str, Any]) -> None:
    assert "pinned" not in kinds(judge(on_cpu(samples=(sample(**fields),))))


def test_a_model_whose_threads_wait_for_a_cpu_does_not_compute() -> None:
    found = judge(on_cpu(samples=(sample(cpus=0.3, main_queued=0.9),)))
    assert kinds(found) == ["cpu-starved"]
    assert "the training keeps 0.3 of 2 CPUs busy; other programs use the rest" in found.findings[0].evidence
