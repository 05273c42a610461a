from __future__ import annotations

import gzip
import io

import pytest

from envkit.doctor.logtext import LONGEST, PIECE, pieces, plain


def reader(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))


def lines(data: bytes) -> list[tuple[int, str]]:
    rows = [zip(*piece.lines(), strict=True) for piece in pieces(reader(data))]
    return [(number, line) for lines in rows for number, line in lines if line]


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-20T12:00:00.123456789Z Killed",
        "[2026-11-20 12:00:00,123] Killed",
        "#12 34.56 Killed",
        "#12 [build 3/7] 34.56 Killed",
        "[pod/train-0/main] Killed",
        "[pod/train-0/main] 2026-11-20T12:00:00Z Killed",
        "2026-11-20T12:00:00.1Z stderr F Killed",
        "train-1  | Killed",
        "[rank0]: Killed",
        "3: Killed",
        "Nov 20 12:00:00 node7 Killed",
        "Nov 20 12:00:00 node7 python3.11[1234]: Killed",
        "Nov 20 12:00:00 node7 kernel: [12345.678901] Killed",
        "[   12.678901] Killed",
        "2026-11-20T12:00:00.123Z ##[error]Killed",
        "12.345 Killed",
        '{"log":"Killed',
        "\x1b[31mKilled\x1b[0m",
        "Killed",
    ],
)
def test_what_engines_put_before_a_line_is_taken_off(line: str) -> None:
    assert plain(line) == "Killed"


def test_a_line_that_is_all_prefix_stays() -> None:
    assert plain("2026-11-20T12:00:00Z ") == "2026-11-20T12:00:00Z"


def test_lines_are_numbered_from_one_and_redraws_share_a_number() -> None:
    assert lines(b"one\r\n 10%\r 20%\rError\nthree") == [
        (1, "one"),
        (2, " 10%"),
        (2, " 20%"),
        (2, "Error"),
        (3, "three"),
    ]


def test_numbers_hold_over_pieces() -> None:
    count = PIECE // 8
    found = lines(b"0123456789\n" * count)
    assert len(found) == count
    assert found[-1] == (count, "0123456789")


def test_colors_do_not_hide_text_even_over_a_piece() -> None:
    data = b"x" * (PIECE - 3) + b"\n\x1b[1;31mCUDA\x1b[0m error"
    assert lines(data)[-1] == (2, "CUDA error")


def test_compressed_and_utf16_logs_are_read() -> None:
    assert lines(gzip.compress(b"one\ntwo\n")) == [(1, "one"), (2, "two")]
    assert lines("one\ntwo".encode("utf-16")) == [(1, "one"), (2, "two")]
    assert lines(b"\xef\xbb\xbfone") == [(1, "one")]
    with pytest.raises(EOFError):
        lines(gzip.compress(b"one\ntwo\n" * 1000)[:-8])


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert lines(b"\xff\xfe\xff"[2:] + b" error") == [(1, "\ufffd error")]


def test_a_line_without_an_end_costs_bounded_memory() -> None:
    longest = max(len(piece.text) for piece in pieces(reader(b"x" * (8 * PIECE))))
    assert longest <= LONGEST + PIECE


@pytest.mark.parametrize(
    ("curved", "straight"),
    [
        ("can\u2019t create new processes", "can't create new processes"),
        ("env: \u2018bash\u2019: missing", "env: 'bash': missing"),
        ("no module \u201ctorch\u201d", 'no module "torch"'),
        ("━━ 5/9 MB", "━━ 5/9 MB"),
    ],
)
def test_typographic_quotes_are_read_as_straight_ones(curved: str, straight: str) -> None:
    assert lines(curved.encode()) == [(1, straight)]
    assert lines(curved.encode("utf-16")) == [(1, straight)]
