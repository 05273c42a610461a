from __future__ import annotations

import gzip
import io
import itertools
import time
import tracemalloc
import unicodedata
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envkit.doctor.logs import diagnose_log
from envkit.doctor.model import Diagnosis, Severity, Verdict
from envkit.knowledge.signatures import NEAR

_WORDS = (
    b"\n", b"\r", b"\x1b[31m", b"\xff\xfe", b"2026-11-20T12:00:00Z ", b"RuntimeError: No CUDA GPUs are available",
    b"Killed", b"CUDA error: out of memory", b"pin_memory", b"\x00", "\u202e".encode(),
)  # fmt: skip


def diagnosed(text: str | bytes) -> Diagnosis:
    data = text.encode() if isinstance(text, str) else text
    return diagnose_log(io.BufferedReader(io.BytesIO(data)), "try")


def ids(text: str) -> list[str]:
    return [one.id for one in diagnosed(text).findings]


def test_the_cause_comes_before_what_follows_from_it() -> None:
    found = diagnosed(
        "RuntimeError: DataLoader worker (pid(s) 12) exited unexpectedly\n"
        "x\n"
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>: No space left on device (28)\n"
        "Error: Process completed with exit code 1.\n"
    )
    (finding,) = found.findings
    assert finding.id == "shm-exhausted"
    assert finding.evidence[0].line == 3
    assert finding.consequences == (
        "A DataLoader worker exited unexpectedly (line 1)",
        "A step ended with an exit code (line 4)",
    )
    assert (found.exit_code, found.conclusion) == (0, "Shared memory (/dev/shm) is full or too small (line 3)")


def test_consequences_of_consequences_belong_to_the_cause() -> None:
    log = (
        "Memory cgroup out of memory: Killed process 12 (python)\n"
        "Killed\n"
        "RuntimeError: DataLoader worker (pid(s) 12) exited unexpectedly\n"
    )
    (finding,) = diagnosed(log).findings
    assert finding.id == "oom-killed"
    assert len(finding.consequences) == 2


def test_of_two_causes_the_first_is_named_first() -> None:
    first, second = (
        "RuntimeError: NCCL: Duplicate GPU detected : x",
        "ImportError: x: undefined symbol: ncclCommRegister",
    )
    assert ids(f"{first}\n{second}") == ["nccl-duplicate-gpu", "nccl-symbol"]
    assert ids(f"{second}\n{first}") == ["nccl-symbol", "nccl-duplicate-gpu"]


def test_the_stack_of_a_timeout_is_no_other_failure() -> None:
    found = diagnosed(
        "[Rank 11] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=52) ran for 240077 milliseconds\n"
        "[Rank 11] To avoid data inconsistency, we are taking the entire process down.\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7fff in libc10.so)\n"
    )
    assert found.conclusion == "A collective failed or timed out (line 1), but the log does not show why"
    assert [name for name, _ in found.sections[0].facts] == ["lines"]


def test_an_error_comes_before_remarks_made_earlier() -> None:
    log = "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated\nRuntimeError: No CUDA GPUs are available\n"
    found = diagnosed(log).findings
    assert [one.severity for one in found] == [Severity.ERROR, Severity.INFO]


def test_a_remark_that_explains_an_error_weighs_as_much() -> None:
    log = "Successfully installed torch-2.7.1+cpu\nAssertionError: Torch not compiled with CUDA enabled\n"
    found = diagnosed(log)
    assert [(one.id, one.severity) for one in found.findings] == [("cpu-build-chosen", Severity.ERROR)]
    assert found.findings[0].consequences == ("The installed torch is a CPU build (line 2)",)
    assert found.exit_code == 0


def test_the_end_alone_is_told_as_the_end() -> None:
    assert ids("Error: Process completed with exit code 1.") == ["step-failed"]
    # What stands after it cannot have caused it.
    assert ids("Error: Process completed with exit code 1.\nRuntimeError: No CUDA GPUs are available") == [
        "no-cuda-device",
        "step-failed",
    ]


@pytest.mark.parametrize("before", [True, False])
def test_a_signature_may_need_its_surroundings(before: bool) -> None:
    error, context = "RuntimeError: CUDA error: out of memory\n", "  in pin_memory\n"
    log = context + "x\n" * 5 + error if before else error + "x\n" * 5 + context
    assert ids(log) == ["pinned-memory-limit"]
    assert diagnosed(log).findings[0].evidence[0].text == error.strip()


@pytest.mark.parametrize("distance", [NEAR, NEAR + 1])
def test_surroundings_end_somewhere(distance: int) -> None:
    log = "  in pin_memory\n" + "x\n" * (distance - 1) + "RuntimeError: CUDA error: out of memory\n"
    assert ("pinned-memory-limit" in ids(log)) == (distance == NEAR)


