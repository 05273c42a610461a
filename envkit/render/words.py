r"""Parse the words of an instruction as BuildKit does: flags, `name=value` words, quotes and escapes.

BuildKit has three parsers with different rules: flags are unquoted byte by byte, words keep their quotes when they are
split, and a word's quotes, escapes and `$name` are resolved last. A lint has to follow all three; otherwise
`'LD_PRELOAD'=x`, `LD_PREL\OAD=x` and `--sec"uri"ty=insecure` are not recognized.
"""

from __future__ import annotations

from collections.abc import Mapping

_MOST = 128 << 10  # MAX_ARG_STRLEN, which includes variables of the environment (execve(2))


class UnreadableError(ValueError):
    """A text that builders refuse or that this parser does not support; the message says why."""


def flags(text: str) -> tuple[tuple[str, ...], str]:
    """Return the leading `--name=value` words of a text, unquoted, and the rest of the text."""
    # BuildKit goes byte by byte here: a byte 0x85 or 0xA0 within a UTF-8 character ends a word.
    line = text.encode("utf-8", "surrogatepass").decode("latin-1")
    words: list[str] = []
    position = 0
    while True:
        while position < len(line) and line[position].isspace():
            position += 1
        if not line.startswith("--", position):
            return tuple(words), _characters(line[position:])
        word, position = _flag(line, position)
        if word == "--":
            return tuple(words), _characters(line[position:])
        words.append(_characters(word))


def _characters(line: str) -> str:
    return line.encode("latin-1").decode("utf-8", "replace")


def _flag(line: str, position: int) -> tuple[str, int]:
    word, quote = "", ""
    while position < len(line):
        char = line[position]
        position += 1
        if char == "\\":
            word += line[position : position + 1]
            position += 1
        elif quote:
            quote, word = ("", word) if char == quote else (quote, word + char)
        elif char.isspace():
            break
        elif char in "'\"":
            quote = char
        else:
            word += char
    return word, position


def split(text: str) -> list[str]:
    """Split a text into words and keep their quotes and escapes; an unclosed quote extends to the end."""
    words: list[str] = []
    word, quote, inside = "", "", False
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if not inside and char.isspace():
            continue
        inside = True
        if char == "\\" and quote != "'":
            if position < len(text):  # BuildKit drops a backslash at the end of the text
                word += char + text[position]
                position += 1
            continue
        if not quote and char.isspace():
            words.append(word)
            word, inside = "", False
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        word += char
    return [*words, word] if inside and word else words


def resolve(word: str, variables: Mapping[str, str] | None) -> str:
    """Remove a word's quotes and escapes and replace `$name` and `${name}`.

    Args:
        word: from `split`.
        variables: values by name; an unknown name stays as written. None = refuse every variable.

    Raises:
        UnreadableError: a quote is not closed, or a `$` is not followed by a plain name.
    """
    result, quote = "", ""
    position = 0
    while position < len(word):
        char = word[position]
        position += 1
        if quote == "'":
            quote, result = ("", result) if char == "'" else (quote, result + char)
        elif char == "$":
            value, position = _variable(word, position, variables)
            result += value
            if len(result) > _MOST:
                raise UnreadableError(f"a value of more than {_MOST} characters, which Linux does not take")
        elif char == "\\":
            follows = word[position : position + 1]
            # In double quotes only these three can be escaped; before any other character the backslash is kept.
            result += follows if not quote or follows in ('"', "$", "\\", "") else char + follows
            position += 1
        elif char == quote:
            quote = ""
        elif char in "'\"" and not quote:
            quote = char
        else:
            result += char
    if quote:
        raise UnreadableError(f"a {quote} is not closed")
    return result


def _variable(word: str, position: int, variables: Mapping[str, str] | None) -> tuple[str, int]:
    start = position
    braces = word[position : position + 1] == "{"
    position += braces
    begin = position
    while position < len(word) and word[position].isascii() and (word[position].isalnum() or word[position] == "_"):
        position += 1
    name = word[begin:position]
    # `${name:-word}` and the like would need a shell's grammar; `$1`, `$@` and a single `$` have no value in a build.
    if not name or name[0].isdigit() or (braces and word[position : position + 1] != "}"):
        raise UnreadableError("a $ without a plain variable name")
    if not braces and position < len(word) and word[position].isalpha():
        raise UnreadableError("a variable name with letters other than a to z")
    position += braces
    if variables is None:
        raise UnreadableError("a variable inside a name")
    try:
        return variables[name], position
    except KeyError:
        return f"${word[start:position]}", position


def pairs(text: str, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the resolved pairs of an ENV or LABEL.

    Raises:
        UnreadableError: a word is not `key=value` (as in the legacy form `ENV key value`), a name is empty or contains
            a variable, or a word cannot be resolved.
    """
    resolved = []
    for word in split(text):
        name, equals, value = word.partition("=")
        if not equals:
            raise UnreadableError(f"{word[:60]} is not key=value")
        plain = resolve(name, None)
        if not plain or not plain.isprintable() or "=" in plain or " " in plain:
            raise UnreadableError(f"{name[:60]!r} is not a name")
        resolved.append((plain, resolve(value, variables)))
    if not resolved:
        raise UnreadableError("it has no arguments")
    return resolved
