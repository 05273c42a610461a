"""Compare the resolver with the oracle on random requests."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from envkit.facts.model import Facts
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve
from tests.support.oracle import Answer, Oracle, Refusal
from tests.support.random_requests import random_facts, random_fields

PER_FACTS = 10  # requests per set of facts


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts of the requests, and those on which resolver and oracle disagree."""

    answers: int
    refusals: int
    clashes_by_size: dict[int, int]
    differences: tuple[str, ...]  # each with the request and both answers


def compare(requests: int, seed: int, shipped: Facts) -> Agreement:
    """Answer random requests with both, some of them with facts that lack rows."""
    sizes: Counter[int] = Counter()
    differences = []
    answers = 0
    for number, (facts, oracle, fields) in enumerate(_asked(requests, seed, shipped)):
        ours, other = resolved(fields, facts), oracle.answer(fields)
        if isinstance(other, Refusal):
            sizes[len(next(iter(other.clashes)))] += 1
        answers += isinstance(other, Answer)
        if not agree(ours, other):
            differences.append(f"{number}: {fields}\n  resolver: {ours}\n  oracle:   {other}")
    return Agreement(answers, sum(sizes.values()), dict(sorted(sizes.items())), tuple(differences))


def _asked(requests: int, seed: int, shipped: Facts) -> Iterator[tuple[Facts, Oracle, dict[str, Any]]]:
    random = Random(seed)
    facts, oracle = shipped, Oracle(shipped)
    for number in range(requests):
        if number % PER_FACTS == 0:
            facts = random_facts(random, shipped)
            oracle = Oracle(facts)
        fields = random_fields(random, shipped)
        if any(name in row.arm_host for row in shipped.gpus for name in fields.get("gpu", ())):
            # A typed platform that contradicts a product is refused before the rules.
            fields = {name: value for name, value in fields.items() if (name, value) != ("platform", "linux-64")}
        yield facts, oracle, fields


def resolved(fields: dict[str, Any], facts: Facts) -> Answer | Refusal:
    """Return the resolver's answer as the oracle's type. A refusal has the only conflict that the resolver names."""
    try:
        resolution = resolve(parse(fields, facts), facts)
    except Unresolvable as error:
        return Refusal(frozenset({frozenset(tuple(shlex.split(text)) for text in error.conflict.clash)}))
    driver = resolution.driver
    return Answer(
        torch=resolution.torch,
        cuda=resolution.cuda,
        source=resolution.source,
        platform=resolution.platform,
        python=resolution.python,
        mode=driver.mode if driver else None,
        native=driver.native if driver else None,
        minimum=driver.minimum if driver else None,
        package=driver.package if driver else None,
        support=resolution.support.level if resolution.support else None,
        torchvision=resolution.torchvision,
        torchaudio=resolution.torchaudio,
    )


def agree(ours: Answer | Refusal, other: Answer | Refusal) -> bool:
    """Return whether both answers are equal. The resolver may name any of the smallest conflicts."""
    if isinstance(ours, Refusal) and isinstance(other, Refusal):
        return ours.clashes <= other.clashes
    return ours == other
