"""What a run leaves for the next one."""

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.engines.model import BuildOptions
from envkit.fleet.state import LastRun, digest_of
from envkit.fleet.tasks import task_of
from tests.unit.fleet.samples import cell, outcome

DIGEST = "a" * 64


def test_what_was_built_is_there_and_what_failed_is_done_again(tmp_path: Path) -> None:
    first = LastRun(tmp_path, DIGEST)
    first.begin()
    rows = [
        outcome("a", digest="sha256:1", place="oci:a", figures={"build_s": 2.0}),
        outcome("b", "present"),
        outcome("c", "failed", 8, error="refused", details=("1", "2")),
        outcome("d", "unproved", 6, record={"summary": {}}),
        outcome("e", "stopped", 130),
    ]
    for row in rows:
        first.note(row)
    again = LastRun(tmp_path, DIGEST)
    assert again.resume() == {"a": rows[0], "b": rows[1]}
    again.begin()
    assert set(json.loads(again.path.read_text())["outcomes"]) == {"a", "b"}
    assert LastRun(tmp_path, "b" * 64).resume() == {}


def test_a_run_that_does_not_resume_forgets(tmp_path: Path) -> None:
    first = LastRun(tmp_path, DIGEST)
    first.note(outcome("a"))
    LastRun(tmp_path, DIGEST).begin()
    assert LastRun(tmp_path, DIGEST).resume() == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": "envkit.fleet-state/0", "outcomes": {}}',
        '{"schema": "envkit.fleet-state/1"}',
        '{"schema": "envkit.fleet-state/1", "outcomes": {"a": {"name": "a"}}}',
        '{"schema": "envkit.fleet-state/1", "outcomes": {"a": {"name": 1, "status": "built", "exit_code": 0}}}',
    ],
)
def test_a_damaged_note_is_no_note(tmp_path: Path, text: str) -> None:
    last = LastRun(tmp_path, DIGEST)
    last.path.parent.mkdir()
    last.path.write_text(text)
    assert last.resume() == {}


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "fleets").write_text("a file")
    last = LastRun(tmp_path, DIGEST)
    last.begin()
    last.note(outcome("a"))
    assert last.resume() == {}


def test_the_notes_of_twenty_fleets_are_kept(tmp_path: Path) -> None:
    for number in range(25):
        LastRun(tmp_path, f"{number:064x}").begin()
    assert len(list((tmp_path / "fleets").iterdir())) == 20


def test_whatever_decides_where_images_go_is_another_fleet() -> None:
    cells = [cell("a"), cell("b", torch="2.7.1")]

    def digest(options: BuildOptions | None = None, **more: Any) -> str:
        row = {"verify": True} | more
        return digest_of(cells, [task_of(one, "embedded", options or BuildOptions(), **row) for one in cells])

    found = [
        digest(),
        digest(verify=False),
        digest(BuildOptions(output="registry:registry.example.com/team/train")),
        digest(BuildOptions(labels=(("a", "b"),))),
        digest(BuildOptions(base="debian:12")),
    ]
    assert len(set(found)) == len(found)
    assert digest() == found[0]
