"""Read shell code into the commands that it runs, without running it.

What follows is the reading of POSIX sh, as far as the commands of a Dockerfile need it: quotes, comments, heredocs,
variables and control flow. Two things are never guessed. A word whose text depends on something that is known only when
the code runs has no value. A command that may not run (in an `if`, in a loop, after `||` or a test) has a doubt, and so
has everything after code that cannot be read.
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_REDIRECT = re.compile(r"(?:\d*(?:<<<|<<-?|<&|<>|<|>>|>\||>&|>)|&>>?)")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
# `${NAME}`, `${NAME-default}`, `${NAME:-default}`; a default with quotes or expansions is not read.
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:?-)([^\"'`$\\{}]*))?")
# What gives a variable another value than that of ARG and ENV: `A=`, `read A B`, `unset A`, `for A in`.
_CHANGED = re.compile(
    r"(?:^|[\s;&|(])(?:([A-Za-z_][A-Za-z0-9_]*)\+?=|(?:for|select)\s+(\w+)|(?:read|unset|getopts)\s+([^;&|\n]*))"
)
_BACKTICKS = re.compile(r"`(?:[^`\\]|\\.)*`", re.DOTALL)
_SPECIAL = frozenset("0123456789@*#?$!-")
_TESTS = frozenset(["[", "[[", "test", "grep", "egrep", "fgrep", "which", "type", "hash", "cmp", "diff", "false"])
_ENDS = frozenset(["exit", "return", "exec", "break", "continue"])
_SHELLS = frozenset(["sh", "bash", "dash", "ash", "zsh", "ksh"])
_MAX_DEPTH = 8  # of `sh -c` in `sh -c`, and of quotes in expansions in quotes
_FAILED = "it runs only if the command before it fails"


class _UnreadableError(Exception):
    """Code that this reader does not know; the message says what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word of a command."""

    text: str  # as written
    value: str | None  # None = known only when the code runs
    start: str = ""  # the known characters before the unknown ones
    single: bool = True  # exactly one word, whatever its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A simple command."""

    text: str  # as written, without its heredocs
    words: tuple[Word, ...] = ()
    assignments: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[str, ...] = ()  # as written: '>=2.1'
    document: str | None = None  # its standard input, from a heredoc
    doubt: str = ""  # why it may not run; empty = it runs
    never: bool = False  # a test whose words are all known keeps it from running
    nested: bool = False  # in a subshell, which has its own working folder

    @property
    def values(self) -> tuple[str, ...]:
        """The leading words that are known."""
        unknown = next((at for at, word in enumerate(self.words) if word.value is None), len(self.words))
        return tuple(word.value for word in self.words[:unknown] if word.value is not None)


def commands(
    script: str, variables: Mapping[str, str], documents: Sequence[str] = (), *, _depth: int = 0
) -> tuple[Command, ...]:
    """Return the commands of a script in their order.

    A heredoc without a command (`RUN <<EOF`), and the code of `sh -c` or of a shell's heredoc, count as part of the
    script.

    Args:
        script: the code.
        variables: of the environment, by name; every other variable is unknown.
        documents: heredocs that were taken out of the script, in their order.
    """
    changed = {
        name for match in _CHANGED.finditer(script) for name in _NAME.findall(" ".join(filter(None, match.groups())))
    }
    known = {name: value for name, value in variables.items() if name not in changed}
    found = _Parser(script, known, frozenset(changed), documents).commands()
    return tuple(inner for command in found for inner in _opened(command, variables, _depth))


def of_words(words: Sequence[str]) -> Command:
    """Return the command of a list of words, which no shell reads: `RUN ["pip", "install", "x"]`."""
    return Command(text=" ".join(words), words=tuple(Word(text=word, value=word) for word in words))


def is_shell(words: Sequence[str]) -> bool:
    """Return whether a command of a SHELL instruction runs a shell: `["conda", "run", "-n", "x", "bash", "-c"]`."""
    return any(posixpath.basename(word) in _SHELLS for word in words)


