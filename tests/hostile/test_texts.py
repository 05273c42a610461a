"""Every row of cases/*.yaml, by the real command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import judge
from tests.hostile.load import archives, texts
from tests.hostile.model import Case
from tests.hostile.serve import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.mark.requirement("R4")
@pytest.mark.parametrize("case", texts(), ids=lambda case: case.id)
def test_text(case: Case, server: Server, tmp_path: Path) -> None:
    outcome = server.outcome(case, tmp_path / "case")
    faults = judge.faults(case, outcome)
    assert not faults, "\n".join([*faults, outcome.stderr[-2000:]])


def test_there_are_enough_cases_of_every_kind() -> None:
    cases = (*texts(), *archives())
    assert len({case.id for case in cases}) == len(cases)
    assert sum(case.exit != 0 for case in cases) >= 450
    assert sum(case.exit == 0 for case in cases) >= 60
    for group in {case.group for case in archives()}:
        refused = [case.exit != 0 for case in archives() if case.group == group]
        assert refused.count(True) >= 8, group
        assert refused.count(False) >= 2, group
