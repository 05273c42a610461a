from hypothesis import given
from hypothesis import strategies as st

from envkit.render.dockerfile import command, pairs, parse

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
    assert run.text == "set -eu; true"
    assert found.of("RUN")[1].heredoc
    assert found.comments == ((1, "# first"),)
    assert [item.keyword for item in found.final("ENV", "CMD")] == ["ENV", "CMD"]
    assert found.instructions[2].written == "from"


def test_pairs() -> None:
    assert pairs('A="1 2" B=two "c.d"="e=\\"f\\""') == [("A", "1 2"), ("B", "two"), ("c.d", 'e="f"')]
    assert pairs("A 1 2") is None
    assert pairs('A="1') is None or pairs('A="1') == [("A", '"1')]


def test_commands() -> None:
    assert command('["a", "b"]') == ["a", "b"]
    assert command("a b") is None
    assert command('["a", 1]') is None


@given(st.text(alphabet=st.sampled_from("FROMRUN a\\\n#<E\"'=[]-"), max_size=80))
def test_any_text_is_read(source: str) -> None:
    assert all(item.line >= 1 for item in parse(source).instructions)
