"""Archives of the cache that are not what they should be add nothing, and say why."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from envkit.assemble.cache_archive import take
from envkit.ground.errors import IntegrityError, UsageError
from envkit.ground.progress import Silent

DATA = b"a package"
HEX = hashlib.sha256(DATA).hexdigest()


def archive(folder: Path, *members: tuple[str, bytes | None]) -> Path:
    """Write a tar; None as contents is a symbolic link to /etc/passwd."""
    path = folder / "need.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def test_files_are_added_once(tmp_path: Path) -> None:
    path = archive(tmp_path, ("README.txt", b"read me"), (f"downloads/{HEX}", DATA))
    assert take(path, tmp_path / "cache", Silent()) == (1, 0)
    assert (tmp_path / "cache/downloads" / HEX).read_bytes() == DATA
    assert take(path, tmp_path / "cache", Silent()) == (0, 1)
    assert not (tmp_path / "cache/README.txt").exists()


@pytest.mark.parametrize(
    "name",
    [f"downloads/{HEX}", f"blobs/{HEX}", f"layers/blobs/{HEX}", f"layers/layers/{'0' * 64}.json",
     f"built/{'0' * 64}/note.json", f"built/{'0' * 64}/a-1.0+cu126-cp311-none-any.whl"],
)  # fmt: skip
def test_archives_of_older_versions_are_read(name: str, tmp_path: Path) -> None:
    assert take(archive(tmp_path, (name, DATA)), tmp_path / "cache", Silent()) == (1, 0)
    assert (tmp_path / "cache" / name).read_bytes() == DATA


@pytest.mark.parametrize(
    "name",
    ["../escape", f"/downloads/{HEX}", f"downloads/../{HEX}", "downloads/short", f"runs/{HEX}", f"downloads/{HEX}/x",
     f"layers/layers/{HEX}", f"built/{HEX}/../x.whl", "settings.yaml", f"layers/{HEX}"],
)  # fmt: skip
def test_other_paths_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file of a cache"):
        take(archive(tmp_path, (name, DATA)), tmp_path / "cache", Silent())
    assert not list((tmp_path / "cache").rglob("*"))


def test_a_link_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file of a cache"):
        take(archive(tmp_path, (f"downloads/{HEX}", None)), tmp_path / "cache", Silent())


def test_bytes_that_are_not_those_of_the_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="has the SHA-256"):
        take(archive(tmp_path, (f"downloads/{HEX}", b"other")), tmp_path / "cache", Silent())
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("data", [b"", b"not a tar", b"\0" * 700], ids=["empty", "text", "zeros"])
def test_a_file_that_is_no_archive_is_said(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "need.tar").write_bytes(data)
    if data.startswith(b"\0"):  # an empty tar
        assert take(tmp_path / "need.tar", tmp_path / "cache", Silent()) == (0, 0)
        return
    with pytest.raises(UsageError, match="is not an archive of envkit"):
        take(tmp_path / "need.tar", tmp_path / "cache", Silent())


def test_a_cut_archive_leaves_no_half_file(tmp_path: Path) -> None:
    path = archive(tmp_path, (f"downloads/{HEX}", DATA * 1000))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises((UsageError, IntegrityError)):
        take(path, tmp_path / "cache", Silent())
    assert not [one for one in (tmp_path / "cache").rglob("*") if one.is_file()]


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        take(tmp_path / "none.tar", tmp_path / "cache", Silent())
