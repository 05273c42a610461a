"""Layers in the cache, and several of them as one tree."""

import errno
import os
import tarfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.ground.cache import UNPACKED
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError
from envkit.image.spec import LAYER_GZIP, Descriptor, Layer
from envkit.run.rootless.layered_tree import LayeredTree, Top, link_layers, make_top
from envkit.run.rootless.layers import Unpacked, UnpackedLayers
from envkit.run.rootless.owners import NO_ID, host_id, host_shift
from envkit.run.rootless.user import User, find_user
from tests.support.file_images import Packed, digest, entry, packed

FOLDER, LINK = tarfile.DIRTYPE, tarfile.SYMTYPE
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nann:x:7:8::/home/ann:/bin/sh\nbroken\n"


def stored(folder: Path, made: Packed) -> Layer:
    folder.mkdir(exist_ok=True)
    path = folder / digest(made.data).removeprefix("sha256:")
    path.write_bytes(made.data)
    return Layer(
        descriptor=Descriptor(media_type=LAYER_GZIP, digest=digest(made.data), size=len(made.data)),
        diff_id=made.diff_id,
        blob=path,
    )


def stack_of(tmp_path: Path, *layers: list[tuple[tarfile.TarInfo, bytes]]) -> LayeredTree:
    cache = UnpackedLayers(tmp_path / "cache")
    return LayeredTree(layers=tuple(take(cache, stored(tmp_path / "blobs", packed(rows))) for rows in layers))


def take(cache: UnpackedLayers, layer: Layer) -> Unpacked:
    return cache.take(layer, threading.Event())


@pytest.fixture
def stack(tmp_path: Path) -> LayeredTree:
    return stack_of(
        tmp_path,
        [
            (entry("etc", FOLDER, mode=0o711), b""),
            (entry("etc/passwd"), PASSWD),
            (entry("etc/group"), b"root:x:0:\nvideo:x:44:ann\n"),
            (entry("opt/old"), b"old"),
            (entry("gone/deep"), b"x"),
            (entry("tmp", LINK, target="/oldroot/etc"), b""),
            (entry("both"), b"lower"),
            (entry("swap/in"), b"x"),
        ],
        [
            (entry("opt/.wh..wh..opq"), b""),
            (entry("opt/new"), b"new"),
            (entry(".wh.gone"), b""),
            (entry("both"), b"upper"),
            (entry("swap", LINK, target="opt"), b""),
        ],
    )


def test_the_uppermost_shows(stack: LayeredTree) -> None:
    assert stack.text("both") == "upper"
    assert stack.text("opt/new") == "new"
    assert stack.find("opt/old") is None
    assert stack.find("gone/deep") is None
    assert stack.find("gone") is None
    assert stack.find("swap/in") is None
    assert stack.is_folder("etc")
    assert not stack.is_folder("swap")
    assert stack.text("tmp") == ""


def test_hard_links_make_the_same_tree(tmp_path: Path, stack: LayeredTree) -> None:
    make_top(tmp_path / "top", stack, Top(folders=("/tmp", "/swap/here"), files={"/etc/hosts": b"h"}))
    link_layers(stack.layers, tmp_path / "top", tmp_path / "merged")
    found = {path.relative_to(tmp_path / "merged").as_posix() for path in (tmp_path / "merged").rglob("*")}
    assert found == {
        "etc", "etc/passwd", "etc/group", "etc/hosts", "opt", "opt/new", "tmp", "both", "swap", "swap/here",
    }  # fmt: skip
    assert (tmp_path / "merged/both").read_text() == "upper"
    assert (tmp_path / "merged/both").samefile(stack.layers[1].tree / "both")


