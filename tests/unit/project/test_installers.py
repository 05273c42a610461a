"""The table of options, and the words that are packages beside every one of them."""

import json
from pathlib import Path

import pytest
from pip._internal.commands import create_command

from envkit.project.installers import UndecidedError, installation
from envkit.project.shell import of_words

TABLES = json.loads((Path(__file__).parents[3] / "envkit" / "project" / "options.json").read_text())
COMMANDS = {
    "pip": ("pip", "install"),
    "uv pip install": ("uv", "pip", "install"),
    "uv add": ("uv", "add"),
    "conda": ("conda", "install"),
    "micromamba": ("micromamba", "create"),
    "apt-get": ("apt-get", "install"),
}


def packages(*words: str) -> list[str]:
    found = installation(of_words(words))
    assert found is not None
    return [item.value for item in found.items if item.role == "package"]


def test_the_table_agrees_with_the_parser_of_the_installed_pip() -> None:
    parser = create_command("install").parser
    options = [*parser.option_list, *(option for group in parser.option_groups for option in group.option_list)]
    kinds = {name: kind for kind in ("flags", "valued") for row in TABLES["pip"][kind] for name in row.split()}
    own = {name: option.takes_value() for option in options for name in (*option._short_opts, *option._long_opts)}
    assert {name: kinds.get(name) for name in own} == {name: "valued" if own[name] else "flags" for name in own}


@pytest.mark.parametrize("name", COMMANDS)
def test_beside_every_option_the_package_is_the_only_one(name: str) -> None:
    for row in TABLES[name]["valued"]:
        for option in row.split():
            assert packages(*COMMANDS[name], option, "value", "einops") == ["einops"], option
            joined = f"{option}=value" if option.startswith("--") else f"{option}value"
            assert packages(*COMMANDS[name], joined, "einops") == ["einops"], option
    for row in TABLES[name]["flags"]:
        for option in row.split():
            assert packages(*COMMANDS[name], option, "einops") == ["einops"], option


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("option", ["--no-such-option", "-%"])
def test_an_option_that_no_table_has_loses_the_command(name: str, option: str) -> None:
    with pytest.raises(UndecidedError, match=option):
        packages(*COMMANDS[name], option, "value", "einops")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_table_says_which_version_it_is_from(name: str) -> None:
    assert any(character.isdigit() for character in TABLES[name]["source"])


@pytest.mark.parametrize("words", [("pip", "uninstall", "install"), ("uv", "tool", "install", "x"), ("conda", "list")])
def test_other_commands_install_nothing(words: tuple[str, ...]) -> None:
    assert installation(of_words(words)) is None
