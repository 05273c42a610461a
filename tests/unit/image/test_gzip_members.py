import gzip
import zlib

from hypothesis import example, given
from hypothesis import strategies as st

from envkit.image.deflate import gzip_member, squeeze

_PIECES = st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 1200).map(bytes)), max_size=8)


@given(_PIECES)
@example([b"a" * 70_000, bytes(20), b"b" * 70_000])
@example([bytes(20), b"b" * 65_536])
@example([bytes(300_000)])
def test_squeezed_bytes_inflate_to_themselves(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    engine = zlib.decompressobj(-15)
    assert engine.decompress(squeeze(data)) + engine.flush() == data
    assert engine.eof
    assert engine.unused_data == b""


def test_a_run_of_zeros_of_any_length_inflates() -> None:
    for count in range(16, 1100):
        assert zlib.decompress(squeeze(bytes(count)), -15) == bytes(count)
        assert zlib.decompress(squeeze(bytes(count) + b"x"), -15) == bytes(count) + b"x"


def test_a_tar_header_shrinks_to_its_text() -> None:
    header = b"name".ljust(100, b"\0") + b"0000644".ljust(412, b"\0")
    assert len(gzip_member(header)) < 70


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6))
def test_members_in_a_row_are_one_gzip_file(parts: list[bytes]) -> None:
    assert gzip.decompress(b"".join(map(gzip_member, parts))) == b"".join(parts)


def test_these_bytes_never_change() -> None:
    assert gzip_member(b"abc").hex() == "1f8b08000000000000ff010300fcff616263c241243503000000"
    assert gzip_member(b"a" + bytes(32)).hex() == "1f8b08000000000000ff000100feff616320000011a9a7f521000000"
    assert gzip_member(bytes(32) + b"a").hex() == "1f8b08000000000000ff62200000010100feff61436bc94021000000"
