"""Find texts that install envkit by its name from an index, where the name is someone else's or nobody's."""

import re

_NAME = r"envkit(?:[-_.]gpu)?"
# From a tool to the name within one command: no separator of commands, no comment and no end of a sentence in between.
_WITHIN = r"(?:(?![;&|#`()]|(?<=\w)\.['\"]?\s).)*?"
_INSTALLED = re.compile(
    rf"\b(?:pip3?|uv|pipx|conda|mamba)\b{_WITHIN}\binstall\b{_WITHIN}[\s'\"]{_NAME}"
    r"(?:\[[\w,]*\])?(?:[=<>~!]=[^\s'\"]*)?(?=[\s'\"`)\\]|$)"
)
_RUN = re.compile(rf"\b(?:uvx|pipx run|uv tool run)\s+(?:--\S+\s+)*{_NAME}(?=[\s'\"`)]|$)")
_PINNED = re.compile(rf"(?<![\w/.-]){_NAME}(?:\[[\w,]+\])?[=~<>!]=(?![^\n]*--hash=)")


def by_name(text: str) -> list[str]:
    """Return the lines of a text that install or require envkit by its name."""
    return [line.strip() for line in text.splitlines() if any(one.search(line) for one in (_INSTALLED, _RUN, _PINNED))]
