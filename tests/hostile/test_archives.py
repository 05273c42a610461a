"""Every archive of archives.py, by the real command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import judge
from tests.hostile.load import archives
from tests.hostile.model import Case
from tests.hostile.serve import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.mark.requirement("R41")
@pytest.mark.parametrize("case", archives(), ids=lambda case: case.id)
def test_archive(case: Case, server: Server, tmp_path: Path) -> None:
    outcome = server.outcome(case, tmp_path / "case")
    faults = judge.faults(case, outcome)
    assert not faults, "\n".join([*faults, outcome.stderr[-2000:]])
