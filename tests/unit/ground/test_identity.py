import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.ground import identity, process
from envkit.ground.identity import PREFIX


@pytest.fixture
def _name_of_other_bytes() -> Iterator[None]:
    """A name of this process that is not UTF-8, has a blank and parentheses."""
    path = Path("/proc/self/comm")
    before = path.read_bytes()
    path.write_bytes(b"a) \xff")
    yield
    path.write_bytes(before)


def test_this_run_is_not_abandoned() -> None:
    assert not identity.abandoned(identity.current().labels())


def test_the_identity_is_one_per_process() -> None:
    assert identity.current() == identity.current()
    assert identity.current().pid == os.getpid()


def test_a_dead_pid_of_this_host_is_abandoned() -> None:
    labels = identity.current().labels() | {f"{PREFIX}.pid": "999999999", f"{PREFIX}.started": "1"}
    assert identity.abandoned(labels)


def test_a_pid_that_was_used_again_is_abandoned() -> None:
    assert identity.abandoned(identity.current().labels() | {f"{PREFIX}.started": "1"})


def test_another_boot_is_abandoned() -> None:
    assert identity.abandoned(identity.current().labels() | {f"{PREFIX}.boot": "another"})


def test_what_another_host_made_is_left_alone() -> None:
    labels = identity.current().labels() | {f"{PREFIX}.host": "elsewhere", f"{PREFIX}.boot": "another"}
    assert not identity.abandoned(labels)


def test_foreign_containers_are_left_alone() -> None:
    assert not identity.abandoned({})
    assert not identity.abandoned({PREFIX: "x", f"{PREFIX}.host": identity.current().host, f"{PREFIX}.pid": "x"})


def test_a_process_without_an_entry_has_no_start() -> None:
    assert identity.start_ticks(999999999) == ""
    assert identity.start_ticks(os.getpid()).isdigit()


@pytest.mark.usefixtures("_name_of_other_bytes")
def test_a_process_with_a_name_of_any_bytes_has_a_start() -> None:
    assert identity.start_ticks(os.getpid()).isdigit()


@pytest.mark.usefixtures("_name_of_other_bytes")
def test_a_process_with_a_name_of_any_bytes_is_in_the_tree_of_its_parent() -> None:
    assert os.getpid() in process.tree(os.getppid())
