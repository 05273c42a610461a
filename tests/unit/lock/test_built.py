"""Wheels that were built from source, as the cache keeps them."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.ground import store
from envkit.ground.errors import LockError, UsageError
from envkit.lock import built, exports
from envkit.lock.built import Outcome
from envkit.lock.model import Lock
from envkit.lock.reading import lock_from_json
from envkit.lock.store import to_text
from tests.unit.lock.samples import from_source

KEY = "9" * 64
FILE = "fastsum-1.2-cp311-cp311-linux_x86_64.whl"


def _made(folder: Path) -> Path:
    path = folder / FILE
    path.write_bytes(b"a wheel")
    return path


def _lock_of(path: Path) -> Lock:
    found, data = from_source(), path.read_bytes()
    first = replace(found.wheels[0], sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    return replace(found, wheels=(first, *found.wheels[1:]))


def test_what_is_kept_is_found_by_its_key(tmp_path: Path) -> None:
    kept = built.keep(tmp_path / "cache", KEY, Outcome(wheel=_made(tmp_path), cxx11_abi="true"))
    assert kept.wheel == tmp_path / "cache" / "built" / KEY / FILE
    assert built.find(tmp_path / "cache", KEY) == kept


def test_what_a_backend_asks_for_is_kept_too(tmp_path: Path) -> None:
    built.keep(tmp_path, KEY, Outcome(wheel=None, requires=("wheel",)))
    assert built.find(tmp_path, KEY) == Outcome(wheel=None, requires=("wheel",))


def test_a_damaged_wheel_is_made_again(tmp_path: Path) -> None:
    kept = built.keep(tmp_path / "cache", KEY, Outcome(wheel=_made(tmp_path)))
    assert kept.wheel is not None
    kept.wheel.write_bytes(b"another")
    assert built.find(tmp_path / "cache", KEY) is None
    again = built.keep(tmp_path / "cache", KEY, Outcome(wheel=_made(tmp_path)))
    assert again.wheel is not None
    assert again.wheel.read_bytes() == b"a wheel"


def test_of_two_processes_that_keep_the_same_build_the_first_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, remove = tmp_path / "cache", store.remove_tree

    def beaten(path: Path) -> bool:
        """Remove a folder as ever; before the caller can put its own there, another process has."""
        monkeypatch.setattr(store, "remove_tree", remove)
        gone = remove(path)
        built.keep(cache, KEY, Outcome(wheel=_made(tmp_path), cxx11_abi="true"))
        return gone

    monkeypatch.setattr(store, "remove_tree", beaten)
    kept = built.keep(cache, KEY, Outcome(wheel=_made(tmp_path), cxx11_abi="false"))
    assert kept.cxx11_abi == "true"
    assert [path.name for path in (cache / "built").iterdir()] == [KEY]


def test_engines_find_the_wheel_of_a_lock(tmp_path: Path) -> None:
    lock = _lock_of(_made(tmp_path))
    built.keep(tmp_path / "cache", KEY, Outcome(wheel=tmp_path / FILE))
    assert built.context_files(lock, tmp_path / "cache") == {f"wheels/{FILE}": b"a wheel"}


def test_a_wheel_that_is_not_there_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="is not in the cache") as caught:
        built.wheels_of(_lock_of(_made(tmp_path)), tmp_path / "cache")
    assert caught.value.hint == "envkit build builds it again"


def test_a_lock_with_sources_is_read_back() -> None:
    lock = from_source()
    assert lock_from_json(lock.to_json(), "lock") == lock
    assert to_text(lock).count('"name": "setuptools"') == 1


def test_a_builder_has_no_builders() -> None:
    tree = from_source().to_json()
    tree["builders"] = [from_source().to_json()]
    with pytest.raises(UsageError, match="cannot have sources or builders"):
        lock_from_json(tree, "lock")


@pytest.mark.parametrize("form", ["requirements.txt", "pylock.toml", "environment.yml"])
def test_other_tools_cannot_have_what_no_index_has(form: str) -> None:
    with pytest.raises(UsageError, match="built from source and are on no index: fastsum"):
        exports.FORMATS[form](from_source())
