"""Logs as they come: encodings, binary data, escapes, ranks that write at the same time, quotes, cut ends, prefixes."""

from __future__ import annotations

import io
import random

import pytest

from envkit.doctor.logs import diagnose_log
from envkit.doctor.model import Diagnosis, Verdict

LINE = "RuntimeError: No CUDA GPUs are available"


def diagnosed(data: bytes | str) -> Diagnosis:
    raw = data.encode() if isinstance(data, str) else data
    return diagnose_log(io.BufferedReader(io.BytesIO(raw)), "log")


def ids(found: Diagnosis) -> list[str]:
    return [finding.id for finding in found.findings]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_an_encoding_hides_no_failure(encoding: str) -> None:
    found = diagnosed(f"epoch 1\n{LINE}\n".encode(encoding))
    assert (found.verdict, ids(found)) == (Verdict.NAMED, ["no-cuda-device"])
    assert found.findings[0].evidence[0].line == 2


def test_bytes_of_an_unknown_encoding_are_no_good_end() -> None:
    assert diagnosed("训练开始\n段错误\n".encode("gbk")).verdict is Verdict.OPEN


@pytest.mark.parametrize("seed", range(5))
def test_binary_data_hides_no_failure(seed: int) -> None:
    noise = random.Random(seed).randbytes(100_000)
    found = diagnosed(noise + f"\n{LINE}\n".encode() + noise)
    assert "no-cuda-device" in ids(found)
    assert found.verdict is Verdict.NAMED


def test_binary_data_alone_is_no_good_end() -> None:
    for seed in range(20):
        found = diagnosed(random.Random(seed).randbytes(20_000))
        assert found.exit_code == 5
        assert not found.findings


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mRuntime\x1b[0mError: No CUDA \x1b[1mGPUs\x1b[22m are available\n",
        f"\x1b[2K\r\x1b[1A 10%|█         | 1/10 [00:01<00:09]\r 20%|██        | 2/10\r{LINE}\n",
        f"loading 1%\b\b2%\b\b3%\n{LINE}\n",
        f"\x1b]0;title\x07{LINE}\x1b[?25h\n",
        f"epoch 1\r\n{LINE}\r\n",
    ],
)
def test_escapes_and_progress_bars_hide_no_failure(text: str) -> None:
    assert ids(diagnosed(text)) == ["no-cuda-device"]


@pytest.mark.parametrize("prefix", ["", "[rank{}]: ", "[default{}]:", "{}: "])
def test_two_ranks_that_write_at_the_same_time_keep_both_errors(prefix: str) -> None:
    lines = [
        (0, "Traceback (most recent call last):"),
        (1, "Traceback (most recent call last):"),
        (0, '  File "train.py", line 9, in <module>'),
        (1, '  File "train.py", line 7, in <module>'),
        (1, "    load()"),
        (0, "    main()"),
        (1, "ValueError: rank 1 has no data"),
        (0, LINE),
    ]
    found = diagnosed("\n".join(prefix.format(rank) + text for rank, text in lines))
    assert ids(found) == ["no-cuda-device"]
    assert ("line 7", "ValueError: rank 1 has no data") in found.sections[0].facts


@pytest.mark.parametrize(
    "quote",
    [
        f"# {LINE}",
        f"    # {LINE}",
        f"// {LINE}",
        f"/* {LINE} */",
        f"<!-- {LINE} -->",
        f"REM {LINE}",
        f"$ echo '{LINE}'",
        f"+ echo '{LINE}'",
        f"@echo {LINE}",
        f'#8 [4/7] RUN echo "{LINE}"',
        f'Step 4/9 : RUN set -e && echo "{LINE}" > faq.txt',
        f"##[group]Run echo '{LINE}'",
        f'    print("{LINE}")',
        f"logger.warning('{LINE}')",
        f"Write-Host '{LINE}'",
        f"If you see '{LINE}', start the container with --gpus all.",
        f"level=info msg='{LINE}'",
    ],
)
def test_a_quoted_error_is_no_failure(quote: str) -> None:
    found = diagnosed(f"starting\n{quote}\ntraining finished\n")
    assert (found.verdict, ids(found)) == (Verdict.CLEAR, [])


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("epoch 1\nRuntimeError: No CUDA GP", Verdict.UNKNOWN),
        ("epoch 1\nRuntimeErr", Verdict.OPEN),
        ("epoch 1\ntraining fini", Verdict.OPEN),
        ('Traceback (most recent call last):\n  File "train.py", li', Verdict.UNKNOWN),
        ("epoch 1\nstep 3 loss 0.", Verdict.OPEN),
        ("Successfully insta", Verdict.OPEN),
        (f"epoch 1\n{LINE}", Verdict.NAMED),
        ("epoch 1\ntraining finished", Verdict.CLEAR),
    ],
)
def test_a_cut_last_line_is_no_good_end(text: str, verdict: Verdict) -> None:
    assert diagnosed(text).verdict is verdict


PREFIXES = (
    "[rank3]: ",
    "[rank3]:[rank3]: ",
    "[default3]:",
    "3: ",
    "2026-05-02T10:00:00.123456789Z ",
    "2026-05-02T10:00:00.1Z stderr F ",
    "[pod/train-0/main] 2026-05-02T10:00:00Z ",
    "2026-05-02T10:00:00.1000000Z ##[error]",
    "2026-05-02T10:00:00.000000Z 01E ",
    "2026-05-02T10:00:00.000000Z 01O+",
    "#12 [stage-1 4/9] 97.13 ",
    "trainer-1  | ",
    "trainer_1  | ",
    "[1,3]<stderr>: ",
    "[task 2026-01-21T16:30:37.188Z] ",
    "May  2 10:00:00 node7 python[12]: ",
    "(RayTrainWorker pid=812, ip=10.0.0.4) ",
    '{"log":"',
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_hides_neither_a_cause_nor_a_good_end(prefix: str) -> None:
    assert ids(diagnosed(f"{prefix}epoch 1\n{prefix}{LINE}\n")) == ["no-cuda-device"]
    assert diagnosed(f"{prefix}epoch 1\n{prefix}training finished\n").verdict is Verdict.CLEAR
    assert diagnosed(f"{prefix}epoch 1\n{prefix}Bus error (core dumped)\n").verdict is Verdict.UNKNOWN


def test_a_line_of_200_mb_is_read_at_both_ends() -> None:
    class Long(io.RawIOBase):
        left = 200 << 20
        tail = f"\n{LINE}\n".encode()

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
            size = min(len(buffer), self.left)
            buffer[:size] = b"x" * size
            self.left -= size
            if size == 0:
                size = min(len(buffer), len(self.tail))
                buffer[:size] = self.tail[:size]
                self.tail = self.tail[size:]
            return size

    found = diagnose_log(io.BufferedReader(Long(), 1 << 20), "log")
    assert ids(found) == ["no-cuda-device"]
    assert "not read" in dict(found.sections[0].facts)
