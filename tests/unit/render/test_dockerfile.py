import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.render.dockerfile import command, parse

SCRATCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

FILE = """\
# first
FROM a.example.com/b:1 AS build
RUN --mount=type=cache,id=x \\
    --network=none \\
    set -eu; \\
    # a comment inside
    true
from scratch
ENV A="1" \\
    B=two
COPY --from=build /x /x
RUN <<EOF
FROM hidden
EOF
CMD ["a"]
"""


def test_instructions_with_lines_stages_and_flags() -> None:
    found = parse(FILE)
    rows = [(item.line, item.keyword, item.stage) for item in found.instructions]
    assert rows == [
        (2, "FROM", 0),
        (3, "RUN", 0),
        (8, "FROM", 1),
        (9, "ENV", 1),
        (11, "COPY", 1),
        (12, "RUN", 1),
        (15, "CMD", 1),
    ]
    run = found.of("RUN")[0]
    assert run.flags == ("--mount=type=cache,id=x", "--network=none")
    assert run.text.split() == ["set", "-eu;", "true"]
    assert found.of("RUN")[1].heredocs == ("FROM hidden",)
    assert found.comments == ((1, "# first"),)
    assert [item.keyword for item in found.final("ENV", "CMD")] == ["ENV", "CMD"]
    assert found.instructions[2].written == "from"


def only(source: str) -> tuple[tuple[str, str], ...]:
    parsed = parse(f"FROM scratch\n{source}\n")
    assert parsed.problems == ()
    (item,) = parsed.instructions[1:]
    assert item.fault == ""
    return item.pairs


@pytest.mark.parametrize(
    ("source", "pairs"),
    [
        ('ENV A="1 2" B=two "c.d"="e=\\"f\\""', [("A", "1 2"), ("B", "two"), ("c.d", 'e="f"')]),
        ("ENV\tA=1", [("A", "1")]),
        ("env A=1", [("A", "1")]),
        ("ENV 'LD_PRELOAD'='/x.so'", [("LD_PRELOAD", "/x.so")]),
        ("ENV LD_PREL\\OAD=/x.so", [("LD_PRELOAD", "/x.so")]),
        ("ENV LD_PREL\\\nOAD=/x.so", [("LD_PRELOAD", "/x.so")]),
        ('ENV A="b" \\\n\n  # a comment\n\n  B="/x"', [("A", "b"), ("B", "/x")]),
        ("ENV A=a'b c'\"d e\"f\\ g", [("A", "ab cd ef g")]),
        ("ENV A='\\$HOME' B=\\$HOME C=\"\\a\\$\"", [("A", "\\$HOME"), ("B", "$HOME"), ("C", "\\a$")]),
        ("ENV P=$PATH:${PATH}", [("P", ":".join([SCRATCH_PATH] * 2))]),
        ("LABEL a=$unknown", [("a", "")]),  # nothing is set in scratch
    ],
)  # fmt: skip
def test_pairs(source: str, pairs: list[tuple[str, str]]) -> None:
    assert list(only(source)) == pairs


def test_a_variable_of_an_unknown_base_stays() -> None:
    assert parse("FROM a\nLABEL a=$b${c}\n").of("LABEL")[0].pairs == (("a", "$b${c}"),)


@pytest.mark.parametrize(
    "source",
    ["ENV A 1 2", "ENV A=1 B", 'ENV A="1', "ENV $A=1", "ENV =1", "ENV ''=1", "ENV A=${B:-c}", "ENV A=$1", "LABEL A"],
)
def test_pairs_that_cannot_be_read(source: str) -> None:
    (item,) = parse(f"FROM scratch\n{source}\n").instructions[1:]
    assert item.fault
    assert item.pairs == ()


@pytest.mark.requirement("R34")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("UNKNOWN x", "is not an instruction"),
        ("u\u017fer 0", "is not an instruction"),
        ("ENV", "without arguments"),
        ("FROM $x", "FROM depends on a variable"),
        ("ENV A=1\\\\", "two backslashes"),
        ("\ufeff# a", "U+FEFF"),
        ("ENV A=1\rUSER 0", "U+000D"),
        ("RUN <<EOF\nx", "is not closed"),
        ("RUN cat<<EOF\nx\nEOF", "not a plain heredoc"),
        ("RUN <<EOF\nuser 0\nEOF", "older engines"),
        ("RUN <<'E F'\nx\nE F", "not a plain heredoc"),
    ],
)
def test_what_builders_refuse_or_read_in_two_ways(source: str, why: str) -> None:
    assert any(why in problem.message for problem in parse(f"FROM scratch\n{source}\n").problems)


def test_flags_lose_their_quotes() -> None:
    run = parse("FROM a\nRUN\t--sec\"uri\"ty=in'sec'ure --mount=type=bind,\\\n  --x\\ y set -eu").of("RUN")[0]
    assert run.flags == ("--security=insecure", "--mount=type=bind,", "--x y")
    assert run.text == "set -eu"


def test_a_stage_continues_another() -> None:
    parsed = parse('FROM scratch AS One\nENV A=1\nUSER 5:5\nFROM one\nENV B=$A\nENTRYPOINT ["x"]\n')
    assert {key: parsed.image.env[key] for key in "AB"} == {"A": "1", "B": "1"}
    assert (parsed.image.user, parsed.image.entrypoint) == ("5:5", ["x"])


def test_commands() -> None:
    assert command('["a", "b"]') == ["a", "b"]
    assert command("a b") is None
    assert command('["a", 1]') is None


@given(st.text(alphabet=st.sampled_from("FROMRUN a\\\n#<E\"'=[]-"), max_size=80))
def test_any_text_is_read(source: str) -> None:
    assert all(item.line >= 1 for item in parse(source).instructions)
