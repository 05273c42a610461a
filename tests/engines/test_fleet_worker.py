"""The child process that builds: what reaches it, and what it hands on to programs of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import pytest

from envkit.fleet.local import LocalPool
from envkit.ground.errors import EnvironmentProblem, InterruptedRun
from tests.support.pids import all_end

pytestmark = pytest.mark.engine


def test_a_worker_ends_when_it_is_alone_before_its_work_begins() -> None:
    mine, its = socket.socketpair()
    connection = Connection(mine.detach())
    connection.send((time.sleep, (600,), {}))
    connection.close()
    with its, subprocess.Popen(
        [sys.executable, "-m", "envkit.fleet.worker", str(its.fileno())], pass_fds=[its.fileno()]
    ) as worker:  # fmt: skip
        its.close()
        try:
            assert worker.wait(10) in (0, 128 + signal.SIGTERM)
        finally:
            worker.kill()


def test_a_worker_says_that_work_cannot_be_read_there() -> None:
    mine, its = socket.socketpair()
    connection = Connection(mine.detach())
    argv = [sys.executable, "-m", "envkit.fleet.worker", str(its.fileno())]
    with its, connection, subprocess.Popen(argv, pass_fds=[its.fileno()]) as worker:
        its.close()
        try:
            connection.send_bytes(b"cno_such_module\nwork\n.")
            assert connection.poll(20)
            kind, error = connection.recv()
            assert (kind, type(error)) == ("raised", ModuleNotFoundError)
            connection.send((os.getpid, (), {}))
            assert connection.recv() == ("result", worker.pid)
        finally:
            worker.kill()


def swallow() -> str:
    """Work that makes something else of a signal."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    except InterruptedRun:
        return "stopped"
    return "not stopped"


def test_a_worker_that_is_ended_fails_the_work_that_it_has_and_no_other() -> None:
    with LocalPool(1) as pool:
        futures = [pool.submit(swallow), pool.submit(str, "next")]
        with pytest.raises(EnvironmentProblem, match="the worker process ended with exit code 143"):
            futures[0].result(20)
        assert futures[1].result(20) == "next"
        idle = pool.submit(os.getpid).result(20)
        os.kill(idle, signal.SIGKILL)
        assert all_end([idle], within_s=10)
        assert pool.submit(str, "after").result(20) == "after"


def test_what_a_worker_starts_can_be_ended_by_sigint() -> None:
    with LocalPool(1) as pool:
        told = pool.submit(subprocess.check_output, ["grep", "SigIgn", "/proc/self/status"], text=True).result(20)
    assert not int(told.split()[1], 16) & 1 << signal.SIGINT - 1
