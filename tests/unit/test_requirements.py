"""contributing/reliability.md is what the tests' marks and the table of requirements say."""

from pathlib import Path

from tests import requirements
from tests.hostile.model import Case
from tests.requirements import Requirement


def test_the_page_is_current() -> None:
    assert requirements.PAGE.read_text(encoding="utf-8") == requirements.page(
        requirements.read(), requirements.marks(), requirements.hostile()
    )


def test_every_requirement_has_a_test_or_says_what_is_missing() -> None:
    rows = requirements.read()
    assert [one.id for one in rows] == [f"R{number}" for number in range(1, 62)]
    assert requirements.faults(rows, requirements.marks()) == []


def test_a_mark_of_no_requirement_and_a_requirement_without_a_test_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(
        '@pytest.mark.requirement("R1", "R9")\ndef test_b(): ...\n\n\nclass TestC:\n'
        '    @pytest.mark.requirement("R1")\n    def test_d(self): ...\n'
    )
    found = requirements.marks(tmp_path)
    assert found == {"R1": ["tests/test_a.py::test_b", "tests/test_a.py::test_d"], "R9": ["tests/test_a.py::test_b"]}
    rows = (Requirement("R1", "g", "t"), Requirement("R2", "g", "t"), Requirement("R3", "g", "t", missing="it"))
    assert requirements.faults(rows, found) == [
        "tests/test_a.py::test_b marks the unknown requirement R9",
        "R2 has no test",
    ]
    assert "faults: 2\nare met; 1 are met in part" in requirements.page(rows, found)
    assert "| R3 | t | partly: it |  |  |  |" in requirements.page(rows, found)


def test_commands_come_from_the_table_and_from_hostile_inputs() -> None:
    cases = (
        Case(group="a", name="b", run=("matrix", "update", "--into", "x"), links={"x": "y"}),
        Case(group="a", name="c", run=("--api", "plan", "{}")),
        Case(group="a", name="d", run=("init", "."), pipes=("p",)),
    )
    found = requirements.tried(cases)
    assert found == {"R4": {"matrix update", "API: plan", "init"}, "R11": {"matrix update", "init"}}
    row = Requirement("R4", "g", "t", commands=("build",))
    assert "| R4 | t | yes | API: plan, build, init, matrix update |" in requirements.page((row,), {}, found)
