"""Compare versions and match them against constraints.

Versions are texts: the dotted numbers of torch, CUDA, cuDNN, Python and NVIDIA drivers, with an optional local part
(`2.7.1+cu126`). They are never converted to floats, so 3.10 stays 3.10.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from envkit.ground.errors import UsageError

# Parts are short runs of ASCII digits: Python does not parse integers of thousands of digits.
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})*"
_PLAIN = re.compile(rf"{_NUMBER}[a-z]?(?:\+[A-Za-z0-9.]+)?")
_PREFIX = re.compile(rf"({_NUMBER})\.\*")
_CLAUSE = re.compile(rf"(==|!=|<=|>=|<|>|~=)\s*({_NUMBER})(\.\*)?")
_LEADING = re.compile(_NUMBER)


@lru_cache(maxsize=4096)
def key(version: str) -> tuple[int, ...]:
    """Return the sort key of a version: its release numbers, without a local part or trailing letter.

    Raises:
        UsageError: the text does not start with a dotted number.
    """
    match = _LEADING.match(version)
    if match is None:
        raise UsageError(f"{version!r} is not a version", hint="write a dotted number such as 12.6 or 2.7.1")
    numbers = [int(part) for part in match.group().split(".")]
    # 12.6 and 12.6.0 are the same version (PEP 440).
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def build_key(version: str) -> tuple[tuple[int, ...], int]:
    """Return the sort key of a version with a build number: `26.5.3-1`."""
    release, _, build = version.partition("-")
    return key(release), int(build or 0)


def minor(version: str) -> str:
    """Return the major and minor part: `12.6.3` -> `12.6`, `9` -> `9.0`."""
    return ".".join([*version.split("+", maxsplit=1)[0].split("."), "0"][:2])


def major(version: str) -> int:
    """Return the major part as a number."""
    return key(version)[0]


def is_version(text: str) -> bool:
    """Return whether a text is a plain version, without operators."""
    return _PLAIN.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on one version: `11.8`, `2.7.*` or `>=12.1,<13`.

    A plain version matches itself and every version that is more detailed: `2.7` matches 2.7.1, `2.7.1` only itself.
    """

    text: str
    clauses: tuple[tuple[str, str], ...]

    def allows(self, version: str) -> bool:
        """Return whether `version` satisfies every clause."""
        return all(_holds(operator, wanted, version) for operator, wanted in self.clauses)

    def __str__(self) -> str:
        return self.text


def parse_constraint(text: str, what: str) -> Constraint:
    """Parse a constraint; `what` names it in errors (`--cuda`, `request.cuda`).

    Raises:
        UsageError: the text has none of the three forms.
    """
    stripped = text.strip()
    if _PLAIN.fullmatch(stripped):
        return Constraint(stripped, (("=", stripped.split("+")[0].rstrip("abcdefghijklmnopqrstuvwxyz")),))
    prefix = _PREFIX.fullmatch(stripped)
    if prefix:
        return Constraint(stripped, (("=", prefix.group(1)),))
    clauses: list[tuple[str, str]] = []
    for part in stripped.split(","):
        clause = _CLAUSE.fullmatch(part.strip())
        if clause is None or not _sensible(*clause.groups()):
            raise UsageError(
                f"{what}: {text!r} is not a version",
                hint="write an exact version (11.8), a prefix (2.7.*) or a specifier ('>=12.1,<13')",
            )
        operator, number, star = clause.groups()
        if operator == "==":
            operator = "=" if star else "=="
        elif operator == "!=" and star:
            operator = "!=*"
        clauses.append((operator, number))
    return Constraint(stripped, tuple(clauses))


_Release = tuple[int, ...]

# operator -> test of (sort key of the version, sort key of the clause, numbers of the clause as written)
_OPERATORS: dict[str, Callable[[_Release, _Release, _Release], bool]] = {
    "=": lambda have, _, raw: _is_prefix(raw, have),
    "==": lambda have, want, _: have == want,
    "!=": lambda have, want, _: have != want,
    "!=*": lambda have, _, raw: not _is_prefix(raw, have),
    ">=": lambda have, want, _: have >= want,
    "<=": lambda have, want, _: have <= want,
    ">": lambda have, want, _: have > want,
    "<": lambda have, want, _: have < want,
    "~=": lambda have, want, raw: have >= want and _is_prefix(raw[:-1], have),
}


def _sensible(operator: str, number: str, star: str | None) -> bool:
    if star:
        return operator in ("==", "!=")
    return operator != "~=" or "." in number  # PEP 440 does not allow ~=2


def _holds(operator: str, wanted: str, version: str) -> bool:
    raw = tuple(int(part) for part in wanted.split("."))
    return _OPERATORS[operator](key(version), key(wanted), raw)


def _is_prefix(wanted: _Release, have: _Release) -> bool:
    # `2.7.0` also allows 2.7, whose key has lost its zeros.
    padded = have + (0,) * (len(wanted) - len(have))
    return padded[: len(wanted)] == wanted
