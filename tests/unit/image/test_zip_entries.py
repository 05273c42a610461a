import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import IntegrityError
from envkit.image.zip_entries import Entry, entries
from tests.support.wheels import Raw, raw_zip

A, B = Raw(name="a.py", data=b"print(1)\n" * 9), Raw(name="pkg/b.py", data=b"x = 1\n", deflated=False)


def _read(data: bytes, folder: Path) -> tuple[Entry, ...]:
    path = folder / "demo.whl"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return entries(descriptor, path.name)
    finally:
        os.close(descriptor)


def _names(found: Sequence[Entry]) -> list[str]:
    return [entry.name for entry in found]


@pytest.mark.parametrize(
    "data",
    [
        raw_zip([A, B]),
        raw_zip([A, B], comment=b"made by hand"),
        raw_zip([A, B], zip64=True),
        raw_zip([Raw(name=A.name, data=A.data, zip64=True), B]),
        raw_zip([Raw(name=A.name, data=A.data, zip64=True), B], zip64=True),
        raw_zip([Raw(name=A.name, data=A.data, described_after=True), B]),
        raw_zip([Raw(name=A.name, data=A.data, local_extra=b"\xfe\xca\x04\0abcd"), B]),
    ],
    ids=["plain", "comment", "zip64 end", "zip64 entry", "zip64", "sizes after the data", "extra field"],
)
def test_every_sound_form_is_read(data: bytes, tmp_path: Path) -> None:
    found = _read(data, tmp_path)
    assert [(entry.name, entry.size, entry.deflated) for entry in found] == [
        ("a.py", 81, True), ("pkg/b.py", 6, False)
    ]  # fmt: skip
    assert data[found[1].offset :][:6] == b"x = 1\n"


def test_names_beyond_ascii_and_executable_bits(tmp_path: Path) -> None:
    found = _read(
        raw_zip([Raw(name="bläh.py"), Raw(name="run", mode=0o100755), Raw(name="d/", deflated=False, mode=0o40755)]),
        tmp_path,
    )
    assert _names(found) == ["bläh.py", "run", "d/"]
    assert [entry.executable for entry in found] == [False, True, True]
    assert found[2].is_folder


def test_an_empty_archive_has_no_entries(tmp_path: Path) -> None:
    assert _read(raw_zip([]), tmp_path) == ()


