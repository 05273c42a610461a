import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from envkit.assemble.layer import LayerWriter
from envkit.assemble.layer_pool import layer_key
from envkit.assemble.wheel import Scheme
from envkit.engines import layer_cache
from envkit.engines.layer_cache import Cached, LayerCache, _check
from envkit.ground.cache import LAYERS, NOTES, UNFINISHED_LAYERS, sealed
from envkit.ground.errors import EngineError, EnvironmentProblem
from envkit.image.spec import LayerDigest

CONTENTS = b"a layer's bytes" * 5000
KEY = layer_key(("00" * 32,), Scheme(python="3.11"))
LAYER = LayerDigest(digest=hashlib.sha256(CONTENTS).hexdigest(), diff_id="ab" * 32, size=len(CONTENTS), tar_size=123)


def _write(sink: IO[bytes]) -> LayerDigest:
    sink.write(CONTENTS)
    return LAYER


def _filled(folder: Path) -> LayerCache:
    cache = LayerCache(folder)
    assert cache.get(KEY) is None
    cache.make(KEY, _write)
    return cache


def _blob(folder: Path) -> Path:
    return LAYERS.at(folder, LAYER.digest)


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_what_was_made_is_found_by_another_process(tmp_path: Path) -> None:
    _filled(tmp_path)
    found = LayerCache(tmp_path).get(KEY)
    assert found is not None
    assert found.layer == LAYER
    assert found.path.read_bytes() == CONTENTS
    assert _files(tmp_path) == {f"layers/blobs/{LAYER.digest}", f"layers/layers/{KEY}.json"}


