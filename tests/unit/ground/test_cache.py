import fcntl
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.engines.layer_cache import LayerCache
from envkit.ground.cache import (
    BUILT_WHEELS,
    KINDS,
    ROWS,
    RUNS,
    STAGING,
    UNPACKED,
    Entry,
    Kind,
    Rule,
    builds_excluded,
    chosen,
    entries,
    in_use,
    prune,
    remove,
    run_folder,
)
from envkit.ground.errors import EnvironmentProblem
from envkit.image.spec import LayerDigest

DAY = 86400
EVERYTHING = Rule(everything=True)


def _key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _make(cache: LayerCache, name: str, size: int = 1000) -> Path:
    """A layer of `size` bytes under the key of a name."""
    data = name.encode().ljust(size, b".")

    def write(sink: IO[bytes]) -> LayerDigest:
        sink.write(data)
        return LayerDigest(digest=hashlib.sha256(data).hexdigest(), diff_id="ab" * 32, size=size, tar_size=size)

    return cache.make(_key(name), write).path


def _age(path: Path, days: float) -> None:
    for one in (path, *path.rglob("*")) if path.is_dir() else (path,):
        os.utime(one, (time.time() - days * DAY,) * 2)


def _write(path: Path, size: int, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    _age(path, days)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with one thing of every kind, nothing of it in use."""
    cache = tmp_path / "cache"
    blob = _make(LayerCache(cache), "torch")
    _age(cache / "layers" / "layers" / f"{_key('torch')}.json", 5)
    _age(blob, 40)
    tree = cache / "layers" / ("cd" * 32)
    _write(tree / "tree" / "bin" / "python", 300, 40)
    _write(tree / "note.json", 10, 6)
    _write(cache / "downloads" / ("11" * 32), 200, 7)
    _write(cache / "blobs" / ("22" * 32), 100, 8)
    _write(cache / "conda" / "listings" / f"{'33' * 32}.json", 50, 9)
    _write(cache / "built" / ("44" * 32) / "note.json", 30, 9.5)
    _write(cache / "repodata" / "x.json", 25, 10)
    _write(cache / "conda" / "staging" / "dead" / "file", 12, 11)
    _age(cache / "conda" / "staging" / "dead", 11)
    image = tmp_path / "state" / "images" / "mine"
    _write(image / "index.json", 6, 12)
    (image / "blob").hardlink_to(blob)
    return tmp_path


def _prune(home: Path, rule: Rule) -> set[str]:
    done = prune(home / "cache", home / "state", rule)
    assert not done.in_use
    return {one.row for one in done.removed}


def test_everything_is_found_once_and_the_oldest_comes_first(home: Path) -> None:
    found = entries(home / "cache", home / "state")
    assert [(one.row, one.size) for one in found] == [
        ("images", 6), ("leftovers", 12), ("repodata", 25), ("built", 30), ("listings", 50), ("bases", 100),
        ("downloads", 200), ("unpacked", 310), ("layers", 1000),
    ]  # fmt: skip
    assert {one.row for one in found} == set(ROWS)
    assert time.time() - found[-1].used == pytest.approx(5 * DAY, abs=60)


def test_all_leaves_nothing_but_images(home: Path) -> None:
    assert _prune(home, EVERYTHING) == set(ROWS) - {"images"}
    assert [one.row for one in entries(home / "cache", home / "state")] == ["images"]
    assert (home / "state" / "images" / "mine" / "blob").stat().st_size == 1000


def test_images_go_when_asked(home: Path) -> None:
    done = prune(home / "cache", home / "state", Rule(everything=True, images=True))
    assert (done.freed, done.held) == (6 + 12 + 25 + 30 + 50 + 100 + 200 + 310 + 1000, 1000)
    assert entries(home / "cache", home / "state") == ()


def test_bytes_that_an_image_holds_are_not_called_freed(home: Path) -> None:
    done = prune(home / "cache", home / "state", EVERYTHING)
    assert (done.freed, done.held) == (12 + 25 + 30 + 50 + 100 + 200 + 310, 1000)


def test_the_old_go_by_their_last_use(home: Path) -> None:
    assert _prune(home, Rule(older_than_s=6.5 * DAY)) == {
        "downloads",
        "bases",
        "built",
        "listings",
        "repodata",
        "leftovers",
    }
    LayerCache(home / "cache").get(_key("torch"))
    assert _prune(home, Rule(older_than_s=1 * DAY)) == {"unpacked"}


def test_a_size_keeps_what_was_used_last(home: Path) -> None:
    assert _prune(home, Rule(keep=1310)) == {"downloads", "bases", "built", "listings", "repodata", "leftovers"}
    assert _prune(home, Rule(keep=1309)) == {"unpacked"}


@pytest.mark.parametrize("place", ["cache/layers/" + "ef" * 32, "state/images/stray"])
def test_a_file_where_a_folder_belongs_is_an_entry(home: Path, place: str) -> None:
    """`envkit cache` ended with a traceback until someone removed it."""
    stray = _write(home / place, 7, 20)
    assert [one.size for one in entries(home / "cache", home / "state") if one.path == stray] == [7]
    prune(home / "cache", home / "state", Rule(older_than_s=19 * DAY, images=True))
    assert not stray.exists()


_ENTRY = st.builds(
    lambda kind, size, used: Entry(row=kind.row, kind=kind, path=Path("x"), size=size, used=used),
    st.sampled_from([kind for kind in KINDS if kind.row not in ("leftovers", "images")]), st.integers(0, 100),
    st.floats(0, 1000),
)  # fmt: skip


@given(st.lists(_ENTRY), st.integers(0, 500))
def test_no_more_goes_than_has_to(rows: list[Entry], keep: int) -> None:
    rows = sorted(rows, key=lambda one: one.used)
    gone = chosen(rows, Rule(keep=keep), 1000)
    assert list(gone) == rows[: len(gone)]
    left = sum(one.size for one in rows[len(gone) :])
    assert left <= keep
    assert not gone or left + gone[-1].size > keep


def test_what_a_build_uses_stays(home: Path) -> None:
    cache = LayerCache(home / "cache")
    found = cache.get(_key("torch"))
    assert found is not None
    done = prune(home / "cache", home / "state", EVERYTHING)
    assert {one.row for one in done.in_use} == {"layers", "downloads", "bases", "built", "listings", "repodata"}
    assert found.path.stat().st_size == 1000
    assert cache.get(_key("torch")) is not None
    del cache
    assert _prune(home, EVERYTHING) == {"layers", "downloads", "bases", "built", "listings", "repodata"}


def test_what_a_build_has_just_made_stays(home: Path) -> None:
    cache = LayerCache(home / "cache")
    made = _make(cache, "new")
    done = prune(home / "cache", home / "state", Rule(keep=0))
    assert made in {one.path for one in done.in_use}
    assert made.exists()


def test_an_unpacked_layer_that_is_run_stays(home: Path) -> None:
    layer = home / "cache" / "layers" / ("cd" * 32)
    descriptor = os.open(layer, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    done = prune(home / "cache", home / "state", EVERYTHING)
    os.close(descriptor)
    assert [one.row for one in done.in_use] == ["unpacked"]
    assert (layer / "tree" / "bin" / "python").exists()


def test_a_layer_that_was_pruned_is_made_anew(home: Path) -> None:
    _prune(home, EVERYTHING)
    cache = LayerCache(home / "cache")
    assert cache.get(_key("torch")) is None
    assert _make(cache, "torch").exists()


def test_builds_beside_a_prune_never_meet_a_half(tmp_path: Path) -> None:
    ended = threading.Event()
    faults: list[str] = []

    def build() -> None:
        while not ended.is_set():
            cache = LayerCache(tmp_path)
            found = cache.get(_key("torch"))
            path = _make(cache, "torch", 5000) if found is None else found.path
            if path.stat().st_size != 5000:
                faults.append("cut")
            if path.read_bytes()[:5] != b"torch":
                faults.append("other")
            del cache  # and with it what keeps the layer from being pruned
            time.sleep(0.002)

    def guarded() -> None:
        try:
            build()
        except Exception as error:  # noqa: BLE001 - told by the assertion below
            faults.append(repr(error))

    threads = [threading.Thread(target=guarded) for _ in range(2)]
    for thread in threads:
        thread.start()
    removed, until = 0, time.monotonic() + 10
    while removed < 20 and not faults and time.monotonic() < until:
        removed += sum(remove(one, idle=False) is not None for one in entries(tmp_path))
    ended.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert removed


def test_nothing_is_alone_beside_a_build(tmp_path: Path) -> None:
    with builds_excluded(tmp_path / "nothing") as idle:
        assert idle
    cache = LayerCache(tmp_path)
    with builds_excluded(tmp_path) as idle:
        assert not idle
    del cache
    with builds_excluded(tmp_path) as idle:
        assert idle


def test_the_folder_of_a_run_goes_and_so_does_that_of_a_killed_one(tmp_path: Path) -> None:
    killed = RUNS.at(tmp_path, "killed")
    killed.mkdir(parents=True)
    with run_folder(tmp_path) as first, run_folder(tmp_path) as second:
        assert {first, second} == set(RUNS.at(tmp_path).iterdir())
    assert not list(RUNS.at(tmp_path).iterdir())


def test_a_cache_that_is_a_file_cannot_have_runs(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(EnvironmentProblem, match=r"cache/runs cannot be written: Not a directory"):
        run_folder(tmp_path / "cache").__enter__()


def test_what_a_download_needs_stays_while_it_is_in_use(home: Path) -> None:
    with in_use(home / "cache"), in_use(home / "cache"):
        done = prune(home / "cache", home / "state", EVERYTHING)
    assert {one.row for one in done.in_use} == {"downloads", "bases", "built", "listings", "repodata"}
    assert _prune(home, EVERYTHING) == {"downloads", "bases", "built", "listings", "repodata"}


@pytest.mark.parametrize("kind", [UNPACKED, BUILT_WHEELS, STAGING, RUNS], ids=lambda kind: kind.folder)
def test_an_unfinished_entry_is_a_leftover_unless_its_writer_lives(kind: Kind, tmp_path: Path) -> None:
    with kind.fresh(tmp_path) as folder:
        _age(folder, 1)
        (found,) = entries(tmp_path)
        assert (found.row, found.path) == ("leftovers", folder)
        assert remove(found, idle=True) is None
        folder.with_name(f"{folder.name}0").mkdir()  # of a writer that has ended
        kind.sweep(tmp_path)
        assert list(kind.at(tmp_path).iterdir()) == [folder]
    assert not list(kind.at(tmp_path).iterdir())
