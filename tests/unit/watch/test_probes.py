"""The parts of the probes that run inside a training, with an invented CUDA."""

from __future__ import annotations

import ast
import ctypes
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envkit.watch.events import Collector
from envkit.watch.family import Tree
from envkit.watch.files import Folder
from envkit.watch.injected.envkit_watch_endings import places
from envkit.watch.running import INJECTED

NAMES = ("envkit_watch_hooks", "envkit_watch_stream")


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module as a training imports it, which records into a folder."""
    monkeypatch.syspath_prepend(str(INJECTED))
    found: Any = import_module("envkit_watch_hooks")
    found.recorder.folder = str(tmp_path)
    yield found
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)


class Event:
    """An event that counts what happens to it."""

    made = freed = asked = 0
    fails = False

    def __init__(self, *, enable_timing: bool) -> None:
        del enable_timing
        Event.made += 1

    def __del__(self) -> None:
        Event.freed += 1

    def record(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return that all work is done."""
        Event.asked += 1
        if Event.fails:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return True

    def elapsed_time(self, later: Event) -> float:
        """Return a millisecond."""
        del later
        return 1.0


@pytest.fixture
def cuda() -> SimpleNamespace:
    Event.made = Event.freed = Event.asked = 0
    Event.fails = False
    return SimpleNamespace(
        Event=Event,
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: False,
        current_device=lambda: 0,
        memory_stats=dict,
    )


def timed(device: Any) -> None:
    """Time one thing on a device."""
    device.end(device.begin(), 5, 0.0, 0.0, 0)


def test_an_event_is_never_freed(hooks: Any, cuda: Any) -> None:
    device = hooks.Device()
    device.use(cuda, ctypes)
    timed(device)
    del device
    assert (Event.made, Event.freed) == (2, 0)


def test_events_are_used_again(hooks: Any, cuda: Any) -> None:
    device = hooks.Device()
    device.use(cuda, ctypes)
    for _ in range(1000):
        timed(device)
        device.collect()
    assert Event.made == 2


@pytest.mark.parametrize("lost", ["begun", "ended"])
def test_there_are_never_more_events_than_the_limit(hooks: Any, cuda: Any, lost: str) -> None:
    device = hooks.Device()
    device.use(cuda, ctypes)
    for _ in range(1000):
        device.mark() if lost == "begun" else timed(device)
    assert Event.made <= hooks.EVENTS_MOST


def test_a_forked_process_times_nothing_and_keeps_what_is_pending(
    hooks: Any, cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = hooks.Device()
    device.use(cuda, ctypes)
    timed(device)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert (device.mark(), device.begin(), device.is_aside()) == (None, None, False)
    device.collect()
    assert (len(device.pending), Event.asked) == (1, 0)


def test_a_process_that_was_forked_before_cuda_was_used_is_timed(
    hooks: Any, cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = hooks.Device()
    device.use(cuda, ctypes)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert device.mark() is not None


def test_while_a_graph_is_captured_no_event_is_recorded_or_asked(hooks: Any, cuda: Any) -> None:
    device = hooks.Device()
    device.use(cuda, ctypes)
    timed(device)
    cuda.is_current_stream_capturing = lambda: True
    device.collect()
    assert (device.mark(), Event.asked) == (None, 0)


def test_an_error_of_cuda_is_left_to_the_training(hooks: Any, cuda: Any) -> None:
    device = hooks.Device()
    device.use(cuda, ctypes)
    timed(device)
    Event.fails = True
    device.collect()
    assert device.mark() is None


def test_an_event_that_the_training_replaces_is_not_used(hooks: Any, cuda: Any) -> None:
    device = hooks.Device()
    device.use(cuda, ctypes)
    cuda.Event = None
    assert device.mark() is not None


@pytest.mark.parametrize("without", [None, SimpleNamespace(pythonapi={})])
def test_a_python_that_cannot_keep_events_times_nothing(hooks: Any, cuda: Any, without: Any) -> None:
    device = hooks.Device()
    device.use(cuda, without)
    assert device.mark() is None


def test_a_forked_process_keeps_the_stream_of_its_parent(
    hooks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = hooks.Recorder(str(tmp_path))
    recorder.event(7, 0.0, 0.0)
    inherited = recorder.stream
    monkeypatch.setattr(os, "getpid", lambda: 1)
    recorder.event(7, 1.0, 0.0)
    assert recorder.inherited == [inherited]
    assert next(inherited.numbers) == 2  # nothing of the child is in it


def test_a_full_disk_leaves_the_training_unrecorded(
    hooks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without blocks on the disk, the first event would end the training with SIGBUS."""
    recorder = hooks.Recorder(str(tmp_path))
    monkeypatch.setattr(os, "write", lambda _, data: len(data) - 1)
    recorder.event(7, 0.0, 0.0)
    assert (recorder.dead, list(tmp_path.glob("*.ring"))) == (True, [])


def test_where_an_error_came_from() -> None:
    frames = [
        ("/home/ada/train.py", 20, "<module>"),
        (str(INJECTED / "envkit_watch_probes.py"), 7, "next_batch"),
        ("/venv/lib/python3.11/site-packages/torch/loader.py", 9, "get"),
    ]
    assert places(frames) == {"where": "train.py:20 in <module>", "raised": "loader.py:9 in get", "probes": 1}


@pytest.mark.parametrize(
    ("file", "oldest"), [(file, (3, 4) if file.stem == "sitecustomize" else (3, 7)) for file in INJECTED.glob("*.py")]
)
def test_the_syntax_is_that_of_the_oldest_python(file: Path, oldest: tuple[int, int]) -> None:
    ast.parse(file.read_text(), feature_version=oldest)


def test_a_python_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("envkit_start", INJECTED / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setenv("ENVKIT_WATCH_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "version_info", (3, 6, 9, "final", 0))
    spec.loader.exec_module(module_from_spec(spec))
    collector = Collector(Folder(tmp_path), 0.0, Tree(os.getpid()))
    (found,) = collector.processes()
    assert (found.pid, found.fact("unseen", "reason")) == (os.getpid(), "Python 3.6; the probes need 3.7 or newer")
    assert collector.unread == ()