def _opened(command: Command, variables: Mapping[str, str], depth: int) -> Iterator[Command]:
    """Yield the commands of a command that is a shell with code, otherwise the command itself."""
    code = _code(command)
    if code is None or depth >= _MAX_DEPTH:
        yield command
        return
    for inner in commands(code, variables, _depth=depth + 1):
        yield replace(inner, doubt=command.doubt or inner.doubt, nested=True) if command.words else inner


def _code(command: Command) -> str | None:
    words, values = command.words, command.values
    if not words:
        first = (command.document or "").split("\n", 1)[0]
        # `#!/bin/bash -e`, `#!/usr/bin/env bash`
        return command.document if not first.startswith("#!") or is_shell(first[2:].split()[:2]) else None
    if len(values) != len(words) or posixpath.basename(values[0]) not in _SHELLS:
        return None
    flags = [value for value in values[1:] if value.startswith("-")]
    if command.document is not None:
        return command.document if len(flags) == len(values) - 1 and not any("c" in x for x in flags) else None
    at = next((at for at, value in enumerate(values) if re.fullmatch(r"-[a-z]*c[a-z]*", value)), None)
    return values[at + 1] if at is not None and at + 1 < len(values) and "-o" not in values[:at] else None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # 'word', 'operator', 'redirect'
    start: int
    end: int
    text: str
    fields: tuple[Word, ...] = ()  # of a word, after its variables are expanded
    plain: bool = False  # without quotes and expansions


@dataclass(slots=True)
class _Frame:
    """A compound command that is open."""

    kind: str
    start: int = 0  # its position in the code
    commands: int = 0  # those before it
    doubt: str = ""  # of all its commands
    guard: str = ""  # of the rest of the list `a && b || c`
    skipped: bool | None = None  # the status with which the rest of the list is skipped; None: it is not
    never: bool = False  # its commands do not run
    # Of an if: the first command of the condition that is read, whether a branch before ran, and whether that is known.
    condition: int = 0
    is_first: bool = True  # the condition that always runs is being read
    ran: bool = False
    known: bool = True


