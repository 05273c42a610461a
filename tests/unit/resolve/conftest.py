import shlex
from collections.abc import Callable
from typing import Any

import pytest

from envkit.facts.load import load
from envkit.facts.model import Facts
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.model import Conflict, Request, Resolution
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve


def fields_of(line: str) -> dict[str, Any]:
    """A typed command line without the verb -> the fields of a request."""
    words: list[str] = shlex.split(line)
    fields: dict[str, Any] = {}
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        if name in ("cpu", "supported_only", "allow_forward_compat"):
            fields[name] = True
        elif name == "gpu":
            fields.setdefault("gpu", []).append(words.pop(0))
        else:
            fields[name] = words.pop(0)
    return fields


@pytest.fixture(scope="session")
def facts() -> Facts:
    return load()


@pytest.fixture(scope="session")
def read(facts: Facts) -> Callable[[str], Request]:
    return lambda line: parse(fields_of(line), facts)


@pytest.fixture(scope="session")
def answer(facts: Facts) -> Callable[[str], Resolution]:
    return lambda line: resolve(parse(fields_of(line), facts), facts)


@pytest.fixture(scope="session")
def conflict(facts: Facts) -> Callable[[str], Conflict]:
    def find(line: str) -> Conflict:
        with pytest.raises(Unresolvable) as caught:
            resolve(parse(fields_of(line), facts), facts)
        return caught.value.conflict

    return find