def test_a_failure_that_repeats_is_counted_and_shown_three_times() -> None:
    (finding,) = diagnosed("RuntimeError: No CUDA GPUs are available\n" * 50).findings
    assert finding.times == 50
    assert [one.line for one in finding.evidence] == [1, 2, 3]


def test_faults_that_are_not_known_are_shown_and_told_by_the_exit_code() -> None:
    found = diagnosed("fine\nzoo.LionError: the lion is out\n")
    assert found.exit_code == 5
    assert ("line 2", "zoo.LionError: the lion is out") in found.sections[0].facts


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("./run.sh: line 3: frob: command not found", "frob"),
        ("a.c:12:3: error: expected ';'", "expected"),
        ("make[1]: *** [Makefile:3: all] Error 1", "make[1]"),
        ("terminate called after throwing an instance of 'std::runtime_error'", "terminate called"),
        ("2026-11-20 12:00:00,123 - train - ERROR - the lion is out", "the lion is out"),
        ("12:00:00 | CRITICAL | main:12 - the lion is out", "the lion is out"),
        ("2026-11-20 12:00:00 [ERROR] train: the lion is out", "the lion is out"),
        ("Nov 20 12:00:00 node7 python[12]: ValueError: the lion is out", "ValueError: the lion"),
        ("2026-11-20T12:00:00Z ##[error]ValueError: the lion is out", "ValueError: the lion"),
        ("0.345 ValueError: the lion is out", "ValueError: the lion"),
        ("(worker pid=12) Traceback (most recent call last):", "Traceback"),
    ],
)
def test_a_fault_is_not_taken_for_nothing(line: str, shown: str) -> None:
    found = diagnosed(f"fine\n{line}\n")
    assert found.exit_code == 5
    assert shown in dict(found.sections[0].facts)["line 2"]


@pytest.mark.parametrize(("between", "lines"), [(3, ["line 5"]), (NEAR + 1, ["line 1", f"line {NEAR + 3}"])])
def test_of_a_traceback_its_exception_is_shown(between: int, lines: list[str]) -> None:
    log = "Traceback (most recent call last):\n" + "  x\n" * between + "zoo.LionError: the lion is out\n"
    assert [name for name, _ in diagnosed(log).sections[0].facts if name != "lines"] == lines


def test_an_exception_of_any_name_is_a_fault() -> None:
    found = diagnosed('Traceback (most recent call last):\n  File "zoo.py", line 1\nzoo.LionIsOut: too bad\n')
    assert (found.exit_code, found.findings) == (5, ())


@pytest.mark.parametrize(
    "text",
    [
        "epoch 1\nepoch 2\n",
        "0 errors, 0 warnings\nerror rate 0.1\n",
        "[INFO] no ERROR\n-- fatal: none, make all\nERROR_RATE - 0.1\n--log-level [INFO|ERROR|FATAL]\n",
    ],
)
def test_nothing_is_made_of_nothing(text: str) -> None:
    found = diagnosed(text)
    assert found.findings == ()
    assert (found.verdict, found.exit_code) == (Verdict.OPEN, 5)
    assert "does not say how the job ended" in found.conclusion


def test_an_empty_log_says_nothing() -> None:
    found = diagnosed("")
    assert (found.verdict, found.exit_code, found.conclusion) == (Verdict.OPEN, 5, "the log is empty")


def test_what_an_engine_only_remarks_is_no_failure() -> None:
    quoted = 'msg="skip loading plugin: exec: \\"modprobe\\": executable file not found in $PATH"'
    assert ids(f"time=x level=info {quoted}\n") == []
    assert ids(f"time=x level=error {quoted}\n") == ["program-not-found"]


def test_a_failure_far_out_in_a_very_long_line_is_found() -> None:
    (finding,) = diagnosed(
        "x" * 20_000 + " ImportError: a.so: undefined symbol: ncclCommRegister " + "y" * 5000
    ).findings
    assert finding.id == "nccl-symbol"


_GZIP = b"\x1f\x8b"


@pytest.mark.parametrize("whole", [True, False])
@given(data=st.binary(max_size=60))
def test_a_damaged_gzip_file_is_an_error_of_the_file(data: bytes, whole: bool) -> None:
    head = gzip.compress(b"a log\n" * 20)[:10] if whole else _GZIP
    with pytest.raises((OSError, EOFError)):
        diagnosed(head + data)


_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}  # categories of characters that move a terminal's cursor, or are none
# Marks that hide text or turn its direction around.
_TURNING = {chr(code) for first, last in ((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2069), (0xFFF9, 0xFFFB))
            for code in range(first, last + 1)} | {"\u00ad", "\u061c", "\ufeff"}  # fmt: skip


