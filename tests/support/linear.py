"""Check that a regular expression is safe for untrusted logs: its work per character is bounded.

Without unbounded repeats, backreferences and look-around, the number of ways in which an expression can match at one
position depends only on the expression. If it is below `MOST_WAYS`, a line needs at most that many steps per character,
whatever it contains.
"""

from __future__ import annotations

import importlib
from typing import Any

MOST_WAYS = 600
_MOST_REPEATS = 200
_parser: Any = importlib.import_module("re._parser")  # the standard library's parser has no public name
_names: Any = importlib.import_module("re._constants")


def ways(text: str) -> int:
    """Return in how many ways an expression can match at one position.

    Raises:
        AssertionError: there is no bound, or the expression uses something else than the supported operators.
    """
    return _ways(_parser.parse(text), text)


def _ways(tree: Any, text: str) -> int:
    product = 1
    for operator, argument in tree:
        product *= _ways_of(operator, argument, text)
    return product


def _ways_of(operator: Any, argument: Any, text: str) -> int:
    if operator in (_names.LITERAL, _names.NOT_LITERAL, _names.ANY, _names.IN, _names.AT):
        return 1
    if operator is _names.SUBPATTERN:
        return _ways(argument[3], text)
    if operator is _names.BRANCH:
        return sum(_ways(branch, text) for branch in argument[1])
    assert operator in (_names.MAX_REPEAT, _names.MIN_REPEAT), f"{text!r} uses {operator}"
    least, most, inner = argument
    assert most <= _MOST_REPEATS, f"{text!r} repeats without a bound; write {{0,N}}"
    inside = _ways(inner, text)
    return int(sum(inside**count for count in range(int(least), int(most) + 1)))
