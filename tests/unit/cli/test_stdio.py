"""Readers that go away, and streams that are closed."""

import errno
import io
import os
import sys
from collections.abc import Iterator

import pytest

from envkit.cli import stdio
from envkit.ground.errors import EnvironmentProblem


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_a_reader_that_went_away_does_not_stop_the_work(unread: int) -> None:
    with pytest.raises(BrokenPipeError):
        os.write(unread, b"x")
    stream = stdio.tolerant(unread, sys.__stdout__)
    for _ in range(3):
        print("one line", file=stream, flush=True)
    stream.buffer.write(b"x" * 100_000)
    stream.flush()


def test_another_failure_is_told_once_and_not_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(stdio, "_STDOUT", full)
    try:
        stream = stdio.tolerant(full, None)
        with pytest.raises(OSError, match="No space left") as caught:
            print("one line", file=stream, flush=True)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "standard output")
        stream.close()
    finally:
        os.close(full)


def test_what_is_read_comes_through_with_the_same_encoding() -> None:
    reader, writer = os.pipe()
    old = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="replace")
    stream = stdio.tolerant(writer, old)
    assert (stream.encoding, stream.errors, stream.isatty()) == ("latin-1", "replace", False)
    print("h\xf6\u20ac", file=stream, flush=True)
    assert os.read(reader, 100) == b"h\xf6?\n"
    os.close(reader)
    os.close(writer)


def test_a_closed_descriptor_is_nobody_elses() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stdio._open_closed(reader)
    assert os.read(reader, 1) == b""
    assert os.get_inheritable(reader)
    stdio._open_closed(writer)
    with pytest.raises(BrokenPipeError):  # what is open stays what it is
        os.write(writer, b"x")
    os.close(reader)
    os.close(writer)


@pytest.mark.requirement("R58")
def test_an_answer_that_goes_nowhere_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """`envkit resolve --json >&-` ended with exit code 0."""
    monkeypatch.setattr(stdio, "_closed", {1})
    monkeypatch.setattr(stdio, "_lost", set())
    stdio.check_written()  # nothing was written: nothing is lost
    reader, writer = os.pipe()
    saved = os.dup(1)
    os.dup2(writer, 1)
    try:
        stream = stdio.tolerant(1, None)
        print("the answer", file=stream, flush=True)
        with pytest.raises(EnvironmentProblem, match="standard output is closed") as caught:
            stdio.check_written()
        assert caught.value.exit_code == 9
        assert caught.value.hint is not None
    finally:
        os.dup2(saved, 1)
        for one in (saved, reader, writer):
            os.close(one)
