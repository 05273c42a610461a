"""Archives of conda packages: what is written to disk, and what is refused before anything follows it."""

import bz2
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envkit.assemble import conda_unpack
from envkit.ground.errors import IntegrityError
from envkit.image import zstd
from tests.support.conda_archives import STUFF, Content, Recipe, write_archive

ENDINGS = pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])


def unpacked(folder: Path, contents: Sequence[Content], ending: str, **options: int) -> Path:
    archive = write_archive(folder / "channel", Recipe("odd", contents), ending).archive
    conda_unpack.unpack(archive, folder / "out", **options)
    return folder / "out"


def raw(folder: Path, members: Sequence[tuple[tarfile.TarInfo, bytes]], paths: object) -> Path:
    """A package with members that no recipe makes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        listed = json.dumps(paths).encode()
        for member, data in ((tarfile.TarInfo("info/paths.json"), listed), *members):
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    archive = folder / "odd-1.0-0.tar.bz2"
    archive.write_bytes(bz2.compress(buffer.getvalue()))
    return archive


@ENDINGS
def test_files_links_and_modes_are_those_of_the_archive(tmp_path: Path, ending: str) -> None:
    out = unpacked(tmp_path, STUFF.contents, ending)
    assert (out / "lib/libstuff.so").readlink() == Path("libstuff.so.1")
    assert (out / "share/pyc/__pycache__/own.pyc").read_bytes() == b"bytecode"
    assert (out / "bin/stuff").stat().st_mode & 0o7777 == 0o755  # set-user-ID was asked for
    assert (out / "share/closed").stat().st_mode & 0o777 == 0o400
    assert (out / "share/empty").is_dir()
    assert json.loads((out / "info/index.json").read_bytes())["name"] == "odd"


@ENDINGS
@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_file_with_other_bytes_than_the_list_says_is_refused(tmp_path: Path, ending: str, size: int) -> None:
    data = b"x" * size
    found = unpacked(tmp_path / "same", [Content("share/a", data)], ending)
    assert (found / "share/a").read_bytes() == data
    with pytest.raises(IntegrityError, match=r"^'share/a' differs from .*: its SHA-256 is"):
        unpacked(tmp_path / "other", [Content("share/a", data, row={"sha256": "0" * 64})], ending)


@ENDINGS
def test_what_an_archive_inflates_to_is_bounded(tmp_path: Path, ending: str) -> None:
    contents = [Content("share/zeros", bytes(4 << 20))]
    with pytest.raises(IntegrityError, match=r"^it inflates to more than 1048576 bytes$"):
        unpacked(tmp_path, contents, ending, most=1 << 20)
    assert sum(one.stat().st_size for one in tmp_path.joinpath("out").rglob("*") if one.is_file()) < 2 << 20
    assert (unpacked(tmp_path / "enough", contents, ending, most=5 << 20) / "share/zeros").stat().st_size == 4 << 20


@ENDINGS
def test_a_document_is_bounded(tmp_path: Path, ending: str) -> None:
    archive = write_archive(
        tmp_path, Recipe("odd", [Content("share/" + "x" * 200, b"", row={"pad": "x" * (33 << 20)})]), ending
    ).archive
    for read in (
        lambda: conda_unpack.documents(archive, (conda_unpack.PATHS,)),
        lambda: conda_unpack.unpack(archive, tmp_path / "out"),
    ):
        with pytest.raises(IntegrityError, match=r"^info/paths\.json has \d+ bytes, more than 33554432$"):
            read()


@ENDINGS
def test_links_beside_the_documents_are_not_made(tmp_path: Path, ending: str) -> None:
    out = unpacked(tmp_path, [Content("info/recipe/parent", target="/etc", row=None)], ending)
    assert not (out / "info/recipe/parent").is_symlink()


def test_a_document_that_is_a_link_is_missing(tmp_path: Path) -> None:
    archive = write_archive(
        tmp_path, Recipe("odd", [Content("info/extra.json", target="/etc/passwd", row=None)])
    ).archive
    assert conda_unpack.documents(archive, ("info/extra.json",)) == {}


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        ([Content("share/.wh.a", b"")], r"begins with \.wh\."),
        ([Content("a/" * 64 + "b", b"")], "has 65 parts"),
        ([Content("share/x", b""), Content("share/x/y", b"")], r"'share/x' is a file and a folder"),
        ([Content("share/x/y", b""), Content("share/x", b"")], r"it contains 'share/x' twice"),
        ([Content("share/l", target="/etc"), Content("share/l/y", b"", row=None)], r"'share/l' is a link and a folder"),
        ([Content("share/l/y", b"", row=None), Content("share/l", target="/etc")], r"it contains 'share/l' twice"),
        ([Content("a", target="/etc"), Content("a/b", target="x")], r"'a' is a link and a folder"),
        (
            [Content("share/l", target="/etc/passwd", row=None)],
            r"'share/l' is a link to '/etc/passwd', which info/paths",
        ),
        ([Content("share/f", None, kind="softlink")], r"'share/f' is listed as a link, but is a folder"),
        ([Content("share/f", b"", kind="directory")], r"'share/f' is listed as a folder, but is a file"),
        ([Content("share/f", b"", kind="clone")], r"'share/f' has the unknown type 'clone'"),
        ([Content("share/f", b"", row={"size_in_bytes": "0"})], "has an invalid size or hash"),
        ([Content("share/f", b"", row={"_path": 7})], r"info/paths\.json is not a list of paths"),
    ],
)
def test_what_no_package_may_hold_is_refused(tmp_path: Path, contents: list[Content], error: str) -> None:
    with pytest.raises(IntegrityError, match=error):
        unpacked(tmp_path, contents, ".tar.bz2")
    assert not [one for one in (tmp_path / "out").rglob("*") if one.is_symlink()]


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, target
    return found


@pytest.mark.parametrize(
    ("one", "error"),
    [
        (member("dev/null", tarfile.CHRTYPE), "'dev/null' is a device"),
        (member("pipe", tarfile.FIFOTYPE), "'pipe' is a pipe"),
        (
            member("hard", tarfile.LNKTYPE, "/etc/shadow"),
            "'hard' is a hard link to '/etc/shadow', which is not an earlier file",
        ),
        (member("hard", tarfile.LNKTYPE, "../x"), r"'hard' is a hard link to '\.\./x', which is not an earlier file"),
        (member("../up", tarfile.REGTYPE), "'../up' is not a valid path"),
        (member("/abs", tarfile.REGTYPE), "'/abs' is not a valid path"),
        (member("soft", tarfile.SYMTYPE, ""), "'soft' is a link without a valid target"),
    ],
)
def test_an_entry_that_no_package_has_is_refused(tmp_path: Path, one: tarfile.TarInfo, error: str) -> None:
    with pytest.raises(IntegrityError, match=error):
        conda_unpack.unpack(raw(tmp_path, [(one, b"")], {"paths": []}), tmp_path / "out")
    assert {path.name for path in tmp_path.rglob("*") if not path.is_dir()} <= {"odd-1.0-0.tar.bz2", "paths.json"}


def test_a_hard_link_is_the_file_that_it_names(tmp_path: Path) -> None:
    first = tarfile.TarInfo("./lib/a")
    second = member("lib/b", tarfile.LNKTYPE, "./lib/a")
    rows = [{"_path": f"lib/{name}", "path_type": "hardlink", "size_in_bytes": 3} for name in "ab"]
    conda_unpack.unpack(raw(tmp_path, [(first, b"abc"), (second, b"")], {"paths": rows}), tmp_path / "out")
    assert (tmp_path / "out/lib/b").read_bytes() == b"abc"


@pytest.mark.parametrize("paths", [[], {}, {"paths": {}}, {"paths": [1]}, {"paths": None}])
def test_a_list_of_paths_that_is_none(tmp_path: Path, paths: object) -> None:
    with pytest.raises(IntegrityError, match=r"^info/paths\.json is not a list of paths$"):
        conda_unpack.unpack(raw(tmp_path, [], paths), tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["pkg-a.tar.zst"], "it contains 1 tar "),
        (["pkg-a.tar.zst", "info-a.tar.zst", "info-b.tar.zst"], "it contains 3 tars"),
        (["pkg-a.tar.zst", "info-a.tar.zst"], r"^it has no info/paths\.json$"),
    ],
)
def test_an_archive_has_one_tar_of_each_kind(tmp_path: Path, names: Sequence[str], error: str) -> None:
    archive = tmp_path / "a-1.0-0.conda"
    empty: Mapping[str, bytes] = dict.fromkeys(names, zstd.compress(bytes(1024), 1))
    with zipfile.ZipFile(archive, "w") as packed:
        for name, data in empty.items():
            packed.writestr(name, data)
    with pytest.raises(IntegrityError, match=error):
        conda_unpack.unpack(archive, tmp_path / "out")