@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(_WORDS)), max_size=30))
def test_any_bytes_get_an_answer(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assume(not data.startswith(_GZIP))
    found = diagnosed(data)
    assert found.exit_code in (0, 5)
    for finding in found.findings:
        for one in finding.evidence:
            text = one.text.replace("\t", " ")
            assert one.line
            assert not _HIDDEN & {unicodedata.category(sign) for sign in text}
            assert not _TURNING & set(text)


def test_the_text_of_a_log_cannot_steer_a_terminal() -> None:
    (finding,) = diagnosed("\x1b]0;title\x07RuntimeError: No CUDA GPUs are available \x1b[2J\x00\n").findings
    assert finding.evidence[0].text == "RuntimeError: No CUDA GPUs are available \\x00"


def test_memory_does_not_grow_with_the_log() -> None:
    line = b"step 12 loss 0.123 error rate 0.5 RuntimeError: No CUDA GPUs are available" + b" " * 900 + b"\n"

    class Endless(io.RawIOBase):
        def __init__(self, size: int) -> None:
            self.left = size

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            size = min(len(buffer), self.left) // len(line) * len(line)
            buffer[:size] = line * (size // len(line))
            self.left -= size
            return size

    def peak(size: int) -> int:
        tracemalloc.start()
        diagnose_log(io.BufferedReader(Endless(size), 1 << 16), "endless")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1 << 20)  # what is loaded once
    assert peak(4 << 20) < 1.2 * peak(1 << 20)


def test_hostile_lines_take_no_longer_than_others() -> None:
    near_misses = [
        "undefined symbol: " + "_ZN" * 2000,
        'exec: "' + "x" * 8000,
        "loss " + "= " * 4000 + "na",
        "Xid (PCI:" + "0" * 8000,
    ]
    began = time.process_time()
    diagnosed("\n".join(near_misses * 20))
    assert time.process_time() - began < 5


class Repeated(io.RawIOBase):
    """A log of one text over and over, between a beginning and an end."""

    def __init__(self, text: bytes, size: int, *, start: bytes = b"", end: bytes = b"") -> None:
        self.parts = itertools.chain([start], itertools.repeat(text, size // len(text)), [end])
        self.rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest:
            try:
                self.rest = next(self.parts)
            except StopIteration:
                return 0
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def of_size(text: bytes, size: int, **more: bytes) -> tuple[Diagnosis, float]:
    diagnosed("x")  # loads the knowledge base
    before = time.process_time()
    found = diagnose_log(io.BufferedReader(Repeated(text, size, **more), 1 << 18), "log")
    return found, time.process_time() - before


LINE = b"RuntimeError: No CUDA GPUs are available"


@pytest.mark.requirement("R61")
@pytest.mark.parametrize("part", [b"Error: x=1 ", b"\0" * 64, b"{'loss': 0.5, 'error': 2}, ", b"=" * 64, b"[rank0]: "])
def test_a_line_without_end_is_read_at_both_ends(part: bytes) -> None:
    found, seconds = of_size(
        part * 1000, 64 << 20, start=LINE + b"\nx", end=b" ImportError: undefined symbol: ncclCommX\n"
    )
    assert [finding.id for finding in found.sections[0].findings] == ["no-cuda-device", "nccl-symbol"]
    assert dict(found.sections[0].facts)["not read"].endswith("MB in the middle of very long lines")
    assert seconds < 3  # 0.05 s per MB


def test_the_redraws_of_a_progress_bar_are_no_line_without_end() -> None:
    found, _ = of_size(b"loading 12%\r" * 1000 + LINE + b"\r", 4 << 20)
    assert "not read" not in dict(found.sections[0].facts)
    assert found.sections[0].findings[0].times == 1  # the number of its line is the same


def test_lines_after_one_without_end_keep_their_numbers() -> None:
    found, _ = of_size(b"x" * (1 << 16), 4 << 20, start=b"first\n", end=b"\n" + LINE + b"\n")
    assert [evidence.line for evidence in found.sections[0].findings[0].evidence] == [3]


@pytest.mark.requirement("R61")
@pytest.mark.parametrize(
    "lines",
    [
        b"RuntimeError: it failed at step 12\n",
        b"epoch 3 step 12 loss 0.123\n",
        b"\n",
        b"[rank1]: 2026-01-01 00:00:00 Collecting torch==2.1\n",
        b"\x1b[31mError\x1b[0m: bad %\n",
        b"a\r",
    ],
)
def test_a_long_log_takes_little_time_for_each_mb(lines: bytes) -> None:
    _, seconds = of_size(lines * 1000, 2 << 20)
    assert seconds < 2  # a tenth of it on an idle machine


def test_lines_that_differ_in_their_digits_alone_are_told_apart() -> None:
    text = "error: exit code 1\nerror: exit code 137\nerror: exit code 2\n"
    (finding,) = diagnosed(text).findings
    assert [evidence.line for evidence in finding.evidence] == [2]
