import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.engines import context
from envkit.engines.context import pack, unpack
from envkit.ground.errors import UsageError

NAMES = st.from_regex(r"[a-z0-9._][a-z0-9._-]{0,8}(?:/[a-z0-9][a-z0-9._-]{0,8}){0,2}", fullmatch=True).filter(
    lambda name: ".." not in name.split("/") and "." not in name.split("/")
)


def entries(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {entry.name: entry for entry in archive.getmembers()}


@pytest.mark.requirement("R37")
def test_the_bytes_depend_on_names_and_contents_alone() -> None:
    files: dict[str, str | bytes] = {"b/x": "one", "Dockerfile": b"FROM scratch\n", "a": "two"}
    assert pack(files) == pack(dict(reversed(list(files.items()))))
    assert pack(files) != pack(files | {"a": "three"})


@pytest.mark.requirement("R37")
def test_entries_are_sorted_dated_owned_and_moded() -> None:
    found = entries(pack({"b/x": "one", "a": "two"}, executable=frozenset({"a"})))
    assert list(found) == ["a", "b", "b/x"]
    assert {(entry.uid, entry.gid, entry.mtime, entry.uname, entry.gname) for entry in found.values()} == {
        (0, 0, 0, "", "")
    }
    assert [found[name].mode for name in found] == [0o755, 0o755, 0o644]
    assert found["b"].isdir()


@given(st.dictionaries(NAMES, st.binary(max_size=50), max_size=6))
def test_what_goes_in_comes_out(files: dict[str, bytes]) -> None:
    parents = {"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 1)}
    files = {name: data for name, data in files.items() if name not in parents}
    data = pack(files)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive.getmembers() if entry.isfile()}
        assert {name: file.read() for name, file in found.items() if file} == files


@pytest.mark.requirement("R11")
@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a//b", "", "a\nb", "-x", "a\\b", "a/"])
def test_names_stay_inside(name: str) -> None:
    with pytest.raises(UsageError, match="is not a file name for a build context"):
        pack({name: ""})


@pytest.mark.requirement("R37")
def test_the_context_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LIMIT_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="the build context has 2 MiB, more than 1 MiB"):
        pack({"big": b"x" * (2 << 20)})


def test_a_context_is_the_same_as_a_folder(tmp_path: Path) -> None:
    unpack(pack({"sub/deep/x": "one", "a": "two"}, executable=frozenset({"a"})), tmp_path / "new")
    found = {str(path.relative_to(tmp_path / "new")): path.stat() for path in (tmp_path / "new").rglob("*")}
    assert {name: (stat.st_mode & 0o777, stat.st_mtime) for name, stat in found.items()} == {
        "a": (0o755, 0),
        "sub": (0o755, 0),
        "sub/deep": (0o755, 0),
        "sub/deep/x": (0o644, 0),
    }
    assert (tmp_path / "new" / "sub" / "deep" / "x").read_text() == "one"
