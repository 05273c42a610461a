"""Layers are written below their folder and nowhere else."""

import io
import stat
import tarfile
from pathlib import Path

import pytest

from envkit.ground.errors import IntegrityError
from envkit.image.tarstream import Source
from envkit.run.rootless.unpack import Contents, plain_path, unpack

FILE, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
Row = tuple[str, bytes, str, bytes, int]


def row(name: str, kind: bytes = FILE, target: str = "", content: bytes = b"", mode: int = 0o644) -> Row:
    return (name, kind, target, content, mode)


def write(folder: Path, *rows: Row) -> Contents:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target, content, mode in rows:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode, entry.size = kind, target, mode, len(content)
            entry.mtime = 1_700_000_000
            tar.addfile(entry, io.BytesIO(content))
    buffer.seek(0)
    folder.mkdir(exist_ok=True)
    return unpack(Source(buffer), folder, shift=None)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "tree"


def test_files_folders_and_links_are_written(tree: Path) -> None:
    write(
        tree,
        row("./", FOLDER, mode=0o700),
        row("./a", FOLDER, mode=0o750),
        row("./a/file", content=b"text", mode=0o755),
        row("a/absolute", LINK, "/etc/passwd"),
        row("a/up", LINK, "../../../etc"),
        row("same", HARD, "a/file"),
        row("not/listed/before", content=b"x"),
        row("a" * 200 + "/" + "b" * 200, content=b"long"),
    )
    assert (tree / "a/file").read_bytes() == b"text"
    assert stat.S_IMODE((tree / "a/file").stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0o750
    assert (tree / "a/file").stat().st_mtime == 1_700_000_000
    assert str((tree / "a/absolute").readlink()) == "/etc/passwd"
    assert (tree / "same").samefile(tree / "a/file")
    assert (tree / "not/listed/before").read_bytes() == b"x"
    assert (tree / ("a" * 200) / ("b" * 200)).read_bytes() == b"long"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((row("../out", content=b"x"),), "outside of its root: '../out'"),
        ((row("a/../../out", content=b"x"),), "outside of its root"),
        ((row("/out", content=b"x"),), "outside of its root: '/out'"),
        ((row("way", LINK, ".."), row("way/out", content=b"x")), "below 'way', which is not a folder"),
        ((row("way", LINK, "/"), row("way/out", FOLDER)), "below 'way', which is not a folder"),
        ((row("d", FOLDER), row("d/way", LINK, "../.."), row("d/way/out", LINK, "x")), "which is not a folder"),
        ((row("hard", HARD, "../secret"),), "outside of its root: '../secret'"),
        ((row("hard", HARD, "/etc/passwd"),), "outside of its root"),
        ((row("hard", HARD, "absent"),), "not a file in the layer"),
        ((row("d", FOLDER), row("hard", HARD, "d")), "not a file in the layer"),
        ((row("null", tarfile.CHRTYPE),), "a layer has a device at 'null'"),
        ((row("disk", tarfile.BLKTYPE),), "a layer has a device at 'disk'"),
        ((row("pipe", tarfile.FIFOTYPE),), "a layer has a pipe at 'pipe'"),
        ((row("d", FOLDER), row("d", LINK, "/etc")), "both a folder and a symbolic link at 'd'"),
        ((row("f", content=b"x"), row("f/below", content=b"x")), "below 'f'"),
        ((row(".wh."),), "removes a file without a name"),
        ((row("d/.wh..."),), "removes a file without a name"),
        ((row("x" * 300, content=b"x"),), "too long a name"),
        (tuple(row("/".join(["d"] * 3000), FOLDER) for _ in range(1)), "too long a name"),
    ],
)
def test_nothing_gets_out(tmp_path: Path, tree: Path, rows: tuple[Row, ...], said: str) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(IntegrityError, match=said.replace("(", r"\(")) as caught:
        write(tree, *rows)
    assert caught.value.exit_code == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "tree"]
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_link_is_replaced_and_never_written_through(tmp_path: Path, tree: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    write(tree, row("f", LINK, "../secret"), row("f", content=b"new"))
    assert (tree / "f").read_bytes() == b"new"
    assert not (tree / "f").is_symlink()
    assert (tmp_path / "secret").read_text() == "secret"


def test_set_user_id_bits_are_dropped(tree: Path) -> None:
    write(tree, row("su", content=b"x", mode=0o6755), row("d", FOLDER, mode=0o3777))
    assert stat.S_IMODE((tree / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "d").stat().st_mode) == 0o1777


def test_devices_below_dev_are_left_out(tree: Path) -> None:
    contents = write(tree, row("dev", FOLDER), row("dev/null", tarfile.CHRTYPE), row("dev/zero", HARD, "dev/null"))
    assert list((tree / "dev").iterdir()) == []
    assert contents == Contents(whiteouts=(), opaque=(), overlay=contents.overlay)


def test_what_is_removed_is_noted(tree: Path) -> None:
    contents = write(
        tree,
        row("etc", FOLDER),
        row("etc/.wh.passwd"),
        row(".wh.gone"),
        row("opt/.wh..wh..opq"),
        row("opt/new", content=b"x"),
        row(".wh..wh.plnk", FOLDER),
        row(".wh.back"),
        row("back", content=b"x"),
    )
    assert contents.whiteouts == ("etc/passwd", "gone")
    assert contents.opaque == ("opt",)
    assert (tree / "back").is_file()
    assert not (tree / ".wh.gone").exists()


@pytest.mark.parametrize(("name", "path"), [("./a//b/", "a/b"), (".", ""), ("a/./b", "a/b"), ("...", "...")])
def test_plain_paths(name: str, path: str) -> None:
    assert plain_path(name) == path
