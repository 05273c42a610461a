import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.assemble.layer_plan import groups
from envkit.assemble.layer_pool import Progress, make_layers
from envkit.assemble.wheel import Scheme
from envkit.assemble.wheels import Wheels
from envkit.engines.layer_cache import Cached, LayerCache
from envkit.ground.errors import IntegrityError
from envkit.ground.progress import Silent
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Wheel
from envkit.registry.transport import Transport
from tests.support.wheels import wheel_entries, write_wheel

SCHEME = Scheme(python="3.11")


def _wheels(folder: Path, *, changed: str | None = None) -> list[Wheel]:
    folder.mkdir()
    found = []
    for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta"):
        data = name.encode() * 100 + (b"changed" if name == changed else b"")
        found.append(_row(write_wheel(folder, wheel_entries({f"{name}/a.py": data}, name=name), name=name), name))
    return found


def _row(path: Path, name: str) -> Wheel:
    data = path.read_bytes()
    return Wheel(
        name=name, version="1.0", file=path.name, url=f"https://wheels.example.com/{path.name}",
        sha256=hashlib.sha256(data).hexdigest(), size=len(data), source="pypi",
    )  # fmt: skip


def _layers(wheels: list[Wheel], own: Path, cache: Path, workers: int | None = None) -> tuple[Cached, ...]:
    with Transport() as transport:
        kind = Wheels(
            cache, own=own, indexes=IndexLocations(), transport=transport, reporter=Silent(), scheme=SCHEME,
            compression="gzip", offline=True,
        )  # fmt: skip
        made = make_layers(
            kind, groups(wheels, 40), cache=LayerCache(cache), progress=Progress(Silent()),
            reporter=Silent(), workers=workers,
        )  # fmt: skip
    return tuple(one.cached for one in made)


def test_the_layers_are_the_same_whatever_the_order_the_cores_and_the_cache(tmp_path: Path) -> None:
    own = tmp_path / "wheels"
    wheels = _wheels(own)
    cold = [found.layer for found in _layers(wheels, own, tmp_path / "one", workers=1)]
    warm = [found.layer for found in _layers(wheels, own, tmp_path / "one")]
    other = [found.layer for found in _layers(wheels[::-1], own, tmp_path / "two", workers=4)]
    assert cold == warm == other
    assert len({layer.diff_id for layer in cold}) == len(cold) > 1
    assert all((own / wheel.file).is_file() for wheel in wheels)  # what is the user's stays


def test_one_changed_wheel_makes_one_new_layer(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    before = [found.layer for found in _layers(_wheels(tmp_path / "before"), tmp_path / "before", cache)]
    changed = _wheels(tmp_path / "after", changed="beta")
    after = [found.layer for found in _layers(changed, tmp_path / "after", cache)]
    assert len([layer for layer in after if layer not in before]) == 1


def test_a_damaged_wheel_fails_all_and_leaves_no_part(tmp_path: Path) -> None:
    own = tmp_path / "wheels"
    wheels = _wheels(own)
    entries = wheel_entries({"beta/a.py": b"x" * 99}, name="beta")
    path = write_wheel(own, [replace(entries[0], crc=7), *entries[1:]], name="beta")
    wheels[1] = _row(path, "beta")
    with pytest.raises(IntegrityError, match=r"beta/a\.py is damaged"):
        _layers(wheels, own, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "layers" / "new").iterdir())


def test_a_download_is_used_under_its_own_name_and_removed_afterwards(tmp_path: Path) -> None:
    wheels = _wheels(tmp_path / "wheels")
    downloads = tmp_path / "cache" / "downloads"
    downloads.mkdir(parents=True)
    for wheel in wheels:
        (tmp_path / "wheels" / wheel.file).rename(downloads / wheel.sha256)
    assert len(_layers(wheels, tmp_path / "wheels", tmp_path / "cache")) > 1
    assert list(downloads.iterdir()) == []
