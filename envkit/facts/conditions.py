"""The `when` of a trap: its valid keys, the syntax of their values, and the test whether a value meets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envkit.facts.tables import SOURCES
from envkit.ground.errors import UsageError
from envkit.ground.platforms import PLATFORMS
from envkit.ground.versions import parse_constraint

VERSION_KEYS = frozenset(
    {"torch", "cuda", "cudnn", "python", "driver", "glibc", "gpu", "image"}
    | {"numpy", "setuptools", "mkl", "triton", "torchvision"}
)
NAME_KEYS: Mapping[str, tuple[str, ...] | None] = {"source": SOURCES, "platform": PLATFORMS, "os": None}
IN_WORDS = "at"  # circumstances in words, which no program can check


def alternatives(text: str) -> tuple[str, ...]:
    """Split a text at " | "."""
    return tuple(part.strip() for part in text.split(" | "))


def check_when(when: Mapping[str, str]) -> Iterator[str]:
    """Yield the errors of a `when`."""
    if not when:
        yield "is empty"
    for name, text in when.items():
        if name == IN_WORDS:
            continue
        if name not in VERSION_KEYS and name not in NAME_KEYS:
            yield f"{name!r} is not a condition"
            continue
        for part in alternatives(text):
            if name in VERSION_KEYS:
                try:
                    parse_constraint(part, name)
                except UsageError:
                    yield f"{name}: {part!r} is not a version constraint"
            elif (allowed := NAME_KEYS[name]) and part not in allowed:
                yield f"{name}: {part!r} is not one of {', '.join(allowed)}"


def concerns(when: Mapping[str, str], name: str, value: str) -> bool:
    """Return whether a trap has a condition on `name` that `value` meets."""
    if name not in when:
        return False
    parts = alternatives(when[name])
    if name in VERSION_KEYS:
        return any(parse_constraint(part, name).allows(value) for part in parts)
    return value in parts
