"""What layers make together: one scanner for the SBOM, the doctor, the base and the differences of two images."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Callable, Iterator
from tarfile import TarInfo

import pytest

from envkit.ground.errors import IntegrityError
from envkit.image.tarstream import Kind, Source
from envkit.image.tree import IMPLIED, Changes, Interest, Tree, clean, scan
from tests.support.file_images import entry, packed

EVERYTHING = Interest(keeps=lambda _path: True, reads=lambda path, mode: path.endswith(".txt") or bool(mode & 0o4000))


def opened(*rows: tuple[TarInfo, bytes]) -> Callable[[], contextlib.AbstractContextManager[Source]]:
    data = packed(rows, compress=False).data

    @contextlib.contextmanager
    def tar() -> Iterator[Source]:
        yield Source(io.BytesIO(data))

    return tar


def changes(*rows: tuple[TarInfo, bytes], interest: Interest = EVERYTHING) -> Changes:
    return scan(opened(*rows), interest)


def tree(*layers: tuple[tuple[TarInfo, bytes], ...], implied: bool = False) -> Tree:
    made = Tree(implied=implied)
    for rows in layers:
        made.lay(changes(*rows))
    return made


def file(name: str, data: bytes = b"x", mode: int = 0o644) -> tuple[TarInfo, bytes]:
    return entry(name, mode=mode), data


def folder(name: str) -> tuple[TarInfo, bytes]:
    return entry(name, tarfile.DIRTYPE, mode=0o755), b""


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[TarInfo, bytes]:
    return entry(name, kind, target=target), b""


LOWER = (folder("a"), file("a/one.txt", b"1"), file("a/two.txt", b"2"), file("b/three.txt", b"3"))


@pytest.mark.parametrize(
    ("upper", "left"),
    [
        ((file("a/.wh.one.txt", b""),), {"a", "a/two.txt", "b/three.txt"}),
        ((file(".wh.a", b""),), {"b/three.txt"}),
        ((file("a/.wh..wh..opq", b""), file("a/new", b"")), {"a", "a/new", "b/three.txt"}),
        ((file(".wh..wh..opq", b""),), set()),
        ((link("a", "elsewhere"),), {"a", "b/three.txt"}),
        ((file("a", b"now a file"),), {"a", "b/three.txt"}),
        ((folder("a/one.txt"),), {"a", "a/one.txt", "a/two.txt", "b/three.txt"}),
        ((folder("a"),), {"a", "a/one.txt", "a/two.txt", "b/three.txt"}),
        # What a layer removes is what lies below it, never what it brings, in whichever order.
        ((file("a/one.txt", b"new"), file(".wh.a", b"")), {"a/one.txt", "b/three.txt"}),
        ((file(".wh..wh.plnk", b""), file(".wh..wh.aufs", b"")), {"a", "a/one.txt", "a/two.txt", "b/three.txt"}),
    ],
)
def test_upper_layers_hide_and_replace(upper: tuple[tuple[TarInfo, bytes], ...], left: set[str]) -> None:
    assert set(tree(LOWER, upper).nodes) == left


def test_a_folder_in_place_of_a_file_is_a_folder() -> None:
    assert tree(LOWER, (folder("a/one.txt"),)).nodes["a/one.txt"].kind is Kind.FOLDER


def test_a_hard_link_is_the_file_that_it_leads_to() -> None:
    found = tree((file("su", b"code", 0o4755), link("sg", "su", tarfile.LNKTYPE), link("also", "sg", tarfile.LNKTYPE)))
    assert found.nodes["sg"] == found.nodes["also"] == found.nodes["su"]
    assert found.nodes["sg"].value == b"code"


def test_the_bytes_of_a_hard_link_are_those_of_a_file_that_was_not_kept() -> None:
    narrow = Interest(keeps=lambda path: path.endswith(".txt"), reads=lambda path, _mode: path.endswith(".txt"))
    found = changes(file("pkgs/x", b"text"), link("a.txt", "pkgs/x", tarfile.LNKTYPE), interest=narrow)
    assert {path: one.value for path, one in found.nodes.items()} == {"a.txt": b"text"}
    with pytest.raises(IntegrityError, match=r"'a\.txt' to 'nowhere', which is not a file of the layer"):
        changes(link("a.txt", "nowhere", tarfile.LNKTYPE), interest=narrow)


def test_a_hard_link_may_lead_to_a_lower_layer() -> None:
    found = tree((file("usr/su", b"code", 0o755),), (link("usr/sg", "usr/su", tarfile.LNKTYPE),))
    assert found.nodes["usr/sg"].size == 4


def test_a_file_that_is_too_large_is_kept_without_its_bytes() -> None:
    small = Interest(keeps=lambda _path: True, reads=lambda _path, _mode: True, most=3)
    found = changes(file("a", b"1234"), file("b", b"123"), interest=small).nodes
    assert (found["a"].size, found["a"].value, found["b"].value) == (4, None, b"123")


def test_links_are_followed_and_folders_that_no_layer_lists_are_there() -> None:
    found = tree((link("bin", "usr/bin"), file("usr/bin/sh"), link("loop", "loop")), implied=True)
    assert found.find("/usr") == found.find("/") == IMPLIED
    assert found.find("/bin/../bin/sh") == found.nodes["usr/bin/sh"]
    assert found.find("/loop") is None


@pytest.mark.parametrize(
    ("name", "path"), [("./a//b/", "a/b"), ("../../etc/passwd", "etc/passwd"), ("/a", "a"), ("./", ""), ("a/..", "")]
)
def test_paths_stay_inside(name: str, path: str) -> None:
    assert clean(name) == path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".wh.usr/su", "below a name that begins with .wh."),
        (".wh.a/.wh.b", "below a name that begins with .wh."),
        ("a/.wh.", "removes a file without a name, below 'a'"),
        (".wh...", "removes a file without a name"),
    ],
)
def test_what_readers_would_understand_differently_is_refused(name: str, words: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        changes(file(name, b""))
    assert words in caught.value.message
