import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.assemble.cache import Cached, LayerCache
from envkit.assemble.model import Scheme
from envkit.assemble.wheel_layers import WheelFile, wheel_layers
from envkit.ground.errors import IntegrityError
from envkit.ground.progress import Silent
from tests.support.wheels import wheel_entries, write_wheel

SCHEME = Scheme(python="3.11")


def _wheels(folder: Path, *, changed: str | None = None) -> list[WheelFile]:
    folder.mkdir()
    found = []
    for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta"):
        data = name.encode() * 100 + (b"changed" if name == changed else b"")
        path = write_wheel(folder, wheel_entries({f"{name}/a.py": data}, name=name), name=name)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append(WheelFile(path=path, name=name, sha256=sha256, size=path.stat().st_size))
    return found


def _layers(wheels: list[WheelFile], cache: Path, workers: int | None = None) -> tuple[Cached, ...]:
    return wheel_layers(wheels, scheme=SCHEME, cache=LayerCache(cache), budget=40, reporter=Silent(), workers=workers)


def test_the_layers_are_the_same_whatever_the_order_the_cores_and_the_cache(tmp_path: Path) -> None:
    wheels = _wheels(tmp_path / "wheels")
    cold = [found.layer for found in _layers(wheels, tmp_path / "one", workers=1)]
    warm = [found.layer for found in _layers(wheels, tmp_path / "one")]
    other = [found.layer for found in _layers(wheels[::-1], tmp_path / "two", workers=4)]
    assert cold == warm == other
    assert len({layer.diff_id for layer in cold}) == len(cold) > 1


def test_one_changed_wheel_makes_one_new_layer(tmp_path: Path) -> None:
    before = [found.layer for found in _layers(_wheels(tmp_path / "before"), tmp_path / "cache")]
    after = [found.layer for found in _layers(_wheels(tmp_path / "after", changed="beta"), tmp_path / "cache")]
    assert len([layer for layer in after if layer not in before]) == 1


def test_a_damaged_wheel_fails_all_and_leaves_no_part(tmp_path: Path) -> None:
    wheels = _wheels(tmp_path / "wheels")
    entries = wheel_entries({"beta/a.py": b"x" * 99}, name="beta")
    write_wheel(tmp_path / "wheels", [replace(entries[0], crc=7), *entries[1:]], name="beta")
    with pytest.raises(IntegrityError, match=r"beta/a\.py is damaged"):
        _layers(wheels, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "new").iterdir())
