import threading
from pathlib import Path

import pytest

from envkit.ground.errors import IntegrityError
from envkit.image import blobs, deflate
from envkit.image.layout import read_layout
from envkit.image.reference import parse_file
from envkit.run.rootless.layers import LayerCache, _locked, _unpack
from tests.support.file_images import entry, packed, write_layout


def test_a_layer_that_another_run_unpacked_and_still_uses_is_not_waited_for(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [packed([(entry("srv/a"), b"a")])])
    reference = parse_file(f"oci:{tmp_path / 'layout'}")
    assert reference is not None
    (layer,) = read_layout(reference).layers
    folder = tmp_path / "cache" / "layers"
    folder.mkdir(parents=True)
    name = layer.diff_id.removeprefix("sha256:")
    first, second, stop, found = LayerCache(tmp_path / "cache"), LayerCache(tmp_path / "cache"), threading.Event(), []
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
    reference = parse_file(f"oci:{tmp_path / 'layout'}")
    assert reference is not None
    (layer,) = read_layout(reference).layers
    with pytest.raises(
        IntegrityError, match=rf"^layer {layer.diff_id}: a layer has an entry outside of its root"
    ) as caught:
        LayerCache(tmp_path / "cache").take(layer, threading.Event())
    assert caught.value.hint == "get the image from its source again"


def test_what_a_layer_inflates_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_layout(tmp_path / "layout", [packed([(entry("srv/zeros"), bytes(8 << 20))])])
    reference = parse_file(f"oci:{tmp_path / 'layout'}")
    assert reference is not None
    (layer,) = read_layout(reference).layers
    monkeypatch.setattr(blobs, "most_inflated", lambda size: 100 * size)  # without the first GiB, which is free
    with pytest.raises(IntegrityError, match=r"^a layer inflates to more than \d+ bytes, which is too much"):
        LayerCache(tmp_path / "cache").take(layer, threading.Event())
    assert not [one for one in (tmp_path / "cache").rglob("*") if one.is_file()]


@pytest.mark.parametrize(("size", "most"), [(0, 1 << 30), (4096, 1 << 30), (1 << 30, 100 << 30)])
def test_small_files_may_inflate_to_a_gibibyte_and_larger_ones_a_hundredfold(size: int, most: int) -> None:
    assert deflate.most_inflated(size) == most