def test_another_file_system_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    made = stack_of(
        tmp_path,
        [
            (entry("a", mode=0o640), b"below"),
            (entry("stderr", LINK, target=str(tmp_path / "pipe")), b""),
            (entry("stdout", LINK, target=str(tmp_path / "other")), b""),
        ],
        [(entry("a", mode=0o600), b"above"), (entry("stdout"), b"no link any more")],
    )

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    (tmp_path / "top").mkdir()
    link_layers(made.layers, tmp_path / "top", tmp_path / "merged")
    assert (tmp_path / "merged/a").read_bytes() == b"above"
    assert (tmp_path / "merged/a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "merged/a").stat().st_uid == (made.layers[1].tree / "a").stat().st_uid
    assert (tmp_path / "merged/stderr").readlink() == tmp_path / "pipe"
    assert (tmp_path / "merged/stdout").read_bytes() == b"no link any more"
    assert not (tmp_path / "other").exists()


def test_what_the_user_of_a_run_could_write_is_copied_without_that_permission(tmp_path: Path) -> None:
    """Through a hard link, a run changed the cached layer, and so the image of every later run."""
    made = stack_of(
        tmp_path,
        [(entry("open", mode=0o666), b"text"), (entry("usual"), b""), (entry("drop", FOLDER, mode=0o1777), b"")],
    )
    (tmp_path / "top").mkdir()
    tree, merged = made.layers[0].tree, tmp_path / "merged"
    before = os.umask(0o077)
    try:
        link_layers(made.layers, tmp_path / "top", merged, keep_from=NO_ID)
    finally:
        os.umask(before)
    assert merged.stat().st_mode & 0o777 == 0o755
    assert (merged / "usual").samefile(tree / "usual")
    assert not (merged / "open").samefile(tree / "open")
    assert (merged / "open").read_bytes() == b"text"
    assert [(merged / name).stat().st_mode & 0o777 for name in ("open", "drop")] == [0o644, 0o755]
    assert (tree / "open").stat().st_mode & 0o777 == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_the_user_of_a_run_reads_its_own_files_and_owns_none(tmp_path: Path) -> None:
    """An image's own user without a range of shifted IDs may be the nobody that its run is."""
    rows = []
    for name, mode, uid, gid in (("own", 0o600, 7, 0), ("program", 0o700, 7, 0), ("group's", 0o660, 0, 7)):
        row = entry(name, mode=mode)
        row.uid, row.gid = uid, gid
        rows.append((row, b"text"))
    made = stack_of(tmp_path, rows)
    (tmp_path / "top").mkdir()
    nobody = host_id(7, host_shift())
    link_layers(made.layers, tmp_path / "top", tmp_path / "merged", keep_from=nobody)
    found = {path.name: path.stat() for path in (tmp_path / "merged").iterdir()}
    assert {name: (status.st_uid, status.st_gid, status.st_mode & 0o777) for name, status in found.items()} == {
        "own": (host_shift(), nobody, 0o640),
        "program": (host_shift(), nobody, 0o750),
        "group's": (host_shift(), nobody, 0o640),
    }
    assert not any((tmp_path / "merged" / name).samefile(made.layers[0].tree / name) for name in found)


def test_a_mount_point_is_never_a_link(tmp_path: Path, stack: LayeredTree) -> None:
    top = tmp_path / "top"
    make_top(top, stack, Top(folders=("/tmp", "/swap/x"), files={"/gone/f": b"1"}, links={"/etc/l": "/opt/new"}))
    assert not (top / "tmp").is_symlink()
    assert (top / "tmp").is_dir()
    assert (top / "swap/x").is_dir()
    assert (top / "gone/f").read_bytes() == b"1"
    assert str((top / "etc/l").readlink()) == "/opt/new"
    assert (top / "etc").stat().st_mode & 0o777 == 0o711


@pytest.mark.parametrize("path", ["/../../out", "../../out", "/a/../../../out"])
def test_a_folder_that_an_image_names_is_never_made_outside(tmp_path: Path, stack: LayeredTree, path: str) -> None:
    """An image whose WorkingDir was /../../x made folders on the machine that ran it."""
    top = tmp_path / "runs/name/top"
    top.parent.mkdir(parents=True)
    make_top(top, stack, Top(folders=(path,), files={f"{path}/f": b"1"}, links={f"{path}/l": "f"}))
    assert (top / "out").is_dir()
    assert [one.name for one in top.parent.iterdir()] == ["top"]
    assert not (tmp_path / "runs/out").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", User(uid=0, gid=0, home="/root")),
        ("ann", User(uid=7, gid=8, home="/home/ann")),
        ("7", User(uid=7, gid=8, home="/home/ann")),
        ("ann:video", User(uid=7, gid=44, home="/home/ann")),
        ("54321:54321", User(uid=54321, gid=54321, home="/")),
        ("99", User(uid=99, gid=0, home="/")),
    ],
)
def test_users_are_looked_up_in_the_image(stack: LayeredTree, text: str, expected: User) -> None:
    assert find_user(text, stack) == expected


