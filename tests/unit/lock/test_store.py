import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import LockError, UsageError
from envkit.lock.model import Lock
from envkit.lock.reading import lock_from_json
from envkit.lock.store import check_write, digest_of, load_lock, read_lock, store_lock, to_text, write_lock
from tests.unit.lock.samples import bootstrapped, lock, wheel

TEXT = """\
{
  "schema": "envkit.lock/2",
  "plan": "sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",
  "request": {
    "python": "3.11",
    "pip": []
  },
  "platform": "linux-64",
  "python": "3.11",
  "as_of": null,
  "base": {
    "kind": "registry",
    "reference": "docker.io/library/debian:bookworm-slim",
    "digest": "sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
    "suite": null,
    "packages": []
  },
  "conda": [],
  "wheels": [
    {"name": "six", "version": "1.17.0", "file": "six-1.17.0-py3-none-any.whl", \
"url": "https://files.example.com/packages/six-1.17.0-py3-none-any.whl", \
"sha256": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "size": 2000, "source": "pypi"}
  ],
  "seal": "sha256:4d18126f44eef4c927569216770ceee621a5eaa424e75a71ee0968305b1d2cfb"
}
"""


def test_a_lock_is_readable_text_with_one_artifact_per_line() -> None:
    request = (("python", "3.11"), ("pip", ()))
    assert to_text(lock(request=request, conda=(), wheels=(wheel("six", "1.17.0"),))) == TEXT


@pytest.mark.parametrize("made", [lock(), bootstrapped(), lock(conda=()), lock(wheels=())])
def test_a_lock_survives_its_file(made: Lock, tmp_path: Path) -> None:
    path = tmp_path / "envkit.lock"
    write_lock(path, made)
    assert read_lock(path) == made


def test_a_stored_lock_is_loaded_by_its_digest(tmp_path: Path) -> None:
    store_lock(tmp_path, lock())
    assert load_lock(tmp_path, digest_of(lock())) == lock()


def test_a_stored_lock_with_another_digest_is_not_loaded(tmp_path: Path) -> None:
    store_lock(tmp_path, lock()).write_text(to_text(bootstrapped()))
    assert load_lock(tmp_path, digest_of(lock())) is None


@pytest.mark.requirement("R13")
@given(
    names=st.lists(st.from_regex(r"[a-z][a-z0-9]{0,9}(-[a-z0-9]{1,5}){0,2}", fullmatch=True), unique=True, max_size=8),
    sizes=st.integers(1, 1 << 39),
    words=st.lists(st.text(max_size=20), max_size=4),
)
def test_whatever_a_lock_holds_it_reads_back_the_same(names: list[str], sizes: int, words: list[str]) -> None:
    rows = tuple(wheel(name, size=sizes) for name in sorted(names))
    made = lock(wheels=rows, request=(("pip", tuple(words)),))
    text = to_text(made)
    assert lock_from_json(json.loads(text), "here") == made
    assert text.endswith("}\n")
    assert sum("_any.whl" in line or "-any.whl" in line for line in text.splitlines()) == len(names)


def test_a_lock_that_says_the_same_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "envkit.lock"
    assert write_lock(path, lock())
    before = path.stat().st_mtime_ns, path.stat().st_ino
    assert not write_lock(path, lock())
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert write_lock(path, replace(lock(), as_of="2026-06-01T00:00:00Z"))
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_lock_has_the_exit_code_of_a_stale_one(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"there is no lock at .*envkit\.lock") as caught:
        read_lock(tmp_path / "envkit.lock")
    assert caught.value.exit_code == 4
    assert caught.value.hint == "envkit lock"


@pytest.mark.requirement("R14")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{'schema': 1}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"schema": "envkit.lock/1", "schema": "envkit.lock/1"}', "the key 'schema' is given twice"),
        (b"[]", "schema: 'list' is not envkit.lock/2"),
        (b'{"schema": "envkit.plan/1"}', "schema: 'envkit.plan/1' is not envkit.lock/2"),
        (b'{"schema": "envkit.lock/3"}', "written by a newer envkit"),
        (b'{"version": 1, "package": []}', "schema: None is not"),
    ],
)
def test_what_is_no_lock_is_refused_with_its_reason(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "envkit.lock"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=message) as caught:
        read_lock(path)
    assert str(path) in caught.value.message


def test_a_folder_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        read_lock(tmp_path)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which someone else made, beside a file of the user."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (tmp_path / "profile").write_text("ORIGINAL")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.requirement("R11")
@pytest.mark.parametrize("target", ["../profile", "../new", "image.yaml", "/dev/stdout"])
def test_the_lock_of_a_folder_is_not_written_through_a_link(checkout: Path, target: str) -> None:
    (checkout / "image.yaml").write_text("title: t\n")
    (checkout / "envkit.lock").symlink_to(target)
    for attempt in (lambda: check_write(Path("envkit.lock")), lambda: write_lock(Path("envkit.lock"), lock())):
        with pytest.raises(UsageError, match=r"^envkit\.lock is a symbolic link$") as caught:
            attempt()
        assert caught.value.hint == "envkit lock -o FILE"
    assert (checkout.parent / "profile").read_text() == "ORIGINAL"
    assert not (checkout.parent / "new").exists()
    assert (checkout / "image.yaml").read_text() == "title: t\n"


@pytest.mark.requirement("R11")
@pytest.mark.usefixtures("checkout")
def test_a_file_that_is_no_lock_is_not_replaced_by_one() -> None:
    Path("envkit.lock").write_text("notes\n")
    with pytest.raises(UsageError, match="was not written by envkit"):
        write_lock(Path("envkit.lock"), lock())
    assert Path("envkit.lock").read_text() == "notes\n"


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("text", ["", "\n", to_text(bootstrapped()), to_text(lock())[:900], "<<<<<<< a\n" + TEXT])
def test_a_damaged_lock_is_replaced(text: str) -> None:
    Path("envkit.lock").write_text(text)
    assert write_lock(Path("envkit.lock"), lock())
    assert read_lock(Path("envkit.lock")) == lock()


def test_a_chosen_name_may_be_a_link(checkout: Path) -> None:
    Path("mine.lock").symlink_to("../profile")
    assert write_lock(Path("mine.lock"), lock())
    assert read_lock(checkout.parent / "profile") == lock()


def two_gigabytes(path: Path) -> None:
    path.touch()
    os.truncate(path, 2 << 30)


@pytest.mark.requirement("R4")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "is a pipe"),
        (lambda path: path.symlink_to("../profile"), "is a link out of the folder"),
        (lambda path: path.symlink_to("/dev/zero"), "is a link out of the folder"),
        (two_gigabytes, "larger than 67108864 bytes"),
        (lambda path: path.write_text('{"schema": "envkit.lock/2", "as_of": ' + "9" * 5000), "an integer of 5000"),
        (lambda path: path.write_text('{"schema": "envkit.lock/2", "as_of": NaN}'), "NaN is not a JSON number"),
        (lambda path: path.write_text('{"as_of": ' + "[" * 70 + "]" * 70 + "}"), "nested deeper than 64 levels"),
    ],
)
@pytest.mark.usefixtures("checkout")
def test_a_lock_of_someone_else_is_read_through_the_door(make: Callable[[Path], None], what: str) -> None:
    make(Path("envkit.lock"))
    with pytest.raises(UsageError, match=what):
        read_lock(Path("envkit.lock"))
