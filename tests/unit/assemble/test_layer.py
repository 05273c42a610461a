import gzip
import hashlib
import io
import locale
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.assemble.layer import LayerWriter, Slice, order, parents, write_trees
from envkit.assemble.wheel import Scheme, open_wheel
from envkit.ground.errors import IntegrityError
from envkit.image.spec import LayerDigest
from tests.support.wheels import wheel_entries, write_wheel

_PATH = st.lists(st.text("abc-é ", min_size=1, max_size=80), min_size=1, max_size=4).map("/".join)
_TREE = st.dictionaries(_PATH, st.tuples(st.binary(max_size=2000), st.booleans()), max_size=8)


def _write(fill: Callable[[LayerWriter], None], *, threaded: bool = False) -> tuple[bytes, LayerDigest]:
    sink = io.BytesIO()
    with LayerWriter(sink, threaded=threaded) as writer:
        fill(writer)
        digest = writer.close()
    return sink.getvalue(), digest


def _holds(blob: bytes, digest: LayerDigest) -> None:
    inner = gzip.decompress(blob)
    assert digest == LayerDigest(
        digest=hashlib.sha256(blob).hexdigest(), diff_id=hashlib.sha256(inner).hexdigest(),
        size=len(blob), tar_size=len(inner),
    )  # fmt: skip


@given(_TREE, st.booleans())
def test_a_reader_finds_every_file_as_it_was_given(tree: dict[str, tuple[bytes, bool]], threaded: bool) -> None:
    folders = parents(tree)
    files = {path: tree[path] for path in tree if path not in folders}

    def fill(writer: LayerWriter) -> None:
        for path in sorted(folders | files.keys(), key=order):
            if path in folders:
                writer.add_dir(path)
            else:
                writer.add_bytes(path, files[path][0], executable=files[path][1])

    blob, digest = _write(fill, threaded=threaded)
    _holds(blob, digest)
    with tarfile.open(fileobj=io.BytesIO(blob)) as archive:
        seen = {}
        for entry in archive:
            stream = archive.extractfile(entry)
            seen[entry.name] = (stream.read() if stream else None, entry.mode)
            assert (entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) == (315532800, 0, 0, "", "")
    expected: dict[str, tuple[bytes | None, int]] = dict.fromkeys(folders, (None, 0o755))
    expected |= {path: (data, 0o755 if executable else 0o644) for path, (data, executable) in files.items()}
    assert seen == expected


def test_files_from_streams_and_links() -> None:
    data = os.urandom(100) * 9000

    def fill(writer: LayerWriter) -> None:
        writer.add_file("a", io.BytesIO(data), size=len(data))
        writer.add_file("b", io.BytesIO(b""), size=0, executable=True)
        writer.add_symlink("c", "../a")

    blob, digest = _write(fill)
    _holds(blob, digest)
    with tarfile.open(fileobj=io.BytesIO(blob)) as archive:
        stream = archive.extractfile("a")
        assert stream is not None
        assert stream.read() == data
        assert archive.getmember("b").mode == 0o755
        assert archive.getmember("c").linkname == "../a"
    assert digest.size < len(data)


@pytest.mark.parametrize(("size", "held"), [(4, b"abc"), (2, b"abc"), (0, b"abc"), (3, b"")])
def test_a_stream_of_another_length_is_refused(size: int, held: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"^a has \d bytes, not \d$"):
        _write(lambda writer: writer.add_file("a", io.BytesIO(held), size=size))


def test_a_stored_entry_of_many_blocks(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "data").write_bytes(b"head" + data)
    with (tmp_path / "data").open("rb") as stream:
        part = Slice(
            descriptor=stream.fileno(), origin="data", offset=4, packed=len(data), size=len(data),
            crc=zlib.crc32(data), deflated=False,
        )  # fmt: skip
        blob, digest = _write(lambda writer: writer.add_parts("f", (b"A", part, b"", b"Z"), size=len(data) + 2))
    _holds(blob, digest)
    with tarfile.open(fileobj=io.BytesIO(blob)) as archive:
        inner = archive.extractfile("f")
        assert inner is not None
        assert inner.read() == b"A" + data + b"Z"


@pytest.mark.parametrize("second", ["a", "Z"])
def test_entries_out_of_order_are_a_fault_of_the_caller(second: str) -> None:
    def fill(writer: LayerWriter) -> None:
        writer.add_bytes("a", b"")
        writer.add_bytes(second, b"")

    with pytest.raises(ValueError, match="does not sort after"):
        _write(fill)


def test_what_a_folder_holds_follows_it_at_once() -> None:
    assert sorted(["a-b", "a/b", "a", "a.c", "a/b/c"], key=order) == ["a", "a/b", "a/b/c", "a-b", "a.c"]


def test_whoever_counts_can_end_the_writing() -> None:
    counted: list[int] = []

    class StopError(Exception):
        pass

    def count(size: int) -> None:
        counted.append(size)
        raise StopError

    with pytest.raises(StopError), LayerWriter(io.BytesIO(), threaded=True, on_bytes=count) as writer:
        writer.add_bytes("a", bytes(1 << 20))
    assert sum(counted) < 1 << 21


@pytest.fixture
def _elsewhere(tmp_path: Path) -> Iterator[None]:
    """Another time zone, permission mask, folder and language."""
    zone, mask, folder, language = os.environ.get("TZ"), os.umask(0o077), Path.cwd(), locale.setlocale(locale.LC_ALL)
    os.environ["TZ"] = "Asia/Kathmandu"
    time.tzset()
    os.chdir(tmp_path)
    locale.setlocale(locale.LC_ALL, "C")
    yield
    os.umask(mask)
    os.chdir(folder)
    locale.setlocale(locale.LC_ALL, language)
    if zone is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = zone
    time.tzset()


FILES = {
    "demo/__init__.py": b"x = 1\n",
    "demo/é/data.bin": bytes(range(256)) * 300,
    "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\nb = demo:b\na = demo:a\n",
    "demo-1.0.data/scripts/tool": b"#!python\n",
}
# Any change of these is a change of every image's digest, and needs a new WRITER_VERSION.
BLOB = "fce2466caf2922e0d38b6b656710330c19c94ee156a5dbc9ad72609af316b890"
TAR = "298a15f8d3f78f23952770c61defbc514988be068811de55f12cab8874685c8a"


def _demo(folder: Path, *, deflated: bool, threaded: bool = False) -> LayerDigest:
    path = write_wheel(folder, wheel_entries(FILES, deflated=deflated))
    with open_wheel(path, Scheme(python="3.11")) as tree:
        return _write(lambda writer: write_trees([tree], writer), threaded=threaded)[1]


@pytest.mark.parametrize("threaded", [False, True])
def test_the_bytes_of_a_layer_never_change(tmp_path: Path, *, threaded: bool) -> None:
    digest = _demo(tmp_path, deflated=False, threaded=threaded)
    assert (digest.digest, digest.diff_id) == (BLOB, TAR)
    assert _demo(tmp_path, deflated=True, threaded=threaded).diff_id == TAR


@pytest.mark.usefixtures("_elsewhere")
def test_the_bytes_of_a_layer_are_the_same_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "a rather longer path" / "ü"
    folder.mkdir(parents=True)
    digest = _demo(folder, deflated=False)
    assert (digest.digest, digest.diff_id) == (BLOB, TAR)
