"""No text that a user gives breaks out of its place in a file."""

from dataclasses import replace
from typing import Any

import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from envkit.export import devcontainer, github, gitlab
from envkit.export.model import Order, checked
from envkit.ground.errors import UsageError
from envkit.ground.requirement import Form, Requirement
from tests.support.exports import cell, main_file, order, read_jsonc, read_yaml

# What can be printed; the rest is refused, which tests of the order prove.
PRINTED = st.characters(categories=("L", "M", "N", "P", "S"), include_characters=" ")
NASTY = st.one_of(
    st.text(PRINTED, max_size=40),
    st.sampled_from(
        ["'", '"', "\\", "#", ":", "- ", "{", "}", "$", "@{", "{%", "@#", "*x", "&x", "!!str", "%"]
    ).flatmap(lambda mark: st.text(PRINTED, max_size=10).map(lambda text: f"{mark}{text}{mark} #: x")),
    st.sampled_from(
        ["no", "null", "0xAB", "0b11", "1e3", "12:30", "2026-01-01", "~", "", " ", "=", "<<", ".inf", "1_0"]
    ),
)


def allowed(made: Order) -> Order:
    try:
        return checked(made)
    except UsageError:
        assume(False)
        raise


def shape(tree: Any) -> Any:
    """Keys and lengths without the texts."""
    if isinstance(tree, dict):
        return {key: shape(value) for key, value in tree.items()}
    return [shape(value) for value in tree] if isinstance(tree, list) else type(tree).__name__


@given(requirement=NASTY, definition=NASTY, command=NASTY)
def test_a_workflow_holds_the_texts_as_they_are(requirement: str, definition: str, command: str) -> None:
    plain = order("github", ("cpu",))
    made = allowed(
        replace(plain, requirement=Requirement(Form.URL, requirement), definitions={"cpu": definition}, command=command)
    )
    tree = read_yaml(main_file(github.export(made)))
    assert tree["env"]["REQUIREMENT"] == requirement
    assert tree["jobs"]["build"]["strategy"]["matrix"]["include"][0]["definition"] == definition
    assert shape(tree) == shape(read_yaml(main_file(github.export(plain))))


@given(base=NASTY)
def test_a_base_of_a_matrix_stays_what_it_is(base: str) -> None:
    own = replace(cell(), axes=(("base", base or "auto"),))
    plain = order("github", ("cpu",), definitions={}, matrix="m.yaml")
    made = allowed(replace(plain, cells=(own,)))
    row = read_yaml(main_file(github.export(made)))["jobs"]["build"]["strategy"]["matrix"]["include"][0]
    assert row["base"] == (base or "auto")


@given(definition=NASTY, requirement=NASTY)
def test_a_pipeline_holds_the_texts_as_they_are(definition: str, requirement: str) -> None:
    plain = order("gitlab", ("cpu",))
    made = allowed(replace(plain, definitions={"cpu": definition}, requirement=Requirement(Form.URL, requirement)))
    tree = yaml.safe_load(main_file(gitlab.export(made)))
    assert tree["build"]["parallel"]["matrix"][0]["DEFINITION"] == definition.replace("$", "$$")
    assert tree["variables"]["REQUIREMENT"] == requirement.replace("$", "$$")
    assert shape(tree) == shape(yaml.safe_load(main_file(gitlab.export(plain))))


@given(title=NASTY, command=NASTY)
def test_a_dev_container_holds_the_title_as_it_is(title: str, command: str) -> None:
    titled = replace(cell(), plan=replace(cell().plan, title=title))
    made = allowed(replace(order("devcontainer", ("cpu",)), cells=(titled,), command=command))
    assert read_jsonc(main_file(devcontainer.export(made)))["name"] == title
