"""Each kind of fault that project files have shown is tested with inputs of more than one shape."""

import pytest

from tests.project_kinds import KINDS, LEAST, inputs


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_at_least_five_inputs(kind: str) -> None:
    numbers = {name: inputs(name) for name in KINDS[kind]}
    assert 0 not in numbers.values(), numbers
    assert sum(numbers.values()) >= LEAST
