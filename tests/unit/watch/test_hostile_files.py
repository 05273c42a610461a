"""Whatever a job writes into its folder: the file is lost by name, and the training beside it is recorded.

A file that made the reader wait, end or use up memory would stop these tests, too.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from envkit.watch import files
from envkit.watch.events import Collector
from envkit.watch.family import Tree
from envkit.watch.files import Folder
from envkit.watch.model import WARM_UP, Process

stream: Any = import_module("envkit.watch.injected.envkit_watch_stream")
RING, FACTS, CRASH = "9-1.ring", "9-1.facts", "9-1.crash"
REPLACED = "the job replaced or removed the folder of its events"
STEPS = 25
pytestmark = pytest.mark.usefixtures("training")
Row = tuple[float, float, float, int, int, int]


@pytest.fixture
def training(tmp_path: Path) -> Any:
    """The stream of a training with steps of a second, beside which a job writes."""
    writer = stream.Stream(str(tmp_path))
    for number in range(STEPS):
        writer.event(stream.NEXT, 100.0 + number, 0.5)
        writer.event(stream.STEP, 100.9 + number, 0.1)
    writer.fact(fact="training", threads=4)
    return writer


def read(folder: Path) -> tuple[Process, dict[str, str]]:
    """Read the folder twice, as while a training runs and at its end: the training, and the files that are lost."""
    collector = Collector(Folder(folder), 90.0, Tree(os.getpid()))
    collector.collect()
    collector.finish(60.0)
    processes = {process.pid: process for process in collector.processes(60.0)}
    collector.close()
    return processes[os.getpid()], dict(collector.unread)


def rows(*events: Row) -> bytes:
    """A ring of a job's own making."""
    packed = bytearray(stream.BYTES)
    for at, event in enumerate(events):
        stream.RECORD.pack_into(packed, at * stream.RECORD.size, at + 1, *event)
    return bytes(packed)


def step(begin: float = 1.0, seconds: float = 0.1, amount: float = 0.0, loader: int = 0) -> Row:
    return begin, seconds, amount, loader, stream.NEXT, 0


