"""The resolver against an oracle that tries every combination of the facts."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.facts.model import Facts
from tests.support import oracle, oracle_agreement

SEED = 20261122


def test_the_resolver_and_the_oracle_agree(facts: Facts) -> None:
    found = oracle_agreement.compare(120, SEED, facts)
    assert not found.differences, "\n".join(found.differences[:3])
    # Answers and refusals were met, with clashes of one and more constraints.
    assert min(found.answers, found.refusals) > 30
    assert {1, 2} <= set(found.clashes_by_size)


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu": ["7.0"], "cuda": "12.*"},
        {"gpu": ["7.0"], "driver": "595.45.04"},
        {"gpu": ["GTX 1080"], "torch": ">=2.5", "cuda": "12.8"},
        {"gpu": ["H100"], "torch": "1.12.1", "driver": "470.57.02"},
        {"gpu": ["H100"], "torch": "1.12.1", "driver": "535.104.05"},
        {"driver": "570.26"},
        {"driver": "560.35.05"},
        {"driver": "525.60.13", "torch": "2.6"},
        {"os": "rockylinux8", "torch": "2.15"},
        {"torch": "2.5.1"},
        {"torch": "2.15", "platform": "linux-aarch64"},
        {"max_size": "3000MB"},
        {"max_size": "2994MB", "torch": "2.15"},
        {"max_size": "2995MB", "torch": "2.15"},
        {"max_size": "300MB", "cpu": True},
        {"supported_only": True, "torch": "2.13"},
        {"supported_only": True, "python": "3.10"},
        {"supported_only": True, "today": "2027-10-01", "template": "wheels"},
        {"supported_only": True, "today": "2027-09-30", "template": "wheels"},
        {"supported_only": True, "today": "2031-10-01"},
        {"supported_only": True, "source": "conda-forge", "cpu": True},
        {"torch": "2.15", "driver": "535.104.05", "gpu": ["H100"], "allow_forward_compat": True},
        {"torch": "2.15", "driver": "525.60.13", "gpu": ["H100"], "allow_forward_compat": True},
        {"torch": "2.15", "driver": "535.104.05", "gpu": ["H100", "RTX 4090"], "allow_forward_compat": True},
        {"torch": "2.15", "driver": "535.104.05", "gpu": ["9.0"], "allow_forward_compat": True},
        {"torch": "2.15", "driver": "535.104.05", "gpu": ["H100"], "allow_forward_compat": True, "python": "3.10"},
        {"cuda": "12.8", "driver": "470.57.02", "gpu": ["Tesla T4"], "allow_forward_compat": True},
    ],
    ids=str,
)
def test_a_request_that_a_rule_decides(facts: Facts, fields: dict[str, Any]) -> None:
    """Requests at the edges of rules, which random ones meet seldom."""
    assert oracle_agreement.agree(oracle_agreement.resolved(fields, facts), oracle.Oracle(facts).answer(fields))


@pytest.mark.long
def test_the_resolver_and_the_oracle_agree_on_many(facts: Facts) -> None:
    found = oracle_agreement.compare(2000, SEED + 1, facts)
    assert not found.differences, "\n".join(found.differences[:3])
    assert {1, 2, 3} <= set(found.clashes_by_size)


def test_the_oracle_imports_nothing_that_resolves() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in names if name and name.startswith("envkit")} == {"envkit.facts.model"}


def test_an_answer_that_is_not_the_oracles_is_noticed(facts: Facts) -> None:
    """The oracle with facts that lack the newest builds answers otherwise."""
    newest = oracle_agreement.resolved({}, facts)
    assert isinstance(newest, oracle.Answer)
    older = replace(facts, builds=tuple(row for row in facts.builds if row.torch != newest.torch))
    assert oracle_agreement.agree(newest, oracle.Oracle(facts).answer({}))
    assert not oracle_agreement.agree(newest, oracle.Oracle(older).answer({}))


def test_all_smallest_clashes_are_found(facts: Facts) -> None:
    """Three constraints of which any two with torch 1.12.1 clash."""
    fields = {"torch": "1.12.1", "cuda": "12.1", "python": "3.14"}
    found = oracle.Oracle(facts).answer(fields)
    torch, cuda, python = (("--torch", "1.12.1"), ("--cuda", "12.1"), ("--python", "3.14"))
    assert isinstance(found, oracle.Refusal)
    assert {frozenset({torch, cuda}), frozenset({torch, python})} <= found.clashes
    assert all(len(clash) == 2 for clash in found.clashes)