@pytest.mark.parametrize("text", ["nobody-here", "ann:nogroup", "-1", "99999999999", "٣"])
def test_unknown_users_are_named(stack: LayeredTree, text: str) -> None:
    with pytest.raises(EngineError, match=f"the image has no user '{text}'"):
        find_user(text, stack)


def test_a_user_of_thousands_of_digits_is_none(tmp_path: Path) -> None:
    """Python raised ValueError, which ended in a traceback."""
    named = stack_of(tmp_path, [(entry("etc/passwd"), f"ann:x:{'9' * 5000}:1::/:/bin/sh\n".encode())])
    for text in ("9" * 5000, "1:" + "9" * 5000, "ann"):
        with pytest.raises(EngineError, match="the image has no user"):
            find_user(text, named)


def test_a_home_with_a_zero_byte_is_the_root(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, [(entry("etc/passwd"), b"root:x:0:0::/ro\0ot:/bin/sh\n")])
    assert find_user("", stack).home == "/"


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    rows = [(entry("a/file"), b"text"), (entry("a/link", LINK, target="file"), b"")]
    return stored(tmp_path / "blobs", packed(rows))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda tree: (tree / "a/file").write_bytes(b"te"),
    "touched": lambda tree: os.utime(tree / "a/file", (1, 1)),
    "gone": lambda tree: (tree / "a/file").unlink(),
    "more": lambda tree: (tree / "a/more").write_bytes(b""),
    "mode": lambda tree: (tree / "a/file").chmod(0o600),
    "link": lambda tree: (tree / "a/link").rename(tree / "a/moved"),
    "note": lambda tree: (tree.parent / "note.json").write_text("{"),
    "no note": lambda tree: (tree.parent / "note.json").unlink(),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_layer_is_unpacked_anew(tmp_path: Path, layer: Layer, damage: str) -> None:
    tree = take(UnpackedLayers(tmp_path / "c"), layer).tree
    assert UnpackedLayers(tmp_path / "c").find(layer.diff_id) is not None
    DAMAGES[damage](tree)
    assert UnpackedLayers(tmp_path / "c").find(layer.diff_id) is None
    again = take(UnpackedLayers(tmp_path / "c"), layer).tree
    assert sorted(path.name for path in again.rglob("*")) == ["a", "file", "link"]
    assert (again / "a/file").read_bytes() == b"text"
    assert [path.name for path in (tmp_path / "c/layers").iterdir()] == [layer.diff_id.removeprefix("sha256:")]


def test_nothing_is_left_of_a_layer_that_is_not_what_it_should_be(tmp_path: Path, layer: Layer) -> None:
    wrong = replace(layer, diff_id="sha256:" + "0" * 64)
    with pytest.raises(IntegrityError, match="unpacks to"):
        take(UnpackedLayers(tmp_path / "c"), wrong)
    assert list((tmp_path / "c/layers").iterdir()) == []


def test_unpacking_can_be_given_up(tmp_path: Path, layer: Layer) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(EngineError, match="was stopped"):
        UnpackedLayers(tmp_path / "c").take(layer, stop)
    assert list((tmp_path / "c/layers").iterdir()) == []


def test_what_the_dead_left_is_taken_over_or_swept(tmp_path: Path, layer: Layer) -> None:
    left = tmp_path / "c/layers" / f".{layer.diff_id.removeprefix('sha256:')}"
    (left / "tree/a").mkdir(parents=True)
    (left / "tree/a/file").write_text("half")
    other = tmp_path / "c/layers/.0123"
    other.mkdir()
    cache = UnpackedLayers(tmp_path / "c")
    assert (take(cache, layer).tree / "a/file").read_bytes() == b"text"
    UNPACKED.sweep(tmp_path / "c")
    assert not left.exists()
    assert not other.exists()


def test_many_at_once_get_one_layer(tmp_path: Path, layer: Layer) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(take(UnpackedLayers(tmp_path / "c"), layer).tree))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {tmp_path / "c/layers" / layer.diff_id.removeprefix("sha256:") / "tree"}
    assert len(found) == 8


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, layer: Layer) -> None:
    (tmp_path / "c").write_text("a file")
    with pytest.raises(EnvironmentProblem, match=r"cannot be unpacked below .*GB free") as caught:
        take(UnpackedLayers(tmp_path / "c"), layer)
    assert "XDG_CACHE_HOME" in str(caught.value.hint)
