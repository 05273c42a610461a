"""docs/reliability.md is what the tests' marks and the table of requirements say."""

from pathlib import Path

from tests import requirements
from tests.requirements import Requirement


def test_the_page_is_current() -> None:
    assert requirements.PAGE.read_text(encoding="utf-8") == requirements.page(requirements.read(), requirements.marks())


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
    assert "| R3 | t | partly: it |  |  |" in requirements.page(rows, found)