class _Parser:
    """Turns tokens into commands, with the doubts of the compound commands around them."""

    def __init__(
        self, text: str, variables: Mapping[str, str], changed: frozenset[str], documents: Sequence[str]
    ) -> None:
        self._text = text
        self._lexer = _Lexer(text, variables, changed, documents)
        self._frames = [_Frame("script")]
        self._commands: list[Command] = []
        self._pending: list[_Token] = []
        self._skips = ""  # 'header' of a loop, 'pattern' of a case
        self._was_test = self._negated = self._closed = False
        self._result: bool | None = None  # of the last command, if it is a test whose words are known
        self._over = ""
        self._at = 0  # the position of the current token

    def commands(self) -> list[Command]:
        position = 0
        try:
            for token in self._lexer.tokens():
                position = self._pending[0].start if self._pending else token.start
                self._at = token.start
                self._take(token)
            self._finish()
            self._check_end()
        except _UnreadableError as error:
            if len(self._frames) > 1:  # a shell runs nothing of a compound command that it cannot read
                position, first = self._frames[1].start, self._frames[1].commands
                self._commands = self._commands[:first]
            rest = " ".join(self._text[position:].split())
            self._commands.append(Command(text=rest, doubt=f"envkit cannot read {error}"))
        return self._commands

    def _check_end(self) -> None:
        if len(self._frames) > 1:
            raise _UnreadableError(f"a {self._frames[1].kind} without its end")

    def _take(self, token: _Token) -> None:
        if self._skips and not self._skipped(token):
            return
        if token.kind == "operator":
            self._operator(token.text)
        elif not self._pending and token.plain and self._reserved(token.text):
            return
        else:
            self._pending.append(token)

    def _skipped(self, token: _Token) -> bool:
        """Leave the header of a loop or the pattern of a case; return whether the token is read as usual."""
        if self._skips == "pattern":
            if token.plain and token.text == "esac":
                self._skips = ""
                return True
            self._skips = "" if token.text == ")" else self._skips
            return False
        if token.text == "(":
            raise _UnreadableError("a loop over a calculation")
        if token.text in (";", "\n") or (token.plain and token.text == "do"):
            self._skips = ""
            return token.text == "do"
        return False

    def _reserved(self, word: str) -> bool:
        frame = self._frames[-1]
        if word in ("if", "while", "until", "for", "select", "case"):
            kind = word if word in ("if", "case") else "loop"
            doubt = "it is in a loop" if kind == "loop" else f"whether it runs depends on {_named(kind)}"
            self._open(kind, doubt)
            self._skips = {"for": "header", "select": "header", "case": "pattern"}.get(word, "")
        elif word in _INNER:
            if frame.kind != _INNER[word]:
                raise _UnreadableError(f"{word!r} here")
            frame.guard, frame.skipped = "", None
            if frame.kind == "if":
                self._branch(frame, word)
        elif word in _CLOSING:
            self._close(_CLOSING[word], word)
        elif word == "{":
            self._open("group")
        elif word in ("function", "coproc"):
            raise _UnreadableError("a function")
        elif word in ("!", "time"):
            self._negated = self._negated or word == "!"
        else:
            return False
        return True

    def _branch(self, frame: _Frame, word: str) -> None:
        """Begin a branch of an if, or the condition of the next one, with what is known of whether it runs."""
        if word == "then":
            frame.is_first = False
            is_test = len(self._commands) - frame.condition == 1
            holds = self._result if is_test else None
            frame.known = frame.known and (frame.ran or holds is not None)
            frame.never = frame.ran or (frame.known and holds is False)
            frame.ran = frame.ran or (frame.known and holds is True)
        else:
            frame.never = frame.ran
        # The condition of an elif is a command as well: it runs if no branch before it did.
        frame.condition = len(self._commands)
        frame.doubt = "" if frame.known else f"whether it runs depends on {_named('if')}"

    def _open(self, kind: str, doubt: str = "") -> None:
        at = len(self._commands)
        self._frames.append(_Frame(kind, start=self._at, commands=at, condition=at, doubt=doubt))

    def _close(self, kind: str, word: str) -> None:
        if self._frames[-1].kind != kind or len(self._frames) == 1:
            raise _UnreadableError(f"{word!r} here")
        self._frames.pop()
        self._was_test = self._was_test and kind in ("group", "subshell")
        self._closed = True

    def _operator(self, operator: str) -> None:
        # `[[ a && b ]]` is one command.
        if self._pending and self._pending[0].text == "[[" and self._pending[-1].text != "]]":
            if operator in (";", "\n"):
                raise _UnreadableError("a [[ without its end")
            return
        if operator == "(":
            if self._pending:
                raise _UnreadableError("a function or a list")
            self._open("subshell")
            return
        self._finish()
        self._closed = False
        frame = self._frames[-1]
        if operator == ")":
            self._close("subshell", ")")
        elif operator in ("&&", "||"):
            self._listed(frame, operator)
        elif operator in (";;", ";&", ";;&"):
            if frame.kind != "case":
                raise _UnreadableError(f"{operator!r} here")
            frame.guard, frame.skipped, self._skips = "", None, "pattern"
        elif operator not in ("|", "|&"):
            frame.guard, frame.skipped = "", None

    def _listed(self, frame: _Frame, operator: str) -> None:
        """Go on in a list: `&&` runs what follows if the status before is 0, `||` if it is not."""
        status = frame.skipped if frame.skipped is not None else self._result if self._was_test else None
        if status is not None and not frame.guard:
            frame.skipped = None if status == (operator == "&&") else status
        elif operator == "||":
            frame.guard = _FAILED
        else:
            if frame.guard == _FAILED:
                frame.guard = ""
            if self._was_test:
                frame.guard = frame.guard or "whether it runs depends on the test before it"

    def _finish(self) -> None:
        """Add the command of the pending tokens."""
        tokens, self._pending = self._pending, []
        negated, self._negated = self._negated, False
        if not tokens:
            return
        redirects = tuple(token.text for token in tokens if token.kind == "redirect" and token.fields)
        documents = [token for token in tokens if token.kind == "redirect" and not token.fields]
        assignments: list[tuple[str, Word]] = []
        words: list[Word] = []
        for token in tokens:
            match = _ASSIGNMENT.match(token.text)
            if token.kind == "word" and match and not words:
                first = token.fields[0] if token.fields else Word(text=token.text, value=match.group())
                value = None if first.value is None else first.value.partition("=")[2]
                assignments.append((match[1], replace(first, value=value)))
            elif token.kind == "word":
                words += token.fields
        if not words and not assignments and (self._closed or not documents):
            return  # redirections of a compound command
        doubt = self._over or next(
            (frame.doubt or frame.guard for frame in self._frames if frame.doubt or frame.guard), ""
        )
        command = Command(
            text=" ".join(re.sub(r"\\\n", " ", self._text[tokens[0].start : tokens[-1].end]).split()),
            words=tuple(words),
            assignments=tuple(assignments),
            redirects=redirects,
            document=self._lexer.bodies.get(documents[-1].start) if documents else None,
            doubt=doubt,
            never=any(frame.never or frame.skipped is not None for frame in self._frames),
            nested=any(frame.kind == "subshell" for frame in self._frames),
        )
        first_word = command.values[0] if command.values else ""
        self._was_test = negated or posixpath.basename(first_word) in _TESTS or command.values[:2] == ("command", "-v")
        unsure = any(
            (frame.doubt and not (frame.kind == "if" and frame.is_first)) or frame.guard for frame in self._frames
        )
        result = None if self._over or unsure or command.never else _tested(command)
        self._result = None if result is None else result != negated
        # `exec` without a command only redirects.
        if first_word in _ENDS and not doubt and not command.never and (first_word != "exec" or len(words) > 1):
            self._over = f"{first_word} ends the commands before it"
        self._commands.append(command)


