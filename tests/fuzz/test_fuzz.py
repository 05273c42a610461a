"""The targets without atheris: their seeds, every input that once broke one, and generated changes of both."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, seeds

FAILURES = sorted((Path(__file__).parent / "failures").glob("*-*"))


@pytest.mark.parametrize("name", TARGETS)
def test_seeds(name: str) -> None:
    for seed in seeds(name):
        TARGETS[name](seed)


def test_what_once_broke_a_target() -> None:
    for path in FAILURES:
        TARGETS[path.name.partition("-")[0]](path.read_bytes())


@pytest.mark.requirement("R12")
@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_changed_seeds(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(seeds(name)))
    start = data.draw(st.integers(0, len(seed)))
    end = data.draw(st.integers(start, len(seed)))
    TARGETS[name](seed[:start] + data.draw(st.binary(max_size=40)) + seed[end:])
