"""Dockerfiles in unusual forms, made from a seed, which a linter may misread."""

import random
from collections.abc import Callable

START = """\
FROM scratch
ENV A="one" B="two words"
LABEL "com.example.a"="x y"
USER 1000:1000
ENTRYPOINT ["/a", "b"]
"""
_NAMES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "GREETING", "PATH", "MY_TOKEN", "A", "B2")
_VALUES = (
    "1", '"/x.so"', "'/x.so'", '"a b"', "a\\ b", '"$A"', "$A", "${B}", "\\$A", "'$A'", '"a\\"b"', "'a\\b'", '"\\a"',
    '""', "$NONE", "x=y", '"é ü"', "/x:$PATH", "${A}${B}", '"\\\\"', "a#b", "https://a.example.com",
)  # fmt: skip
_COMMANDS = ('["/x", "y"]', "/x y", "['/x']", '["/x", "é\\n"]', '[ "/x" ]', '["/x"] y', '["/x",]')
_USERS = ("0", "root", "1000", "$A", '"0"', "1000:1000 ", "5:5", "0:0", "1000:1000 x", "\\0")


def dockerfile(seed: int) -> str:
    """Return a Dockerfile FROM scratch that runs nothing, so that it builds at once."""
    dice = random.Random(seed)
    lines = START.rstrip("\n").split("\n")
    for _ in range(dice.randint(1, 3)):
        line = dice.choice(_MAKERS)(dice)
        for _ in range(dice.choice((0, 1, 1, 2))):
            line = dice.choice(_MUTATIONS)(line, dice)
        lines.insert(dice.randint(1, len(lines)), line)
    return "\n".join(lines) + "\n"


def _env(dice: random.Random) -> str:
    pairs = [f"{dice.choice(_NAMES)}={dice.choice(_VALUES)}" for _ in range(dice.randint(1, 2))]
    return f"ENV {' '.join(pairs)}"


def _legacy(dice: random.Random) -> str:
    return f"{dice.choice(('ENV', 'LABEL'))} {dice.choice(_NAMES)} {dice.choice(_VALUES)}"


def _label(dice: random.Random) -> str:
    name = dice.choice(("a", "com.example.b", '"c d"'))
    return f"LABEL {name}={dice.choice(_VALUES)}"


def _user(dice: random.Random) -> str:
    return f"USER {dice.choice(_USERS)}"


def _entrypoint(dice: random.Random) -> str:
    return f"ENTRYPOINT {dice.choice(_COMMANDS)}"


def _other(dice: random.Random) -> str:
    return dice.choice(
        [
            "ARG X=1", "ARG A", "STOPSIGNAL SIGTERM", "WORKDIR /w", "EXPOSE 80", "VOLUME /v", "ONBUILD USER 0",
            "MAINTAINER me", "FROM scratch AS Two", "FROM scratch\nUSER 1:1", "HEALTHCHECK NONE", "NOPE x",
            "COPY <<EOF /x\nUSER 0\nEOF",            "# a comment", "  # ENV A=2", "", 'SHELL ["/x"]', 'CMD ["x"]',
        ]
    )  # fmt: skip


_MAKERS: tuple[Callable[[random.Random], str], ...] = (
    _env,
    _env,
    _env,
    _legacy,
    _label,
    _label,
    _user,
    _entrypoint,
    _other,
)


def _blank(line: str, dice: random.Random) -> str:
    return line.replace(" ", dice.choice(("\t", "  ", " \t ", "\u00a0", "\v")), 1)


def _case(line: str, dice: random.Random) -> str:
    keyword, space, rest = line.partition(" ")
    return dice.choice((keyword.lower(), keyword.title())) + space + rest


def _position(line: str, dice: random.Random) -> int:
    return dice.randint(min(1, len(line)), len(line))


def _escape(line: str, dice: random.Random) -> str:
    at = _position(line, dice)
    return f"{line[:at]}\\{line[at:]}"


def _quote(line: str, dice: random.Random) -> str:
    start, end = sorted((_position(line, dice), _position(line, dice)))
    mark = dice.choice("'\"")
    return f"{line[:start]}{mark}{line[start:end]}{mark}{line[end:]}"


def _name(line: str, dice: random.Random) -> str:
    """Put quotes around the name, or around its end."""
    keyword, space, rest = line.partition(" ")
    name, equals, value = rest.partition("=")
    start = dice.randint(0, len(name))
    mark = dice.choice("'\"")
    return f"{keyword}{space}{name[:start]}{mark}{name[start:]}{mark}{equals}{value}"


def _broken(line: str, dice: random.Random) -> str:
    at = _position(line, dice)
    between = dice.choice(("", "\n", "  # a comment\n", "# \\\n", "\n  \n", "\t"))
    blanks = dice.choice(("", " ", "\t "))
    return f"{line[:at]}\\{blanks}\n{between}{line[at:]}"


def _swallow(line: str, dice: random.Random) -> str:
    return line + dice.choice((" \\", "\\", "\\\\", " \\\n", " \\\n#"))


def _drop(line: str, dice: random.Random) -> str:
    at = _position(line, dice)
    return line[:at] + line[at + 1 :]


def _indent(line: str, dice: random.Random) -> str:
    return dice.choice((" ", "\t", "  ", "\u00a0")) + line + dice.choice(("", " ", "\t", "\r"))


_MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    _blank, _case, _escape, _quote, _name, _name, _broken, _broken, _swallow, _drop, _indent
)  # fmt: skip
