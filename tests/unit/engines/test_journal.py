import json
from pathlib import Path

import pytest

from envkit.engines import journal
from envkit.engines.journal import Journal
from envkit.ground import identity


def left_behind(state: Path, **changed: object) -> Path:
    """A note of a run of this host that is no more."""
    labels = identity.current().labels() | {f"{identity.PREFIX}.boot": "another"}
    tree = {
        "schema": journal.SCHEMA,
        "engine": "docker",
        "labels": labels,
        "containers": ["ab"],
        "processes": [],
        "folders": [],
    }
    path = state / "runs" / "dead.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(tree | changed))
    return path


def test_a_note_lives_as_long_as_its_run(tmp_path: Path) -> None:
    with Journal(tmp_path, "docker") as notes:
        assert not list(tmp_path.glob("runs/*"))
        notes.container("0123456789ab")
        notes.folder(tmp_path / "envkit-x")
        assert len(list(tmp_path.glob("runs/*.json"))) == 1
        assert journal.abandoned(tmp_path, "docker") == []
        assert notes.containers == ("0123456789ab",)
    assert not list(tmp_path.glob("runs/*"))


def test_a_dead_runs_note_is_found_by_its_engine(tmp_path: Path) -> None:
    path = left_behind(tmp_path)
    assert journal.abandoned(tmp_path, "podman") == []
    (found,) = journal.abandoned(tmp_path, "docker")
    assert found.containers == ("ab",)
    journal.forget(found)
    assert not path.exists()


def test_only_envkits_own_folders_are_removed(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "envkit-abc", tmp_path / "precious"
    ours.mkdir()
    theirs.mkdir()
    left_behind(tmp_path, folders=[str(ours), str(theirs)])
    journal.forget(journal.abandoned(tmp_path, "docker")[0])
    assert not ours.exists()
    assert theirs.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": "other"}', '{"schema": "envkit.journal/1", "engine": "docker"}', "\x00"]
)
def test_a_damaged_note_is_skipped(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x.json").write_text(text)
    assert journal.abandoned(tmp_path, "docker") == []


def test_without_a_state_folder_nothing_is_noted() -> None:
    with Journal(None, "docker") as notes:
        notes.container("ab")
        assert notes.containers == ("ab",)


def test_a_state_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Journal(tmp_path / "file", "docker") as notes:
        notes.container("ab")