HOSTILE = {
    "duplicate": ([A, A], "it contains 'a.py' twice"),
    "duplicate folder": ([Raw(name="d/", deflated=False), Raw(name="d/", deflated=False)], "it contains 'd' twice"),
    "file and folder": (
        [Raw(name="d"), Raw(name="d/", deflated=False)],
        "it contains 'd' twice|both a folder and a file",
    ),
    "file above a file": ([Raw(name="d"), Raw(name="d/e/f")], "'d' is both a folder and a file"),
    "traversal": ([Raw(name="../a")], "'../a' is not a valid path"),
    "traversal inside": ([Raw(name="a/../../b")], "is not a valid path"),
    "absolute": ([Raw(name="/etc/passwd")], "'/etc/passwd' is not a valid path"),
    "backslash": ([Raw(name="a\\..\\b")], "is not a valid path"),
    "empty part": ([Raw(name="a//b")], "is not a valid path"),
    "dot": ([Raw(name="./a")], "is not a valid path"),
    "empty name": ([Raw(name="")], "is not a valid path"),
    "nul": ([Raw(name="a\0.py")], "is not a valid path"),
    "newline": ([Raw(name="a\nb")], "is not a valid path"),
    "too long": ([Raw(name="a" * 256)], "has a name of more than 255 bytes"),
    "path too long": ([Raw(name="/".join(["d" * 200] * 20))], "has 4019 bytes; the limit is 3544"),
    "too deep": ([Raw(name="/".join("d" * 65))], "has 65 parts; the limit is 64"),
    "opaque whiteout": ([Raw(name=".wh..wh..opq")], r"begins with \.wh\., which deletes other files in a layer"),
    "whiteout": ([Raw(name="victim/.wh.secure.py")], r"'victim/\.wh\.secure\.py' has a name that begins with \.wh\."),
    "whiteout of a folder": ([Raw(name=".wh.victim")], r"begins with \.wh\."),
    "whiteout as a folder": ([Raw(name=".wh.victim/a")], r"begins with \.wh\."),
    "whiteout below data": ([Raw(name="a-1.data/data/.wh.lib")], r"begins with \.wh\."),
    "not utf-8": ([Raw(name=b"\xff\xfe", flags=0x800)], "is not UTF-8"),
    "symlink": ([Raw(name="link", data=b"/etc", mode=0o120777)], "'link' is a link or a special file"),
    "device": ([Raw(name="dev", mode=0o020644)], "'dev' is a link or a special file"),
    "folder with data": ([Raw(name="d/", data=b"x")], "'d/' is a folder with contents"),
    "folder mode on a file": ([Raw(name="d", mode=0o40755)], "'d' is both a folder and a file"),
    "encrypted": ([Raw(name="a", flags=1)], "'a' is encrypted"),
    "other method": ([Raw(name="a", method=12)], "'a' is compressed with method 12"),
    "stored length": (
        [Raw(name="a", data=b"abc", deflated=False, size=4)],
        "'a' is stored without compression, but has 3 bytes for 4",
    ),
    "bomb": ([Raw(name="a", data=b"abc", size=1 << 31)], "would inflate from 5 to 2147483648 bytes"),
    "two names": ([Raw(name="a", local_name=b"b")], "'a' has a local header that differs from the directory"),
    "unicode name": ([Raw(name="a", extra=b"\x75\x70\x01\0x")], "'a' has two names or two sizes"),
    "overlap": (
        [A, Raw(name="b.py", data=A.data, local_name=b"a.py", offset=0)],
        "'b.py' has a local header that differs from the directory",
    ),
    "elsewhere": ([A, Raw(name="b.py", offset=7)], "'b.py' is not at the position in the directory"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(name: str, tmp_path: Path) -> None:
    given_, message = HOSTILE[name]
    with pytest.raises(IntegrityError, match=message) as caught:
        _read(raw_zip(given_), tmp_path)
    assert caught.value.message.startswith("demo.whl is refused: ")
    assert caught.value.hint == "delete the file and fetch it again from its index"
    assert caught.value.exit_code == 10


def test_entries_on_top_of_each_other_are_refused(tmp_path: Path) -> None:
    inner = raw_zip([Raw(name="b.py", data=b"hidden", deflated=False)])[: 30 + 4 + 6]
    outer = Raw(name="a.py", data=inner, deflated=False)
    at = 30 + len("a.py")
    hidden = Raw(name="b.py", data=b"hidden", deflated=False, offset=at)
    with pytest.raises(IntegrityError, match=r"'b.py' overlaps 'a.py'"):
        _read(raw_zip([outer, hidden]), tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a zip file or is cut short"),
        (b"PK", "not a zip file or is cut short"),
        (b"x" * 100_000, "not a zip file or is cut short"),
        (raw_zip([A, B])[:-1], "not a zip file or is cut short"),
        (raw_zip([A, B])[:60], "not a zip file or is cut short"),
        (raw_zip([A, B]) + b"more", "not a zip file or is cut short"),
        (b"before" + raw_zip([A, B]), "its directory is not at the stated position"),
        (raw_zip([A, B], count=1), "its directory has more than the stated 1 entries"),
        (raw_zip([A, B], count=3), "its directory is cut short"),
        (raw_zip([A], comment=raw_zip([B])[-22:]), "two directories|not at the stated position"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=message):
        _read(data, tmp_path)


@given(st.data())
def test_any_damage_is_refused_or_harmless(draw: st.DataObject) -> None:
    good = raw_zip([A, Raw(name=B.name, data=B.data, zip64=True)], zip64=True)
    data = bytearray(good)
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    descriptor = os.memfd_create("zip")
    try:
        os.write(descriptor, data)
        for entry in entries(descriptor, "demo.whl"):
            assert 0 <= entry.offset <= len(data)
            assert ".." not in entry.name.split("/")
    except IntegrityError:
        return
    finally:
        os.close(descriptor)