def test_the_key_knows_everything_that_shapes_a_layer() -> None:
    scheme = Scheme(python="3.11")
    keys = {
        layer_key(("a", "b"), scheme),
        layer_key(("b", "a"), scheme),
        layer_key(("ab",), scheme),
        layer_key(("a", "b"), Scheme(python="3.12")),
        layer_key(("a", "b"), Scheme(python="3.11", prefix="/srv")),
        layer_key(("a", "b"), Scheme(python="3.11", headers="include")),
        layer_key(("a", "b"), scheme, compression="zstd"),
    }
    assert len(keys) == 7
    assert layer_key(("a", "b"), scheme) == "8088a37b5d552b5642498d0d70c42af7bdf224854fcc632fd56d17fbab2ad042"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _flip_with_the_old_time(path: Path) -> None:
    status = path.stat()
    _flip(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _link(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    path.rename(target)
    path.symlink_to(target)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    (path / "below").mkdir(parents=True)
    (path / "below" / "x").touch()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": _truncate,
    "empty": lambda path: os.truncate(path, 0),
    "flipped": _flip,
    "flipped, same time": _flip_with_the_old_time,
    "longer": _lengthen,
    "missing": Path.unlink,
    "link": _link,
    "pipe": _pipe,
    "folder": _folder,
}


@pytest.mark.parametrize("which", ["blob", "note"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_never_used_and_made_anew(tmp_path: Path, which: str, damage: str) -> None:
    cache = _filled(tmp_path)
    DAMAGE[damage](_blob(tmp_path) if which == "blob" else NOTES.at(tmp_path, f"{KEY}.json"))
    assert cache.get(KEY) is None
    assert cache.make(KEY, _write).path.read_bytes() == CONTENTS
    healed = cache.get(KEY)
    assert healed is not None
    assert healed.layer == LAYER


def test_a_note_of_an_older_cache_is_read(tmp_path: Path) -> None:
    """The notes of built layers had the schema id of unpacked layers."""
    _filled(tmp_path)
    note = NOTES.at(tmp_path, f"{KEY}.json")
    tree = json.loads(note.read_text())
    assert tree["schema"] == "envkit.built-layer/1"
    old = {name: value for name, value in tree.items() if name != "check"} | {"schema": "envkit.layer/1"}
    note.write_bytes(sealed(old))
    found = LayerCache(tmp_path).get(KEY)
    assert found is not None
    assert found.layer == LAYER


@pytest.mark.parametrize("which", ["blob", "note"])
def test_a_folder_in_its_place_does_not_hinder_a_build_that_looks_for_nothing(tmp_path: Path, which: str) -> None:
    cache = _filled(tmp_path)
    _folder(_blob(tmp_path) if which == "blob" else NOTES.at(tmp_path, f"{KEY}.json"))
    assert cache.make(KEY, _write).path.read_bytes() == CONTENTS
    assert cache.get(KEY) is not None


def test_a_note_under_another_key_is_not_believed(tmp_path: Path) -> None:
    cache = _filled(tmp_path)
    other = layer_key(("11" * 32,), Scheme(python="3.11"))
    shutil.copy(NOTES.at(tmp_path, f"{KEY}.json"), NOTES.at(tmp_path, f"{other}.json"))
    assert cache.get(other) is None


def test_a_touched_blob_is_hashed_again_and_kept(tmp_path: Path) -> None:
    cache = _filled(tmp_path)
    os.utime(_blob(tmp_path), (1, 1))
    assert cache.get(KEY) is not None
    assert cache.get(KEY) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    cache = _filled(tmp_path)
    os.chown(_blob(tmp_path), 12345, 12345)
    assert cache.get(KEY) is None


def test_a_failed_writer_leaves_nothing(tmp_path: Path) -> None:
    def fail(sink: IO[bytes]) -> LayerDigest:
        sink.write(CONTENTS)
        raise KeyboardInterrupt

    cache = LayerCache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.make(KEY, fail)
    assert _files(tmp_path) == set()


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    def fail(sink: IO[bytes]) -> LayerDigest:
        sink.write(CONTENTS)
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = LayerCache(tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"disk full on .*") as caught:
        cache.make(KEY, fail)
    assert caught.value.exit_code == 9
    assert caught.value.hint == "envkit cache prune, or set XDG_CACHE_HOME to a larger disk"
    assert _files(tmp_path) == set()


def test_two_writers_at_once_both_succeed(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10)
    found: list[bytes] = []

    def write(sink: IO[bytes]) -> LayerDigest:
        sink.write(CONTENTS)
        both.wait()
        return LAYER

    def fill() -> None:
        found.append(LayerCache(tmp_path).make(KEY, write).path.read_bytes())

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENTS, CONTENTS]
    assert LayerCache(tmp_path).get(KEY) is not None
    assert _files(tmp_path) == {f"layers/blobs/{LAYER.digest}", f"layers/layers/{KEY}.json"}


def test_leftovers_of_dead_writers_go_and_living_ones_stay(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path)
    (UNFINISHED_LAYERS.at(tmp_path, "dead")).write_bytes(b"x")
    os.utime(UNFINISHED_LAYERS.at(tmp_path, "dead"), (1, 1))
    (UNFINISHED_LAYERS.at(tmp_path, "young")).write_bytes(b"x")

    def write(sink: IO[bytes]) -> LayerDigest:
        os.utime(sink.fileno(), (1, 1))
        LayerCache(tmp_path)
        return _write(sink)

    cache.make(KEY, write)
    assert _files(UNFINISHED_LAYERS.at(tmp_path)) == {"young"}
    assert time.time() - (UNFINISHED_LAYERS.at(tmp_path, "young")).stat().st_mtime < 60


def _hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests of the blobs that are read from here on."""
    seen: list[str] = []

    def check(stream: IO[bytes], layer: LayerDigest) -> None:
        seen.append(layer.digest)
        _check(stream, layer)

    monkeypatch.setattr(layer_cache, "_check", check)
    return seen


def test_a_blob_is_hashed_once_after_its_names_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image got a hard link, or its layout went: the blob's stat differs, as it does after damage."""
    _filled(tmp_path / "cache")
    hashed, image = _hashed(monkeypatch), tmp_path / "image"
    image.hardlink_to(_blob(tmp_path / "cache"))
    for _ in range(2):
        assert LayerCache(tmp_path / "cache").get(KEY) is not None
    assert hashed == [LAYER.digest]
    image.unlink()
    for _ in range(2):
        assert LayerCache(tmp_path / "cache").get(KEY) is not None
    assert hashed == [LAYER.digest] * 2


def test_a_byte_flipped_through_a_name_in_an_image_is_found(tmp_path: Path) -> None:
    _filled(tmp_path / "cache")
    (tmp_path / "image").hardlink_to(_blob(tmp_path / "cache"))
    _flip_with_the_old_time(tmp_path / "image")
    assert LayerCache(tmp_path / "cache").get(KEY) is None


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_blob_has_the_mode_that_the_user_gives_every_file(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        _filled(tmp_path)
    finally:
        os.umask(before)
    assert _blob(tmp_path).stat().st_mode & 0o777 == mode


@pytest.mark.requirement("R40")
@pytest.mark.parametrize("part", ["note", "blob"])
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("looked", [True, False], ids=["found", "made again"])
def test_a_folder_in_place_of_a_file_is_removed(tmp_path: Path, part: str, filled: bool, looked: bool) -> None:
    """Every build ended with exit code 9 until somebody removed it."""
    _filled(tmp_path)
    (path,) = {"note": NOTES, "blob": LAYERS}[part].at(tmp_path).iterdir()
    path.unlink()
    path.mkdir()
    if filled:
        (path / "file").touch()
    if looked:
        assert LayerCache(tmp_path).get(KEY) is None
    assert _filled(tmp_path).get(KEY) is not None


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentProblem, match=r"file/layers cannot be used: Not a directory"):
        LayerCache(tmp_path / "file")


def _one_file(sink: IO[bytes]) -> LayerDigest:
    with LayerWriter(sink) as writer:
        writer.add_bytes("file", b"contents")
        return writer.close()


def test_made_and_kept_layers_are_offered(tmp_path: Path) -> None:
    offered: list[Cached] = []
    cache = LayerCache(tmp_path, offered.append)
    assert cache.get(KEY) is None
    assert not offered
    made = cache.make(KEY, _one_file)
    assert cache.get(KEY) == made
    assert offered == [made, made]
    assert made.path.stat().st_size == made.layer.size


def test_a_failed_push_ends_the_making(tmp_path: Path) -> None:
    def refuse(_: Cached) -> None:
        raise EngineError("the registry refuses")

    with pytest.raises(EngineError, match="the registry refuses"):
        LayerCache(tmp_path, refuse).make(KEY, _one_file)
