import io
import json
import os
import threading
from pathlib import Path

import pytest

from envkit.assemble.layer import LayerWriter
from envkit.assemble.layer_pool import Receiver
from envkit.ground.errors import IntegrityError
from envkit.image import blobs, deflate
from envkit.image.layout import read_layout
from envkit.image.name import InLayout
from envkit.image.spec import LayerDigest, layer
from envkit.run.rootless.layers import UnpackedLayers, _locked, _unpack
from tests.support.file_images import entry, packed, write_layout


def test_a_layer_that_another_run_unpacked_and_still_uses_is_not_waited_for(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [packed([(entry("srv/a"), b"a")])])
    (layer,) = read_layout(InLayout(path=tmp_path / "layout")).layers
    folder = tmp_path / "cache" / "layers"
    folder.mkdir(parents=True)
    name = layer.diff_id.removeprefix("sha256:")
    first, second, stop, found = (
        UnpackedLayers(tmp_path / "cache"),
        UnpackedLayers(tmp_path / "cache"),
        threading.Event(),
        [],
    )
    waiting = threading.Thread(target=lambda: found.append(second.take(layer, stop)), daemon=True)
    with _locked(folder / f".{name}", folder / name) as staging:
        assert staging is not None
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        _unpack(layer, staging, stop)
        staging.rename(folder / name)
    # From here on the first run holds what it unpacked.
    assert first.find(layer.diff_id) is not None
    waiting.join(10)
    assert [one.diff_id for one in found] == [layer.diff_id]


def test_a_hostile_layer_is_refused_with_a_next_step(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [packed([(entry("../outside"), b"a")])])
    (layer,) = read_layout(InLayout(path=tmp_path / "layout")).layers
    with pytest.raises(
        IntegrityError, match=rf"^layer {layer.diff_id}: a layer has an entry outside of its root"
    ) as caught:
        UnpackedLayers(tmp_path / "cache").take(layer, threading.Event())
    assert caught.value.hint == "get the image from its source again"


def test_what_a_layer_inflates_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_layout(tmp_path / "layout", [packed([(entry("srv/zeros"), bytes(8 << 20))])])
    (layer,) = read_layout(InLayout(path=tmp_path / "layout")).layers
    monkeypatch.setattr(blobs, "most_inflated", lambda size: 100 * size)  # without the first GiB, which is free
    with pytest.raises(IntegrityError, match=r"^a layer inflates to more than \d+ bytes, which is too much"):
        UnpackedLayers(tmp_path / "cache").take(layer, threading.Event())
    assert not [one for one in (tmp_path / "cache").rglob("*") if one.is_file()]


@pytest.mark.parametrize(("size", "most"), [(0, 1 << 30), (4096, 1 << 30), (1 << 30, 100 << 30)])
def test_small_files_may_inflate_to_a_gibibyte_and_larger_ones_a_hundredfold(size: int, most: int) -> None:
    assert deflate.most_inflated(size) == most


def _write(sink: io.BytesIO, receiver: Receiver | None, files: int) -> LayerDigest:
    """Write a layer of some files with a link, and more bytes than may wait for the thread."""
    with LayerWriter(sink, tee=None if receiver is None else receiver.write) as writer:
        writer.add_dir("srv")
        for number in range(files):
            data = os.urandom(1 << 20) if number % 10 == 0 else b"text"
            writer.add_bytes(f"srv/{number:04}", data, executable=number % 2 == 0)
        writer.add_symlink("srv/link", "0000")
        return writer.close()


def _left(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "layers").iterdir())


def test_a_layer_that_is_unpacked_while_it_is_made_is_as_if_unpacked_later(tmp_path: Path) -> None:
    sink = io.BytesIO()
    own = UnpackedLayers(tmp_path / "own")
    with own.receiving() as receiver:
        assert receiver is not None
        made = _write(sink, receiver, 400)
        receiver.finish(made)
    assert _left(tmp_path / "own") == [made.diff_id]
    received = own.find(f"sha256:{made.diff_id}")
    assert received is not None
    (tmp_path / "blob").write_bytes(sink.getvalue())
    later = UnpackedLayers(tmp_path / "other").take(layer(made, tmp_path / "blob", "test"), threading.Event())
    notes = [json.loads((unpacked.tree.parent / "note.json").read_text()) for unpacked in (received, later)]
    assert notes[0] == notes[1]
    assert received.size == later.size == made.tar_size


def test_a_layer_that_is_not_finished_or_no_tar_leaves_nothing_and_stops_nobody(tmp_path: Path) -> None:
    cache = UnpackedLayers(tmp_path)

    def abandon() -> None:
        with cache.receiving() as receiver:
            _write(io.BytesIO(), receiver, 20)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        abandon()
    assert _left(tmp_path) == []
    made = _write(io.BytesIO(), None, 1)
    with cache.receiving() as receiver:
        assert receiver is not None
        for _ in range(200):  # more than may wait
            receiver.write(b"this is no tar" * 100)
        receiver.finish(made)
    assert _left(tmp_path) == []
    assert cache.find(f"sha256:{made.diff_id}") is None


def test_a_layer_that_is_there_already_stays(tmp_path: Path) -> None:
    with UnpackedLayers(tmp_path).receiving() as first, UnpackedLayers(tmp_path).receiving() as second:
        assert first is not None
        assert second is not None
        made = [_write(io.BytesIO(), receiver, 0) for receiver in (first, second)]
        first.finish(made[0])
        second.finish(made[1])
    assert made[0] == made[1]
    assert _left(tmp_path) == [made[0].diff_id]
    assert UnpackedLayers(tmp_path).find(f"sha256:{made[0].diff_id}") is not None


def test_without_a_folder_the_layer_is_made_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "layers").write_bytes(b"a file")
    with UnpackedLayers(tmp_path).receiving() as receiver:
        assert receiver is None
