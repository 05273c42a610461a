import json
import re
import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.plan import names
from envkit.render import quoting
from envkit.render.words import pairs

ALLOWED = st.text(max_size=60).filter(lambda value: names.text(value) is None)


@given(ALLOWED)
def test_quoted_values_come_back(value: str) -> None:
    written = quoting.quoted(value)
    assert "\n" not in written
    assert re.sub(r"\\([\\\"$])", r"\1", written[1:-1]) == value
    assert pairs(f"A={written}", {}) == [("A", value)]


@given(st.lists(ALLOWED, min_size=1, max_size=4))
def test_several_pairs_keep_apart(values: list[str]) -> None:
    text = " ".join(f"K{number}={quoting.quoted(value)}" for number, value in enumerate(values))
    assert pairs(text, {}) == [(f"K{number}", value) for number, value in enumerate(values)]


@pytest.mark.requirement("R5")
@pytest.mark.parametrize("value", ["a\nRUN id", "a\rb", "a\x00", "a\u2028b", "a\u202eb", "a\x1b[0m"])
def test_what_no_quoting_carries_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="cannot be written into a Dockerfile"):
        quoting.quoted(value)


@given(st.lists(st.text(max_size=20), max_size=5))
def test_commands_stay_on_one_line_of_ascii(value: list[str]) -> None:
    written = quoting.words(value)
    assert written.isascii()
    assert "\n" not in written
    assert json.loads(written) == value


@given(ALLOWED.filter(bool))
def test_yaml_scalars_come_back(value: str) -> None:
    text = f"- {quoting.yaml(value)}\n"
    assert strictyaml.read(text, "x") == [value]
    assert yaml.safe_load(text) == [value]


@pytest.mark.parametrize(
    "value", ["true", "No", "3.10", "1e5", "~", "--only-binary=:all:", "0x10", "0xAB", "0b11", "null", "a: b", "a #b"]
)
def test_yaml_words_with_another_meaning_are_quoted(value: str) -> None:
    assert quoting.yaml(value) == json.dumps(value)


@given(ALLOWED)
def test_values_of_gitlabs_variables_come_back_unexpanded(value: str) -> None:
    (read,) = yaml.safe_load(f"- {quoting.gitlab(value)}\n")
    assert read == value.replace("$", "$$")


@given(ALLOWED)
def test_one_word_for_a_shell(value: str) -> None:
    assert shlex.split(f"echo {quoting.shell(value)}") == ["echo", value]


@given(ALLOWED.filter(lambda value: "$$" not in value and "%%" not in value))
def test_strings_of_hcl_expand_nothing(value: str) -> None:
    written = quoting.hcl(value)
    assert "${" not in written.replace("$${", "")
    assert "%{" not in written.replace("%%{", "")
    assert json.loads(written.replace("$${", "${").replace("%%{", "%{")) == value


@given(st.recursive(ALLOWED | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_json_stays_on_one_line(value: object) -> None:
    written = quoting.json_text(value)
    assert "\n" not in written
    assert json.loads(written) == value