def _tested(command: Command) -> bool | None:
    """Return the result of a test that compares known words: `[ "$X" = true ]`, `[[ -n $Y ]]`; None if it does not."""
    values = command.values
    if len(values) != len(command.words) or command.redirects or not values:
        return None
    closing = {"[": "]", "[[": "]]", "test": ""}.get(values[0])
    if closing is None or (closing and values[-1] != closing):
        return None
    words = values[1:-1] if closing else values[1:]
    if len(words) == 2 and words[0] in ("-n", "-z"):  # noqa: PLR2004 - an operator and a word
        return bool(words[1]) == (words[0] == "-n")
    if len(words) == 3 and words[1] in ("=", "==", "!="):  # noqa: PLR2004 - two words and an operator
        # On the right of [[ ]], a word without quotes is a pattern.
        is_pattern = values[0] == "[[" and any(char in command.words[3].text for char in "*?[")
        return None if is_pattern else (words[0] == words[2]) == (words[1] != "!=")
    if len(words) == 1:
        return bool(words[0])
    return None


_INNER = {"then": "if", "elif": "if", "else": "if", "do": "loop"}
_CLOSING = {"fi": "if", "done": "loop", "esac": "case", "}": "group"}


def _named(kind: str) -> str:
    return "an if" if kind == "if" else f"a {kind}"


