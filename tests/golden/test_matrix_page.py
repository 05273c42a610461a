"""The table of docs/reference/matrix.md says what the resolver says."""

import random

import pytest

from envkit.facts.load import load
from envkit.resolve import rules
from envkit.resolve.index import index
from tests.golden.matrix_page import GENERATIONS, PAGE, matrix_page

ROWS = [line.strip("| ").split(" |") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
HEAD, CELLS = [cell.strip() for cell in ROWS[0]], [[cell.strip() for cell in row] for row in ROWS[1:]]


def test_the_page_is_made_from_the_facts() -> None:
    assert PAGE.read_bytes() == matrix_page(), "python -m tests.golden --update"


def test_there_is_a_row_for_each_build() -> None:
    builds = {(one.torch, one.cuda) for one in load().builds
              if one.source == "pytorch" and one.platform == "linux-64" and one.cuda}  # fmt: skip
    assert sorted(builds) == sorted((row[0], row[1]) for row in CELLS)


@pytest.mark.parametrize("row", random.Random(16).sample(CELLS, 20), ids=lambda row: " ".join(row[:2]))
def test_a_driver_is_named_where_a_gpu_of_the_generation_has_code(row: list[str]) -> None:
    facts = load()
    known = index(facts)
    build = next(one for one in facts.builds if one.source == "pytorch" and one.platform == "linux-64"
                 and (one.torch, one.cuda) == (row[0], row[1]))  # fmt: skip
    for name, capabilities in GENERATIONS.items():
        gpus = [gpu for gpu in facts.gpus if gpu.capability in capabilities]
        runs = any(rules.code(build, gpu) and rules.cudnn_runs(build, gpu, known) for gpu in gpus)
        assert bool(row[HEAD.index(name)]) == runs, name
