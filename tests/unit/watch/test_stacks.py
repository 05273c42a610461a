"""The frames of a thread as they are read from memory, and what they say that it does."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from envkit.watch.doing import Doing, doing
from envkit.watch.files import Folder, Name
from envkit.watch.stacks import Layout, Look, Reader, line_at

stack: Any = import_module("envkit.watch.injected.envkit_watch_stack")
HERE = __file__


def found() -> dict[str, int]:
    layout = stack.layout(ctypes, threading.get_native_id())
    assert layout is not None
    return dict(layout)


def in_nested_calls(wait: Callable[[], object], told: list[dict[str, int]]) -> None:
    """Note the layout in one depth, and wait in another one."""
    told += [found() for _ in range(1)]

    def inner() -> Iterator[None]:
        yield None
        wait()  # LINE

    list(inner())


LINE = next(at for at, line in enumerate(Path(HERE).read_text().splitlines(), 1) if "# LINE" in line)


@contextmanager
def waiting(wait: Callable[[], object], until: Callable[[Look], bool]) -> Iterator[tuple[Reader, Look]]:
    """A thread of this process that waits, and a look at it once it does."""
    told: list[dict[str, int]] = []
    thread = threading.Thread(target=in_nested_calls, args=(wait, told), daemon=True)
    thread.start()
    while not told:
        time.sleep(0)
    layout = Layout.of(told[0])
    assert layout is not None
    reader = Reader(os.getpid(), layout)
    while True:
        look = reader.look()
        if look is not None and until(look):
            yield reader, look
            return


def test_a_thread_that_waits_is_read_with_its_lines() -> None:
    event = threading.Event()
    with waiting(event.wait, lambda look: look.call == "lock" and bool(look.frames)) as (_, look):
        event.set()
    names = [(frame[1], frame[2]) for frame in look.frames if frame[0] == HERE]
    assert names[0] == (LINE, "inner")
    assert names[1][1] == "in_nested_calls"
    assert "wait" in [frame[2] for frame in look.frames]  # of threading, which is newer
    assert doing(look, busy=0.0) == (Doing.LOCK, f"test_stacks.py:{LINE} in inner")


def test_the_system_call_says_what_is_waited_for() -> None:
    left, right = socket.socketpair()
    with left, right, waiting(lambda: left.recv(1), lambda look: look.call == "network") as (_, look):
        right.send(b"a")
    assert doing(look, busy=0.0)[0] is Doing.NETWORK
    read, write = os.pipe()
    with waiting(lambda: os.read(read, 1), lambda look: look.call == "child") as (_, look):
        os.write(write, b"a")
    assert doing(look, busy=0.0)[0] is Doing.SUBPROCESS
    os.close(read)
    os.close(write)


def test_a_file_whose_name_is_no_ascii_is_read() -> None:
    event = threading.Event()
    told: dict[str, Callable[[], object]] = {}
    exec(compile("def żółw中():\n\n    event.wait()", "/tmp/żółw/中.py", "exec"), {"event": event}, told)
    with waiting(told["żółw中"], lambda look: bool(look.frames) and look.call == "lock") as (_, look):
        event.set()
    assert ("/tmp/żółw/中.py", 3, "żółw中") in look.frames


def test_a_stack_without_enough_different_places_or_a_python_without_ctypes_has_no_layout() -> None:
    assert stack.layout(None, 1) is None


@pytest.mark.parametrize("field", ["state", "first", "code", "back", "type", "file", "name", "table", "line", "place"])
def test_a_layout_of_a_jobs_own_making_reads_nothing_and_raises_nothing(field: str) -> None:
    event = threading.Event()
    with waiting(event.wait, lambda look: bool(look.frames)) as (reader, _):
        for value in (0, 1, 8, 1 << 20, 1 << 47, (1 << 62) - 1):
            odd = Reader(os.getpid(), replace(reader._layout, **{field: value}))
            look = odd.look()
            assert look is not None
            assert len(look.frames) <= 400
        event.set()


def test_a_process_that_is_gone_or_may_not_be_read_has_no_frames(tmp_path: Path) -> None:
    layout = Layout.of(found())
    assert layout is not None
    assert Reader(1 << 30, layout).look() is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    (tmp_path / "7" / "task" / "7" / "stat").write_text("7 (a) S 1")
    assert Reader(7, layout, root=tmp_path).look() == Look(is_running=False, frames=(), call=None)


def test_a_layout_is_a_fact_that_the_folder_takes(tmp_path: Path) -> None:
    stream: Any = import_module("envkit.watch.injected.envkit_watch_stream")
    writer = stream.Stream(str(tmp_path))
    writer.fact(fact="stack", **found())
    (name,) = Folder(tmp_path).names("facts")
    assert isinstance(name, Name)
    assert Layout.of(Folder(tmp_path).facts(name)["stack"]) == Layout.of(found())
    assert Layout.of({}) is None


def test_lines_are_those_that_python_itself_says() -> None:
    for code in (line_at.__code__, found.__code__, in_nested_calls.__code__, Reader._walk.__code__):
        for begin, end, line in code.co_lines():
            if line is not None:
                assert [line_at(code.co_linetable, code.co_firstlineno, at, 311) for at in (begin, end - 2)] == [
                    line
                ] * 2


# What each version made of one function: its table, and the lines of its instructions, as its own `dis` tells them.
TABLES = {
    307: (
        "0002047f000f020102010801060102010a01",
        [12, 12, 154, 155, 156, 156, 156, 156, 157, 157, 157, 158, 159, 159, 159, 159, 159, 160, 160],
    ),
    309: (
        "0002047f000f0201020102ff02fe04040401020102ff0602",
        [12, 12, 154, 155, 156, 155, 153, 153, 157, 157, 158, 159, 158, 158, 158, 160, 160],
    ),
    310: (
        "0402007f020f0201020102ff04fe04040201020104ff04ff0403",
        [12, 12, 154, 155, 156, 155, 153, 153, 157, 157, 158, 159, 158, 158, 157, 157, 160, 160],
    ),
    312: (
        "8000e008098041f05c0400090adc0809d80203f303010905f0050309068041f108000b0cdc0c0dd80c0df303010d0f8801f203000b0cf006000c0d8048",
        [10, 12, 12, 154, 155, 155, 155, 155, 155, 156, 155, 155, 155, 155, 153, 153, 157, 157, 158, 158, 158, 158,
         158, 159, 158, 158, 158, 158, 158, 157, 157, 157, 160, 160],
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", TABLES)
def test_the_tables_of_older_and_newer_pythons_are_read(version: int) -> None:
    table, lines = TABLES[version]
    assert [line_at(bytes.fromhex(table), 10, 2 * at, version) for at in range(len(lines))] == lines


PROGRAM = ("/home/ada/train.py", 30, "train")
LIB = "/venv/lib/python3.11/site-packages"
STD = "/usr/lib/python3.11"


@pytest.mark.parametrize(
    ("inner", "call", "kind"),
    [
        ((), "sleep", Doing.SLEEP),
        ((), "file", Doing.FILE),
        ((), "lock", Doing.LOCK),
        ((), None, Doing.OTHER),
        ((f"{STD}/subprocess.py",), "child", Doing.SUBPROCESS),
        ((f"{STD}/socket.py", f"{STD}/http/client.py", f"{LIB}/urllib3/connection.py"), "network", Doing.NETWORK),
        ((f"{STD}/socket.py", f"{LIB}/requests/api.py", f"{LIB}/wandb/sdk/run.py"), "network", Doing.LOGGING),
        ((f"{STD}/logging/__init__.py",), "file", Doing.LOGGING),
        ((f"{LIB}/torch/serialization.py",), "file", Doing.CHECKPOINT),
        ((f"{LIB}/safetensors/torch.py",), "file", Doing.CHECKPOINT),
        ((f"{LIB}/torch/nn/modules/linear.py", f"{LIB}/torch/nn/modules/module.py"), "lock", Doing.COMPUTING),
        (("<eval_with_key>.4",), "lock", Doing.COMPUTING),
        (("/tmp/torchinductor_ada/ab/cab.py",), "lock", Doing.COMPUTING),
        ((f"{LIB}/torch/cuda/__init__.py",), "lock", Doing.COMPUTING),
        ((f"{LIB}/torch/optim/adamw.py",), "lock", Doing.TIMED),
        ((f"{LIB}/torch/_dynamo/convert_frame.py", f"{LIB}/torch/_dynamo/eval_frame.py"), "child", Doing.TIMED),
        ((f"{LIB}/torch/_dynamo/eval_frame.py",), "lock", Doing.COMPUTING),
        ((f"{LIB}/torch/distributed/distributed_c10d.py",), "lock", Doing.RANKS),
        ((f"{STD}/queue.py",), "lock", Doing.LOCK),
        (("/venv/envkit_watch_probes.py",), "lock", Doing.TIMED),
    ],
)
def test_what_a_waiting_thread_does(inner: tuple[str, ...], call: str | None, kind: Doing) -> None:
    frames = (*((file, 1, "f") for file in inner), PROGRAM, (f"{LIB}/torch/nn/modules/module.py", 9, "_call_impl"))
    found = doing(Look(is_running=False, frames=frames, call=call), busy=0.1)
    assert found[0] is kind
    assert found[1].startswith("train.py:30 in train")


def test_of_a_program_that_leaves_its_loop_to_a_package_the_line_in_the_package_is_told() -> None:
    hub = ((f"{STD}/ssl.py", 1, "read"), (f"{LIB}/hub/upload.py", 4, "push"), (f"{LIB}/trainer.py", 9, "run"))
    found = doing(Look(is_running=False, frames=(*hub, PROGRAM), call="network"), busy=0.0)
    assert found == (Doing.NETWORK, "train.py:30 in train, in upload.py:4 in push")


def test_a_thread_that_runs_computes_unless_it_logs_or_saves() -> None:
    assert doing(Look(is_running=True, frames=(PROGRAM,)), busy=1.0) == (Doing.COMPUTING, "train.py:30 in train")
    saving = ((f"{LIB}/torch/serialization.py", 1, "save"), PROGRAM)
    assert doing(Look(is_running=True, frames=saving), busy=1.0)[0] is Doing.CHECKPOINT


def test_a_program_of_packages_alone_that_trains_in_a_thread_is_none_that_waits_for_a_lock() -> None:
    bottom = ((f"{STD}/threading.py", 982, "run"), (f"{STD}/threading.py", 1002, "_bootstrap"))
    frames = ((f"{LIB}/recipes/train.py", 7, "loop"), *bottom)
    assert doing(Look(is_running=True, frames=frames), busy=1.0) == (Doing.COMPUTING, "")
    assert doing(Look(is_running=False, frames=frames, call="sleep"), busy=0.0) == (Doing.SLEEP, "")
    locked = ((f"{STD}/threading.py", 629, "wait"), *frames)
    assert doing(Look(is_running=False, frames=locked, call="lock"), busy=0.0)[0] is Doing.LOCK


def test_a_thread_that_waits_for_threads_that_compute_is_not_idle() -> None:
    """The main thread at the barrier of an OpenMP loop, or without Python's lock."""
    look = Look(is_running=False, frames=(PROGRAM,), call="lock")
    assert doing(look, busy=0.9)[0] is Doing.COMPUTING
    assert doing(replace(look, call="sleep"), busy=0.9)[0] is Doing.SLEEP


@pytest.mark.parametrize(
    ("file", "name", "is_evaluation"),
    [
        ("/home/ada/train.py", "evaluate", True),
        ("/home/ada/train.py", "run_validation", True),
        (f"{LIB}/lightning/loops.py", "_evaluation_loop", True),
        ("/home/ada/train.py", "retrieval", False),
        ("/home/ada/train.py", "train", False),
    ],
)
def test_an_evaluation_is_known_by_the_name_of_its_function(file: str, name: str, is_evaluation: bool) -> None:
    look = Look(is_running=True, frames=((f"{LIB}/torch/nn/functional.py", 1, "f"), (file, 2, name), PROGRAM))
    assert (doing(look, busy=1.0)[0] is Doing.EVALUATION) is is_evaluation
