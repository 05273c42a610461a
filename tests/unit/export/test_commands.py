"""Every envkit command in an exported file is one that this envkit takes."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest

from envkit.export import github, gitlab
from tests.support.command_lines import parsed
from tests.support.exports import main_file, matrix_order, order, read_yaml

_LIST = re.compile(r"^\s*(?:push=\((.+)\)|set -- (.+))$", re.MULTILINE)


def scripts(text: str) -> Iterator[str]:
    """The scripts of a workflow or a pipeline."""
    tree = read_yaml(text)
    if "jobs" in tree:
        for job in tree["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)
    else:
        for name in ("build", "verify"):
            if name in tree:
                yield "\n".join([*tree[name]["before_script"], *tree[name]["script"]])


def commands(script: str) -> Iterator[list[str]]:
    """What follows `envkit` on each of its lines, with lists of words put in."""
    joined = script.replace("\\\n", " ") + "\n"
    found = _LIST.search(joined)
    words = (found[1] or found[2]) if found else ""
    for line in joined.splitlines():
        if re.match(r'\s*"?(?:\S*/)?envkit"? ', line):
            yield shlex.split(line.replace('"${push[@]}"', words).replace('"$@"', words))[1:]


@pytest.mark.parametrize("exporter", [github, gitlab], ids=["github", "gitlab"])
@pytest.mark.parametrize("source", ["definitions", "matrix"])
@pytest.mark.parametrize("registry", ["registry", "none"])
def test_the_commands_are_taken(exporter: Any, source: str, registry: str) -> None:
    name = exporter.__name__.rpartition(".")[2]
    given: dict[str, Any] = {"tier": "standard"} | ({} if registry == "registry" else {"registry": None})
    made = order(name, **given) if source == "definitions" else matrix_order(name, **given)
    found = [words for script in scripts(main_file(exporter.export(made))) for words in commands(script)]
    verbs = [words[0] for words in found]
    assert verbs == (["build", "verify", "push"] if registry == "registry" else ["build"])
    values = [parsed(words) for words in found]
    assert values[0]["engine"] == "embedded"
    assert values[0]["push"] is (registry == "registry")
    if registry == "registry":
        assert values[0]["tags"] == ("$REGISTRY:$TAG",)
        assert values[1]["require_gpu"] is True
        assert values[1]["tier"] == "standard"
        assert values[2]["replace_tag"] is True


def test_an_unknown_flag_would_be_noticed() -> None:
    (words,) = commands('x=1\nenvkit build "$DEFINITION" \\\n  --no-such-flag\n')
    with pytest.raises(click.UsageError, match="--no-such-flag"):
        parsed(words)
