"""The ring of events and the totals that are read from it."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from envkit.watch.events import Collector
from envkit.watch.family import Container, Tree
from envkit.watch.files import Folder
from envkit.watch.model import WARM_UP, Process, gpu_id

stream: Any = import_module("envkit.watch.injected.envkit_watch_stream")


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    return stream.Stream(str(tmp_path))


def read(writer: Any, number: int) -> Any:
    copy = Path(f"{writer.name}.ring").read_bytes()
    return stream.read(copy, copy, number)


def test_what_is_written_is_read_once(writer: Any) -> None:
    writer.event(stream.COPY, 1.5, 0.25, 1024.0, stream.PINNED)
    assert read(writer, 1) == ([(stream.COPY, stream.PINNED, 1.5, 0.25, 1024.0, 0)], 0)
    assert read(writer, 2) == ([], 0)


def test_a_reader_that_is_too_slow_goes_on_with_the_oldest_and_says_what_it_lost(writer: Any) -> None:
    for number in range(stream.CAPACITY + 10):
        writer.event(stream.STEP, float(number), 0.0)
    found, lost = read(writer, 1)
    assert lost == 10
    assert [one[2] for one in found] == [float(number) for number in range(10, stream.CAPACITY + 10)]


def test_a_record_that_is_being_written_is_not_read(writer: Any) -> None:
    for number in range(stream.CAPACITY + 2):
        writer.event(stream.STEP, float(number), 0.0)
    stream.NUMBER.pack_into(writer.memory, 2 * stream.RECORD.size, 0)
    assert read(writer, stream.CAPACITY + 1)[0] == [
        (stream.STEP, 0, float(number), 0.0, 0.0, 0) for number in (stream.CAPACITY, stream.CAPACITY + 1)
    ]
    assert stream.oldest(Path(f"{writer.name}.ring").read_bytes()) == 4


def test_a_record_that_is_overwritten_while_the_ring_is_copied_is_not_read(writer: Any) -> None:
    writer.event(stream.STEP, 1.0, 0.0)
    first = Path(f"{writer.name}.ring").read_bytes()
    stream.NUMBER.pack_into(writer.memory, 0, 0)
    assert stream.read(first, Path(f"{writer.name}.ring").read_bytes(), 1) == ([], 0)


def test_files_are_the_users_own(writer: Any) -> None:
    writer.fact(fact="compile", used=True)
    assert Path(f"{writer.name}.ring").stat().st_mode & 0o077 == 0
    assert Path(f"{writer.name}.facts").stat().st_mode & 0o077 == 0


def steps(writer: Any, count: int, start: float = 100.0) -> None:
    """Steps of a second, half of it waiting for data, from `start` on."""
    for number in range(count):
        writer.event(stream.NEXT, start + number, 0.5)
        writer.event(stream.STEP, start + number + 0.9, 0.1)


def test_totals_are_those_between_the_warm_up_and_the_last_step(writer: Any, tmp_path: Path) -> None:
    steps(writer, 25)
    writer.event(stream.NEXT, 130.0, 60.0)  # after the last step: nobody waited for it to train
    collector = Collector(Folder(tmp_path), 90.0, Tree(os.getpid()))
    collector.collect()
    (found,) = collector.processes()
    assert (found.steps, found.unit) == (25 - WARM_UP, "step")
    assert found.seconds == pytest.approx(20.0)
    assert found.total("next").seconds == pytest.approx(10.0)
    assert (found.begin_s, found.end_s) == pytest.approx((15.0, 35.0))


def test_without_an_optimizer_a_batch_is_the_unit(writer: Any, tmp_path: Path) -> None:
    for number in range(30):
        writer.event(stream.NEXT, float(number), 0.5)
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    collector.collect()
    (found,) = collector.processes()
    assert (found.unit, found.steps) == ("batch", 30 - WARM_UP)


def test_what_only_made_batches_has_no_steps_and_all_its_events(writer: Any, tmp_path: Path) -> None:
    for number in range(3):
        writer.event(stream.FETCH, float(number), 0.5, 0.4)
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    collector.collect()
    (found,) = collector.processes()
    assert found.steps == 0
    assert found.total("fetch").amount == pytest.approx(1.2)


def test_flags_split_the_totals(writer: Any, tmp_path: Path) -> None:
    for number in range(WARM_UP + 1):
        writer.event(stream.COPY, float(number), 0.1, 100.0, stream.NON_BLOCKING)
        writer.event(stream.STEP, float(number), 0.1, 0.0, stream.AUTOCAST | stream.DRAIN_KNOWN | stream.DRAINED)
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    collector.collect()
    (found,) = collector.processes()
    expected = {"copy", "copy.pageable", "optimizer", "step.autocast", "step.known", "step.drained"}
    assert set(found.totals) == expected


def test_of_the_allocators_counter_only_its_growth_counts(writer: Any, tmp_path: Path) -> None:
    for number, retries in enumerate([7, 7, 7, 7, 7, 7, 9, 12]):
        writer.event(stream.ALLOCATOR, float(number), 1e9, float(retries))
        writer.event(stream.STEP, float(number), 0.1)
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    collector.collect()
    (found,) = collector.processes()
    assert found.total("allocator").amount == 5.0


def test_facts_are_read_and_a_line_that_was_cut_is_left_out(writer: Any, tmp_path: Path) -> None:
    writer.fact(fact="process", pid=7, ppid=3, program="train.py", RANK="1", WORLD_SIZE="2")
    writer.fact(fact="loader.1", num_workers=4)
    with Path(f"{writer.name}.facts").open("a") as file:
        file.write(json.dumps({"fact": "training"})[:-4])
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    collector.collect()
    (found,) = collector.processes()
    assert (found.pid, found.parent, found.rank, found.world_size) == (7, 3, 1, 2)
    assert found.fact("loader.1", "num_workers") == 4
    assert found.fact("training", "threads") is None


def test_a_process_that_is_gone_keeps_its_totals_and_no_file(writer: Any, tmp_path: Path) -> None:
    steps(writer, 25)
    ring = Path(f"{writer.name}.ring")
    gone = ring.rename(tmp_path / f"{2**22 + 1}-1.ring")  # larger than any process id
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    collector.collect()
    collector.collect()
    assert not gone.exists()
    assert (collector.ranks(), collector.processes()[0].steps) == ([], 25 - WARM_UP)


def test_a_stream_of_a_process_that_cannot_be_seen_is_read_on(writer: Any, tmp_path: Path) -> None:
    collector = Collector(Folder(tmp_path), 0.0, Container("/run/envkit-none", root=tmp_path / "proc"))
    collector.collect()
    steps(writer, 25)
    collector.collect()
    assert collector.processes()[0].steps == 25 - WARM_UP
    assert collector.ranks() == []


def test_the_share_of_waiting_is_that_since_the_last_look(writer: Any, tmp_path: Path) -> None:
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    assert collector.since_last(1.0) == (None, None)
    steps(writer, 2)
    collector.collect()
    assert collector.since_last(2.0) == pytest.approx((0.5, 2.0))
    assert collector.since_last(2.0) == (0.0, 0.0)


TRAIN, VALIDATE = 1, 2


def epoch(writer: Any, start: float, *, accumulate: int = 1, ahead: int = 0) -> float:
    """Ten steps of a second for each batch, a tenth of it waiting; returns when they end."""
    at = start
    writer.event(stream.ITER, at, 0.0, which=TRAIN)
    for _ in range(ahead):
        writer.event(stream.NEXT, at, 0.1, which=TRAIN)
    for _ in range(10):
        for _ in range(accumulate):
            writer.event(stream.NEXT, at, 0.1, which=TRAIN)
            writer.event(stream.BACKWARD, at + 0.4, 0.4)
            at += 1.0
        writer.event(stream.STEP, at - 0.1, 0.1)
    return at


def evaluation(writer: Any, start: float, batches: int) -> float:
    """Batches of a second that are waited for all the time, and half a second in which the workers end."""
    writer.event(stream.ITER, start, 0.0, which=VALIDATE)
    for number in range(batches):
        writer.event(stream.NEXT, start + number, 0.9, 0.0, stream.EDGE if not number else 0, which=VALIDATE)
        writer.event(stream.COPY, start + number, 0.05, 1e6)
    writer.event(stream.NEXT, start + batches, 0.5, 0.0, stream.EDGE | stream.END, which=VALIDATE)
    return start + batches + 0.5


def read_all(tmp_path: Path) -> Process:
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    collector.collect()
    return collector.processes()[0]


def test_an_evaluation_between_two_epochs_is_no_part_of_a_step(writer: Any, tmp_path: Path) -> None:
    epoch(writer, evaluation(writer, epoch(writer, 0.0), 8))
    found = read_all(tmp_path)
    assert (found.seconds, found.aside_s) == pytest.approx((15.0, 8.5))
    assert found.total("next").seconds == pytest.approx(1.5)
    assert found.total("copy").count == 0


def test_an_evaluation_after_the_last_step_takes_nothing_from_it(writer: Any, tmp_path: Path) -> None:
    evaluation(writer, epoch(writer, 0.0), 8)
    found = read_all(tmp_path)
    assert (found.seconds, found.aside_s) == pytest.approx((5.0, 0.0))


@pytest.mark.parametrize(("accumulate", "ahead"), [(4, 0), (1, 1)])
def test_batches_that_are_accumulated_or_read_ahead_are_for_training(
    writer: Any, tmp_path: Path, accumulate: int, ahead: int
) -> None:
    epoch(writer, epoch(writer, 0.0, accumulate=accumulate, ahead=ahead), accumulate=accumulate, ahead=ahead)
    found = read_all(tmp_path)
    assert (found.aside_s, found.total("next").count) == (0.0, 15 * accumulate + ahead)


def test_two_loaders_that_are_read_together_are_both_for_training(writer: Any, tmp_path: Path) -> None:
    for number in range(20):
        for which in (1, 2, 3):
            writer.event(stream.NEXT, number, 0.1 * which, which=which)
        writer.event(stream.BACKWARD, number + 0.7, 0.1)
        writer.event(stream.STEP, number + 0.9, 0.1)
    found = read_all(tmp_path)
    assert (found.aside_s, found.total("next").count) == (0.0, 45)


def test_without_a_backward_pass_to_be_seen_every_batch_is_for_training(writer: Any, tmp_path: Path) -> None:
    for number in range(80):
        writer.event(stream.NEXT, number, 0.1, which=TRAIN)
        if number % 4 == 3:
            writer.event(stream.STEP, number + 0.9, 0.1)
    assert read_all(tmp_path).aside_s == 0.0


def test_the_loader_of_a_training_is_the_one_that_it_waits_for(writer: Any, tmp_path: Path) -> None:
    """A check before the training reads the loader for evaluation first."""
    writer.fact(fact=f"loader.{VALIDATE}", num_workers=0)
    writer.fact(fact=f"loader.{TRAIN}", num_workers=8)
    epoch(writer, evaluation(writer, epoch(writer, evaluation(writer, 0.0, 2)), 8))
    assert read_all(tmp_path).facts["loader"] == {"num_workers": 8, "number": TRAIN}


def test_a_record_has_no_uuid_of_a_gpu(writer: Any, tmp_path: Path) -> None:
    writer.fact(fact="training", gpu="0000-1")
    epoch(writer, 0.0)
    assert read_all(tmp_path).fact("training", "gpu") == gpu_id("GPU-0000-1")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (stream.PINNED | stream.NON_BLOCKING | stream.SIDE, "copy.side"),
        (stream.NON_BLOCKING | stream.SIDE, "copy"),  # from pageable memory the host waits on every stream
    ],
)
def test_copies_beside_the_computing_are_counted_apart(writer: Any, tmp_path: Path, flags: int, name: str) -> None:
    for number in range(WARM_UP + 1):
        writer.event(stream.COPY, float(number), 0.1, 100.0, flags)
        writer.event(stream.STEP, float(number), 0.1)
    totals = read_all(tmp_path).totals
    assert name in totals
    assert ("copy" in totals) is (name == "copy")
