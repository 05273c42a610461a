"""A root file system's tar as a layer."""

import gzip
import hashlib
import io
import random
import tarfile
from pathlib import Path

import pytest

from envkit.engines.debian_root import write_root
from envkit.ground.errors import IntegrityError
from envkit.image.spec import LayerDigest

ENTRIES = (
    ("./", tarfile.DIRTYPE, 0o755, b"", 0),
    ("./bin", tarfile.SYMTYPE, 0o777, b"usr/bin", 0),
    ("./dev/", tarfile.DIRTYPE, 0o755, b"", 0),
    ("./dev/null", tarfile.CHRTYPE, 0o666, b"", 0),
    ("./etc/", tarfile.DIRTYPE, 0o755, b"", 0),
    ("./etc/shadow", tarfile.REGTYPE, 0o640, b"root:*:", 42),
    ("./tmp/", tarfile.DIRTYPE, 0o1777, b"", 0),
    ("./usr/", tarfile.DIRTYPE, 0o755, b"", 0),
    ("./usr/bin/", tarfile.DIRTYPE, 0o755, b"", 0),
    ("./usr/bin/su", tarfile.REGTYPE, 0o4755, b"\x7fELF" * 5000, 0),
    ("./usr/share/Főtanúsítvány.crt", tarfile.REGTYPE, 0o644, b"x", 0),
    ("./var/mail/", tarfile.DIRTYPE, 0o2775, b"", 8),
)


def pack(path: Path, entries: list[tuple[str, bytes, int, bytes, int]], mtime: int = 1) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, mode, data, group in entries:
            one = tarfile.TarInfo(name)
            one.type, one.mode, one.mtime, one.gid, one.gname = kind, mode, mtime, group, "somegroup"
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                one.linkname = data.decode()
            else:
                one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return path


def layer(tar: Path) -> tuple[LayerDigest, bytes]:
    sink = io.BytesIO()
    made = write_root(tar, sink, mtime=7)
    return made, sink.getvalue()


def members(blob: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob))) as archive:
        return {one.name: one for one in archive}


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    entry = ("./\udce9", tarfile.REGTYPE, 0o644, b"x", 0)
    _, blob = layer(pack(tmp_path / "one.tar", [entry]))
    assert list(members(blob)) == ["\udce9"]


def test_order_and_times_change_nothing(tmp_path: Path) -> None:
    entries = list(ENTRIES)
    one = layer(pack(tmp_path / "one.tar", entries))
    random.Random(1).shuffle(entries)
    assert layer(pack(tmp_path / "two.tar", entries, mtime=99)) == one


def test_digests_and_contents(tmp_path: Path) -> None:
    made, blob = layer(pack(tmp_path / "one.tar", list(ENTRIES)))
    inner = gzip.decompress(blob)
    assert made.digest == hashlib.sha256(blob).hexdigest()
    assert made.diff_id == hashlib.sha256(inner).hexdigest()
    assert (made.size, made.tar_size) == (len(blob), len(inner))
    found = members(blob)
    assert list(found) == sorted(found, key=str.encode)
    assert "dev/null" not in found
    assert (found["etc/shadow"].mode, found["etc/shadow"].gid, found["etc/shadow"].gname) == (0o640, 42, "")
    assert (found["tmp"].mode, found["usr/bin/su"].mode, found["var/mail"].mode) == (0o1777, 0o755, 0o775)
    assert found["bin"].linkname == "usr/bin"
    assert {one.mtime for one in found.values()} == {7}
    with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
        assert archive.extractfile("usr/bin/su").read() == b"\x7fELF" * 5000  # type: ignore[union-attr]


def test_of_two_names_the_first_by_path_has_the_contents(tmp_path: Path) -> None:
    for first, second in (("./a", "./b"), ("./b", "./a")):
        tar = pack(
            tmp_path / "one.tar",
            [(first, tarfile.REGTYPE, 0o644, b"data", 0), (second, tarfile.LNKTYPE, 0o644, first.encode(), 0)],
        )
        found = members(layer(tar)[1])
        assert (found["a"].size, found["b"].linkname) == (4, "a")


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([("../x", tarfile.REGTYPE, 0o644, b"", 0)], "'../x' leads out of the tree"),
        ([("a", tarfile.REGTYPE, 0o644, b"", 0), ("./a", tarfile.REGTYPE, 0o644, b"", 0)], "'a' is in it twice"),
        ([("a", tarfile.LNKTYPE, 0o644, b"b", 0)], "a hard link leads to 'b', which is not a file"),
        ([("a", tarfile.LNKTYPE, 0o644, b"a", 0)], "a hard link leads to 'a', which is not a file"),
    ],
)
def test_faults(tmp_path: Path, entries: list[tuple[str, bytes, int, bytes, int]], fault: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        layer(pack(tmp_path / "one.tar", entries))
    assert fault in caught.value.message


def test_no_tar(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no tar at all" * 100)
    with pytest.raises(IntegrityError, match="cannot be read as a tar"):
        layer(tmp_path / "x")


@pytest.mark.requirement("R41")
@pytest.mark.parametrize("name", ["./usr/.wh.share", "./.wh..wh..opq", "./usr/.wh.d/x"])
def test_a_name_that_deletes_other_files_is_refused(tmp_path: Path, name: str) -> None:
    tar = pack(tmp_path / "x.tar", [*ENTRIES, (name, tarfile.REGTYPE, 0o644, b"", 0)])
    with pytest.raises(
        IntegrityError, match=r"has a name that begins with \.wh\., which deletes other files in a layer"
    ):
        layer(tar)