@dataclass(slots=True)
class _Expansion:
    """The parts of a word while it is read: known texts, and None for unknown ones, each in quotes or not."""

    parts: list[tuple[str | None, bool]] = field(default_factory=list)
    plain: bool = True

    def fields(self, text: str) -> tuple[Word, ...]:
        """Return the words that a shell makes of it."""
        start = "".join(value for value, _ in self.parts[: self._unknown()] if value)
        if self._unknown() < len(self.parts):
            single = all(quoted for value, quoted in self.parts if value is None)
            return (Word(text=text, value=None, start=start, single=single),)
        fields, whole = [""], False
        for value, quoted in self.parts:
            pieces = [value or ""] if quoted else re.split(r"[ \t\n]+", value or "")
            whole = whole or quoted or any(pieces)
            fields[-1] += pieces[0]
            fields += pieces[1:]
        if not whole:
            return ()
        quoted_empty = any(quoted for _, quoted in self.parts)
        return tuple(Word(text=text, value=value) for value in fields if value or (quoted_empty and len(fields) == 1))

    def _unknown(self) -> int:
        return next((at for at, (value, _) in enumerate(self.parts) if value is None), len(self.parts))


class _Lexer:
    """Splits code into words, operators and redirections."""

    def __init__(
        self, text: str, variables: Mapping[str, str], changed: frozenset[str], documents: Sequence[str]
    ) -> None:
        self._text, self._variables, self._changed = text, variables, changed
        self._documents = deque(documents)
        self._announced: list[tuple[int, str, bool]] = []  # heredocs whose lines follow: token, name, tabs
        self.bodies: dict[int, str] = {}  # of heredocs, by the position of their redirection
        self._depth = 0  # of quotes in expansions in quotes

    def tokens(self) -> Iterator[_Token]:
        text, at, begins = self._text, 0, True
        while at < len(text):
            if blank := _BLANKS.match(text, at):
                at, begins = blank.end(), True
                continue
            if text[at] == "#" and begins:
                end = text.find("\n", at)
                at = end if end >= 0 else len(text)
                continue
            redirect = _REDIRECT.match(text, at) if begins or text[at] in "<>&" else None
            if redirect and not text.startswith(("<(", ">("), at):
                token = self._redirect(at, redirect.group(), redirect.end())
                yield token
                at, begins = token.end, False
                continue
            operator = _OPERATOR.match(text, at)
            if operator:
                start, at, begins = at, operator.end(), True
                if operator.group() == "\n":
                    at = self._bodies(at)
                yield _Token("operator", start, operator.end(), operator.group())
                continue
            token = self._word(at)
            yield token
            at, begins = token.end, False

    def _redirect(self, at: int, operator: str, end: int) -> _Token:
        blank = _BLANKS.match(self._text, end)
        target = self._word(blank.end() if blank else end)
        if target.end == target.start:
            raise _UnreadableError(f"{operator!r} without a file")
        text = self._text[at : target.end]
        if operator.lstrip("0123456789") not in ("<<", "<<-"):
            return _Token("redirect", at, target.end, text, target.fields or (Word(text=text, value=None),))
        if self._documents:
            self.bodies[at] = self._documents.popleft()
        else:
            name = re.sub(r"[\"'\\]", "", target.text)
            self._announced.append((at, name, operator.endswith("-")))
        return _Token("redirect", at, target.end, text)

    def _bodies(self, at: int) -> int:
        """Read the heredocs of a line that has ended; return the position after them."""
        for token, name, tabs in self._announced:
            lines: list[str] = []
            while True:
                if at >= len(self._text):
                    raise _UnreadableError(f"the heredoc {name}, which has no end")
                end = self._text.find("\n", at)
                line = self._text[at : end if end >= 0 else len(self._text)]
                at = end + 1 if end >= 0 else len(self._text)
                line = line.lstrip("\t") if tabs else line
                if line == name:
                    break
                lines.append(line)
            self.bodies[token] = "\n".join(lines)
        self._announced = []
        return at

    def _word(self, start: int) -> _Token:
        text, at, made = self._text, start, _Expansion()
        while at < len(text):
            char = text[at]
            if char in "<>" and text.startswith("(", at + 1) and at == start:
                at, made.plain = self._closing(at + 2), False
                made.parts.append((None, True))
            elif char in " \t\n;&|()<>":
                break
            elif char == "\\":
                if not text.startswith("\n", at + 1):
                    made.parts.append((text[at + 1 : at + 2], True))
                    made.plain = False
                at += 2
            elif char in "'\"":
                at, made.plain = (self._single if char == "'" else self._double)(at + 1, made), False
            elif char in "$`":
                at, made.plain = self._expand(at, made, quoted=False), False
            else:
                made.parts.append((char, True))
                at += 1
        whole = text[start:at]
        return _Token("word", start, at, whole, made.fields(whole), made.plain)

    def _single(self, at: int, made: _Expansion) -> int:
        end = self._text.find("'", at)
        if end < 0:
            raise _UnreadableError("a ' without its end")
        made.parts.append((self._text[at:end], True))
        return end + 1

    def _double(self, at: int, made: _Expansion) -> int:
        text = self._text
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnreadableError("quotes this deep")
        made.parts.append(("", True))
        while at < len(text) and text[at] != '"':
            if text[at] in "$`":
                at = self._expand(at, made, quoted=True)
                continue
            # In double quotes a backslash is kept before any other character.
            escapes = text[at] == "\\" and text[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n")
            at += escapes
            made.parts.append(("" if escapes and text[at] == "\n" else text[at], True))
            at += 1
        if at >= len(text):
            raise _UnreadableError('a " without its end')
        self._depth -= 1
        return at + 1

    def _expand(self, at: int, made: _Expansion, *, quoted: bool) -> int:
        """Read an expansion, which begins with $ or a backtick; return the position after it."""
        text = self._text
        if text[at] == "`" or text[at + 1 : at + 2] in ("(", "{"):
            value, end = self._bracketed(at)
            made.parts.append((value, quoted))
        elif not quoted and text.startswith("'", at + 1):
            end = self._single(at + 2, made)
            made.parts += [(None, True)] if "\\" in text[at:end] else []
        elif not quoted and text.startswith('"', at + 1):
            end = self._double(at + 2, made)
        elif name := _NAME.match(text, at + 1):
            end = name.end()
            made.parts.append((self._value(name.group(), None, None), quoted))
        else:
            is_special = text[at + 1 : at + 2] in _SPECIAL
            end = at + 1 + is_special
            made.parts.append((None, quoted) if is_special else ("$", True))
        return end

    def _bracketed(self, at: int) -> tuple[str | None, int]:
        """Return the value of `${NAME}`, `$(code)` or code in backticks, and the position after it."""
        text = self._text
        if text[at] == "`":
            end = _BACKTICKS.match(text, at)
            if end is None:
                raise _UnreadableError("a ` without its end")
            return None, end.end()
        if text[at + 1] == "(":
            return None, self._closing(at + 2)
        brace = text.find("}", at)
        braced = _BRACED.fullmatch(text, at + 2, brace) if brace >= 0 else None
        if braced is None:
            return None, self._closing(at + 2, "{", "}")
        return self._value(*braced.groups()), brace + 1

    def _value(self, name: str, sign: str | None, default: str | None) -> str | None:
        value = self._variables.get(name)
        if value is None:
            return None if name in self._changed else default
        return default if sign == ":-" and not value else value

    def _closing(self, at: int, opening: str = "(", closing: str = ")") -> int:
        """Return the position after the bracket that closes an open one; quotes inside it are skipped."""
        depth, text = 1, self._text
        while at < len(text):
            char = text[at]
            at += 1
            if char == "\\":
                at += 1
            elif char == "'":
                at = self._single(at, _Expansion())
            elif char == '"':
                at = self._double(at, _Expansion())
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if not depth:
                    return at
        raise _UnreadableError(f"a {opening} without its end")