def sparse(name: str, size: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return make


def written(name: str, data: bytes | str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return make


def fact(**fields: Any) -> Callable[[Path], None]:
    return written(FACTS, json.dumps(fields) + "\n")


def pipe(name: str) -> Callable[[Path], None]:
    return lambda folder: os.mkfifo(folder / name)


def link(name: str, target: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).symlink_to(target)


def bound(folder: Path) -> None:
    os.mknod(folder / RING, stat.S_IFSOCK | 0o600)


def odd_name(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/9-1\x1b[31m\xff.ring")).write_bytes(b"")


TEXT = "\x1b]0;pwn\x07\x1b[2J<script>alert(1)</script>\u202e\n::add-mask::x"
LOST: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "ring-nan": (written(RING, rows(step(float("nan"), float("nan"), float("nan")))), RING, "impossible numbers"),
    "ring-inf": (written(RING, rows((1e308, 1e308, float("inf"), 1, 1, 255))), RING, "impossible numbers"),
    "ring-negative": (written(RING, rows(step(-1e300, -5.0, -1.0))), RING, "impossible numbers"),
    "ring-name": (written("abc-1.ring", rows(step())), "abc-1.ring", "not a name of the probes"),
    "ring-random": (written(RING, b"\xa5" * 600_000), RING, "600000 bytes"),
    "ring-empty": (written(RING, b""), RING, "its end is missing; 0 events"),
    "ring-folder": (lambda folder: (folder / RING).mkdir(), RING, "is a directory"),
    "ring-pipe": (pipe(RING), RING, "a pipe, not a regular file"),
    "ring-link-zero": (link(RING, "/dev/zero"), RING, "is a symbolic link"),
    "ring-link-passwd": (link(RING, "/etc/passwd"), RING, "is a symbolic link"),
    "ring-huge": (sparse(RING, 1 << 40), RING, f"{1 << 40} bytes"),
    "facts-texts": (fact(fact="process", pid=TEXT, ppid=TEXT), FACTS, "line 1: process.pid is not a whole number"),
    "facts-lists": (fact(fact="process", omp_num_threads=[1]), FACTS, "process.omp_num_threads is not a text"),
    "facts-nested": (fact(fact="loader.1", batch_size={"a": 1}), FACTS, "loader.1.batch_size is not a whole number"),
    "facts-infinite": (
        written(FACTS, '{"fact":"loader.1","prefetch_factor":-1e400}\n'), FACTS, "line 1 is not JSON: -1e400",
    ),
    "facts-long-number": (
        written(FACTS, '{"fact":"ddp","world_size":' + "9" * 5000 + "}\n"), FACTS, "an integer of 5000 digits",
    ),
    "facts-brackets": (written(FACTS, "[" * 100_000 + "\n"), FACTS, "line 1 is not JSON: nested deeper than"),
    "facts-big": (sparse(FACTS, 3 << 30), FACTS, "larger than 1048576 bytes"),
    "facts-pipe": (pipe(FACTS), FACTS, "a pipe, not a regular file"),
    "facts-link-zero": (link(FACTS, "/dev/zero"), FACTS, "is a symbolic link"),
    # Not of the review's kinds.
    "ring-socket": (bound, RING, "a socket, not a regular file"),
    "ring-loaders": (
        written(RING, rows(*(step(loader=number) for number in range(1, 2000)))), RING, "an event of loader 21",
    ),
    "ring-name-of-escapes": (odd_name, r"9-1\x1b[31m\udcff.ring", "not a name of the probes"),
    "facts-lines": (written(FACTS, '{"fact":"compile","used":true}\n' * 1001), FACTS, "more than 1000 lines"),
    "facts-kind": (fact(fact=TEXT, x=1), FACTS, "line 1: unknown fact"),
    "facts-field": (fact(fact="compile", used=True, also=1), FACTS, "line 1: unknown field 'also' of compile"),
    "facts-no-text": (written(FACTS, b'{"fact":"training","torch":"\xff\xfe"}\n'), FACTS, "is not UTF-8"),
    "facts-surrogate": (written(FACTS, '{"fact":"training","torch":"\\ud800"}\n'), FACTS, "half of a surrogate"),
    "crash-pipe": (pipe(CRASH), CRASH, "a pipe, not a regular file"),
    "crash-link": (link(CRASH, "/etc/shadow"), CRASH, "is a symbolic link"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOST)
def test_a_file_that_the_probes_did_not_write_is_lost_by_name_and_no_other(tmp_path: Path, kind: str) -> None:
    make, name, reason = LOST[kind]
    make(tmp_path)
    found, lost = read(tmp_path)
    assert list(lost) == [name]
    assert reason in lost[name]
    assert str(tmp_path) not in lost[name]
    assert (found.steps, found.fact("training", "threads")) == (STEPS - WARM_UP, 4)


def test_a_ring_that_is_cut_while_the_job_runs_keeps_what_was_read(training: Any, tmp_path: Path) -> None:
    collector = Collector(Folder(tmp_path), 90.0, Tree(os.getpid()))
    collector.collect()
    os.truncate(f"{training.name}.ring", 0)
    collector.collect()
    collector.finish(60.0)
    (found,) = collector.processes(60.0)
    assert found.steps == STEPS - WARM_UP
    assert collector.unread == ((f"{Path(training.name).name}.ring", "its end is missing; 50 events were read before"),)


def test_more_files_than_any_training_has_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 20)
    for number in range(2, 70):
        (tmp_path / f"9999999{number}-1.ring").write_bytes(b"x" * 600)
    collector = Collector(Folder(tmp_path), 90.0, Tree(os.getpid()))
    collector.collect()
    assert ("*.ring", "more than 20 files") in collector.unread


def test_a_folder_that_the_job_removes_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    collector = Collector(Folder(folder), 90.0, Tree(os.getpid()))
    shutil.rmtree(folder)
    collector.collect()
    assert (collector.processes(60.0), collector.unread) == ((), (("*", REPLACED),))


def test_a_folder_that_a_link_replaces_is_not_followed(tmp_path: Path) -> None:
    """The process of the ring is gone, so that a ring that was read would be removed."""
    folder, victim = tmp_path / "own", tmp_path / "victim"
    for one in (folder, victim):
        one.mkdir()
        (one / f"{2**22 + 1}-1.ring").write_bytes(rows(step()))
    collector = Collector(Folder(folder), 90.0, Tree(os.getpid()))
    shutil.rmtree(folder)
    folder.symlink_to(victim)
    collector.collect()
    collector.finish(60.0)
    assert (collector.processes(60.0), collector.unread) == ((), (("*", REPLACED),))
    assert len(list(victim.iterdir())) == 1


def test_a_ring_whose_numbers_are_impossible_has_no_events(tmp_path: Path) -> None:
    ring = bytearray(rows(step()))
    struct.pack_into("<Q", ring, 0, 2**64 - 1)
    (tmp_path / RING).write_bytes(ring)
    found, _ = read(tmp_path)
    assert found.steps == STEPS - WARM_UP


def test_a_hard_link_to_a_file_of_the_user_shows_nothing_of_it(tmp_path: Path) -> None:
    secret = tmp_path.parent / "secret"
    secret.write_text("token: hunter2\n")
    (tmp_path / FACTS).hardlink_to(secret)
    _, lost = read(tmp_path)
    assert lost.keys() == {FACTS}
    assert "hunter2" not in lost[FACTS]


def test_the_time_for_reading_at_the_end_is_limited(tmp_path: Path) -> None:
    moments = iter(range(0, 10_000, 100))
    collector = Collector(Folder(tmp_path), 90.0, Tree(os.getpid()), clock=lambda: float(next(moments)))
    collector.finish(50.0)
    assert "there was no time to read its end" in dict(collector.unread).values()


CRASHED = """Fatal Python error: Aborted

Current thread 0x00007f (most recent call first):
  File "/run/envkit-watch/envkit_watch_hooks.py", line 80 in forget
  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 71 in _launch
  File "/home/ada/train.py", line 20 in <module>

Extension modules: numpy
"""


def test_the_traceback_at_a_fatal_signal_is_read(tmp_path: Path) -> None:
    (tmp_path / f"{os.getpid()}-7.crash").write_text(CRASHED * 2)
    found, lost = read(tmp_path)
    assert lost == {}
    assert found.facts["crash"] == {
        "error": "SIGABRT", "where": "train.py:20 in <module>", "raised": "envkit_watch_hooks.py:80 in forget",
        "probes": 1,
    }  # fmt: skip
