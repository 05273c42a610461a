"""Hostile layers: each is the one layer of an OCI layout whose packages `envkit diff` reads."""

import gzip
import io
import struct
import tarfile
from functools import partial
from pathlib import Path

from envkit.image import zstd
from tests.hostile.archives import archive
from tests.support.file_images import Packed, digest, entry, packed, write_layout

STATUS = b"Package: base-files\nStatus: install ok installed\nVersion: 12.4\n\n"
refused = partial(archive, "layers", code=10)
accepted = partial(archive, "layers", gives=("1 package by its layers", "identical"))


def read(folder: Path, layer: Packed) -> list[str]:
    """Write the layout of a layer; gives the command that reads it."""
    write_layout(folder / "image", [layer])
    return ["diff", "oci:image", "oci:image", "--progress", "quiet"]


def blob(data: bytes, tar: bytes = b"") -> Packed:
    """A layer of these bytes, which is said to hold this tar."""
    return Packed(data, digest(tar or data))


def tar(*more: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar with one Debian package, and further entries."""
    return packed([(entry("var/lib/dpkg/status"), STATUS), *more], compress=False).data


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """One header of a tar, with its checksum: what Python's own writer would refuse to write."""
    fields = (name, b"0000644\0", b"0000000\0", b"0000000\0", size, b"00000000000\0", b" " * 8, kind)
    block = struct.pack("100s8s8s8s12s12s8s1s355x", *fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


END = bytes(1024)


@accepted()
def ok_plain(folder: Path) -> list[str]:
    return read(folder, blob(tar()))


@accepted()
def ok_gzip_in_two_members(folder: Path) -> list[str]:
    whole = tar()
    return read(folder, blob(gzip.compress(whole[:700], 1) + gzip.compress(whole[700:], 1), whole))


@accepted()
def ok_zstd_of_links_and_devices(folder: Path) -> list[str]:
    whole = tar((entry("dev/x", tarfile.CHRTYPE), b""), (entry("etc/up", tarfile.SYMTYPE, target="../../etc"), b""))
    return read(folder, blob(zstd.compress(whole, 1), whole))


@accepted()
def ok_a_path_that_leads_up_is_no_file_here(folder: Path) -> list[str]:
    return read(folder, blob(tar((entry("../../etc/evil"), b"1"), (entry("/etc/evil"), b"2"))))


@refused(says=("tar",))
def not_a_tar(folder: Path) -> list[str]:
    return read(folder, blob(b"<html>not a tar</html>" * 100))


@refused(says=("ends after",))
def cut_off(folder: Path) -> list[str]:
    return read(folder, blob(tar()[:600]))


@refused(says=("ends after 0 bytes",))
def empty(folder: Path) -> list[str]:
    return read(folder, blob(b""))


@refused(says=("damaged gzip",))
def gzip_cut_off(folder: Path) -> list[str]:
    whole = tar()
    return read(folder, blob(gzip.compress(whole)[:-12], whole))


@refused(says=("damaged gzip",))
def words_behind_gzip(folder: Path) -> list[str]:
    whole = tar()
    return read(folder, blob(gzip.compress(whole) + b"more", whole))


@refused(says=("ends after 0 bytes",))
def zstd_cut_off(folder: Path) -> list[str]:
    whole = tar()
    return read(folder, blob(zstd.compress(whole, 1)[:-3], whole))


@refused(says=("damaged zstd",))
def zstd_with_a_window_of_a_gigabyte(folder: Path) -> list[str]:
    # A frame header whose window descriptor is 2^31 bytes, and a block of raw bytes.
    return read(folder, blob(b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x09\x00\x00" + b"x", b"x"))


@refused(says=("inflates to more than",))
def a_gzip_bomb(folder: Path) -> list[str]:
    squeezed = gzip.compress(bytes(64 << 20), 9)
    first = gzip.compress(header(b"a", b"%011o" % (20 * 64 << 20)))
    return read(folder, blob(first + squeezed * 20, b"x"))


@refused(says=("more than 64 MiB of padding after its end",))
def a_gzip_bomb_of_padding(folder: Path) -> list[str]:
    squeezed = gzip.compress(bytes(64 << 20), 9)
    return read(folder, blob(squeezed * 20, b"x"))


@refused(says=("unpacks to sha256:",))
def another_tar_than_promised(folder: Path) -> list[str]:
    return read(folder, blob(gzip.compress(tar()), b"another"))


@refused(says=("goes on after its end",))
def words_behind_the_end(folder: Path) -> list[str]:
    return read(folder, blob(tar() + b"more" * 128))


@refused(says=("damaged header",))
def a_checksum_of_another_header(folder: Path) -> list[str]:
    block = bytearray(header(b"a", b"00000000001\0"))
    block[0] ^= 1
    return read(folder, blob(bytes(block) + END))


@refused(says=("ends after",))
def a_size_of_eight_exabytes(folder: Path) -> list[str]:
    return read(folder, blob(header(b"var/lib/dpkg/status", b"\x80\0\0\0\x7f" + b"\xff" * 7) + END))


@refused(says=("-1 bytes",))
def a_size_below_zero(folder: Path) -> list[str]:
    return read(folder, blob(header(b"var/lib/dpkg/status", b"\xff" * 12) + END))


@refused(says=("an invalid number",))
def a_size_that_is_no_number(folder: Path) -> list[str]:
    return read(folder, blob(header(b"a", b"0x7fffffff\0\0") + END))


@refused(says=("a header of",))
def a_name_of_two_gigabytes(folder: Path) -> list[str]:
    return read(folder, blob(header(b"././@LongLink", b"20000000000\0", b"L") + END))


@refused(says=("unknown kind", "a.py"))
def a_sparse_file(folder: Path) -> list[str]:
    return read(folder, blob(header(b"a.py", b"00000000000\0", b"S") + END))


@refused(says=("unknown kind",))
def a_control_character_in_a_name(folder: Path) -> list[str]:
    return read(folder, blob(header(b"\x1b[2J\xc2\x9b.py", b"00000000000\0", b"Z") + END))


@refused(says=("damaged pax header",))
def a_pax_record_of_no_length(folder: Path) -> list[str]:
    record = b"0 path=evil\n".ljust(512, b"\0")
    return read(folder, blob(header(b"x", b"00000000014\0", b"x") + record + END))


@refused(says=("damaged pax header",))
def a_pax_record_of_many_digits(folder: Path) -> list[str]:
    record = (b"9" * 500 + b" path=x\n").ljust(512, b"\0")
    return read(folder, blob(header(b"x", b"00000000774\0", b"x") + record + END))


@refused(says=("an invalid size",))
def a_pax_size_that_is_no_number(folder: Path) -> list[str]:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as written:
        one = entry("a.py")
        one.pax_headers = {"size": "9" * 5000}
        written.addfile(one)
    return read(folder, blob(whole.getvalue()))


@refused(says=("zero byte",))
def a_pax_name_with_a_zero_byte(folder: Path) -> list[str]:
    record = b"16 path=a\0/../b\n"
    return read(folder, blob(header(b"x", b"%011o\0" % len(record), b"x") + record.ljust(512, b"\0") + END))


@accepted()
def ok_50_000_empty_files(folder: Path) -> list[str]:
    block = header(b"srv/x", b"00000000000\0")
    whole = tar()[:1024] + block * 50_000 + END
    return read(folder, blob(gzip.compress(whole, 1), whole))
