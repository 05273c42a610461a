import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.image.deflate import PIECE, DamagedError, Inflater


def _packed(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _inflate(packed: bytes, *, size: int, crc: int, step: int = 1 << 20) -> bytes:
    inflater = Inflater(size)
    pieces = [piece for at in range(0, len(packed), step) for piece in inflater.feed(packed[at : at + step])]
    assert all(0 < len(piece) <= PIECE for piece in pieces)
    inflater.finish(crc)
    return b"".join(pieces)


@given(st.binary(max_size=5000), st.integers(1, 700))
def test_what_went_in_comes_out(data: bytes, step: int) -> None:
    assert _inflate(_packed(data), size=len(data), crc=zlib.crc32(data), step=step) == data


def test_a_megabyte_of_zeros_comes_in_pieces() -> None:
    data = bytes(1 << 20)
    assert _inflate(_packed(data), size=len(data), crc=zlib.crc32(data)) == data


@pytest.mark.parametrize(
    ("packed", "size", "crc", "message"),
    [
        (_packed(b"hello")[:-1], 5, zlib.crc32(b"hello"), "it is cut short"),
        (b"", 0, 0, "it is cut short"),
        (_packed(b"hello"), 6, zlib.crc32(b"hello"), "it is cut short"),
        (_packed(b"hello"), 4, zlib.crc32(b"hello"), "it is longer than stated"),
        (_packed(bytes(1 << 22)), 100, 0, "it is longer than stated"),
        (_packed(b"hello"), 5, 1, r"its CRC-32 is 3610a686, not 00000001"),
        (_packed(b"hello") + b"x", 5, zlib.crc32(b"hello"), "it goes on after its end"),
        (b"\xff\xff\xff", 5, 0, "it is not deflate data"),
    ],
)
def test_what_is_not_as_promised_is_refused(packed: bytes, size: int, crc: int, message: str) -> None:
    with pytest.raises(DamagedError, match=message):
        _inflate(packed, size=size, crc=crc)


def test_more_data_after_the_end_in_a_later_piece_is_refused() -> None:
    inflater = Inflater(5)
    assert b"".join(inflater.feed(_packed(b"hello"))) == b"hello"
    with pytest.raises(DamagedError, match="goes on after its end"):
        list(inflater.feed(b"x"))


@given(st.binary(min_size=1, max_size=400), st.data())
def test_a_flipped_bit_is_never_missed(data: bytes, draw: st.DataObject) -> None:
    packed = bytearray(_packed(data))
    bit = draw.draw(st.integers(0, len(packed) * 8 - 1))
    packed[bit // 8] ^= 1 << bit % 8
    try:
        same = _inflate(bytes(packed), size=len(data), crc=zlib.crc32(data))
    except DamagedError:
        return
    assert same == data  # a bit behind the end of the last block, or one that chose another code for the same bytes
