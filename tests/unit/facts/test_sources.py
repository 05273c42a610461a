"""Source ids and the lines that describe them."""

from __future__ import annotations

from envkit.facts.check import rows_of
from envkit.facts.load import load
from envkit.facts.sources import describe, find
from envkit.facts.tables import TABLES

FACTS = load()


def test_an_id_with_a_revision_is_found_by_its_shape() -> None:
    found = find(FACTS.sources, "testinfra:d3629fa2e61b")
    assert found is not None
    assert found[0] == "testinfra:<commit>"
    assert describe(found[1], "testinfra:d3629fa2e61b").startswith(
        "pytorch/test-infra d3629fa2e61b tools/scripts/generate_binary_build_matrix.py"
    )


def test_a_branch_is_described_with_its_commit() -> None:
    found = find(FACTS.sources, "builder_wheel:release/2.5")
    assert found is not None
    assert describe(found[1], "builder_wheel:release/2.5").startswith(
        "pytorch/builder aec5fb5de2 manywheel/build_cuda.sh"
    )


def test_an_unknown_id_is_none() -> None:
    assert find(FACTS.sources, "hearsay") is None
    assert find(FACTS.sources, "testinfra:two words") is None


def test_every_source_of_every_row_can_be_described() -> None:
    for table in TABLES:
        for row in rows_of(FACTS, table):
            for ref in row.refs:
                found = find(FACTS.sources, ref)
                assert found is not None
                assert describe(found[1], ref), ref
