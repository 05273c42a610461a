"""The inline Dockerfile: what it refuses, and how large files are written."""

import base64
import re

import pytest

from envkit.ground.errors import UsageError
from envkit.render.inline import LIMIT_BYTES, inline
from envkit.render.model import Rendered

MIB = 1 << 20


def written(*lines: str, syntax: str = "classic", **files: bytes) -> str:
    text = "\n".join(["FROM debian", *lines, ""])
    named = {name.replace("_", "."): data for name, data in files.items()}
    made = Rendered({"Dockerfile": text.encode(), **named}, "debian", "debian", syntax)
    return inline(made, made.files)


def decoded(text: str) -> bytes:
    """What the steps append, one after the other."""
    found = b""
    for step in text.split("printf %s")[1:]:
        found += base64.b64decode(re.sub(r"[\\\s]", "", step.split("> ")[0]))
    return found


def refusal(*lines: str, syntax: str = "classic", **files: bytes) -> UsageError:
    with pytest.raises(UsageError) as caught:
        written(*lines, syntax=syntax, **files)
    assert "envkit render --out DIR" in str(caught.value.hint)
    return caught.value


def test_a_file_larger_than_a_step_is_appended() -> None:
    data = bytes(range(256)) * 1000
    text = written("COPY big.bin /x/", big_bin=data)
    steps = text.split("RUN ")[1:]
    assert len(steps) == 4
    assert all(len(step) < 128 << 10 for step in steps)
    assert [re.findall(r"base64 -d \S+ (>+) /x/big.bin", step) for step in steps] == [[">"], [">>"], [">>"], [">>"]]
    assert decoded(text) == data
    assert text.count("chmod 644 /x/big.bin") == 1


def test_the_limit_names_the_largest_file() -> None:
    assert written("COPY a.bin b.bin /x/", a_bin=bytes(LIMIT_BYTES - 1), b_bin=b"b")
    error = refusal("COPY a.bin b.bin /x/", a_bin=bytes(LIMIT_BYTES), b_bin=b"b")
    assert error.message == (
        "/x/a.bin (1.0 MiB) is too large for --inline: the build context has 1.0 MiB up to here, and the limit is 1 MiB"
    )


@pytest.mark.parametrize(
    ("data", "heredoc"),
    [
        (b"plain\n", True),
        ("größer\n".encode(), True),
        (b"from x import y\n", True),
        (b"", False),
        (b"no line end", False),
        (b"a.txt\n", False),  # would end its own document
        (b"crlf\r\n", False),
        (b"\xff\n", False),
        (b"\xef\xbb\xbfmark\n", False),
        (b"x" * 60_000 + b"\n", False),
    ],
)
def test_a_heredoc_has_what_every_parser_reads(data: bytes, heredoc: bool) -> None:
    text = written("COPY a.txt ./", syntax="buildkit", a_txt=data)
    assert ("<<'a.txt'" in text) == heredoc
    assert (data.decode() in text) if heredoc else decoded(text) == data


def test_modes_and_names_with_blanks_need_a_step() -> None:
    made = Rendered(
        {"Dockerfile": b"FROM debian\nCOPY copied/0/ /a/\n", "copied/0/it's me": b"x\n", "copied/0/run.sh": b"y\n"},
        "debian",
        "debian",
        "buildkit",
        frozenset(["copied/0/run.sh"]),
    )
    text = inline(made, made.files)
    assert "<<" not in text
    assert """chmod 644 '/a/it'"'"'s me'""" in text
    assert "chmod 755 /a/run.sh" in text


def test_lines_and_stages_that_take_nothing_stay() -> None:
    lines = ["ADD https://example.com/x /x", "COPY --from=build /opt \\", "  # a comment", "  /opt", "RUN true"]
    assert written(*lines, "COPY a.txt \\", "  ./", a_txt=b"a\n").startswith("\n".join(["FROM debian", *lines, "RUN"]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("COPY gone.txt /x/", "COPY copies gone.txt, which is not in the build context"),
        ("COPY *.txt /x/", "COPY is *.txt /x/"),
        ("COPY $NAME /x/", "COPY is $NAME /x/"),
        ("ADD a.txt /x/", "ADD is a.txt /x/"),
        ("RUN --mount=type=bind,source=a.txt,target=/a true", "RUN mounts the build context"),
        ("RUN --mount=source=a.txt,target=/a true", "RUN mounts the build context"),
        ("COPY --chown=1000:1000 a.txt /x/", "COPY has flags"),
    ],
)
def test_what_has_no_form_is_refused(line: str, message: str) -> None:
    error = refusal(line, a_txt=b"a\n")
    assert error.message == f"Dockerfile:2: {message}; --inline does not support this"


def test_a_step_after_user_would_not_write_as_root() -> None:
    assert "follows USER" in refusal("USER 1000:1000", "COPY a.txt /x/", a_txt=b"a\n").message
    assert "COPY <<'a.txt' /x/" in written("USER 1000:1000", "COPY a.txt /x/", syntax="buildkit", a_txt=b"a\n")
    assert written("USER 1000:1000", "FROM debian", "COPY a.txt /x/", a_txt=b"a\n")


def test_flags_stay_with_a_heredoc() -> None:
    text = written("COPY --chown=1000:1000 a.txt /x/", syntax="buildkit", a_txt=b"a\n")
    assert "COPY --chown=1000:1000 <<'a.txt' /x/\na\na.txt\n" in text
