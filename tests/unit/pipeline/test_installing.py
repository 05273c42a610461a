"""The commands of `envkit install`, as they are shown."""

import shlex
from pathlib import Path

import pytest

from envkit.ground.settings import Mirrors
from envkit.pipeline.installing import Environment, Step, steps
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve
from tests.support.plans import facts


def test_a_shown_command_can_be_pasted_into_a_shell() -> None:
    step = Step(argv=("/opt/uv", "pip", "install", "--python", "/my venv/bin/python", "setuptools>=77"))
    shown = step.shown({})
    assert shlex.split(shown) == ["uv", "pip", "install", "--python", "/my venv/bin/python", "setuptools>=77"]
    assert "'setuptools>=77'" in shown


def test_a_shown_command_has_its_index_and_the_variables_that_uv_reads_without_logins() -> None:
    step = Step(argv=("/opt/uv", "pip", "install", "torch"), index="https://me:pw@index.example/simple")
    environ = {
        "UV_INDEX": "https://you:pw@other.example/simple",
        "UV_INDEX_TEAM_PASSWORD": "pw",
        "UV_NO_BINARY": "torch vision",
        "UV_DEFAULT_INDEX": "https://unused.example",
        "HOME": "/root",
    }
    assert step.shown(environ) == (
        "UV_INDEX=https://other.example/simple UV_INDEX_TEAM_PASSWORD='***' UV_NO_BINARY='torch vision' "
        "uv pip install torch --default-index https://index.example/simple"
    )


CPU = resolve(parse({"cpu": True, "source": "pytorch", "python": "3.11"}, facts()), facts())
NEW = Environment(folder=Path("/venv"), version=None)
INDEX = "https://index.example/simple"


def commands(**more: bool) -> tuple[Step, ...]:
    return steps(CPU, NEW, Mirrors(python_index=INDEX), **more)


def test_no_configuration_of_the_folder_applies() -> None:
    assert [step.argv[3] for step in commands() if step.argv[1] == "pip"] == ["--no-config", "--no-config"]
    venv = commands()[0]
    assert venv.argv[1:4] == ("venv", "--no-config", "--no-project")


def test_no_build_script_runs_unless_the_user_allows_it() -> None:
    def wheels_only(step: Step) -> bool:
        return " --only-binary :all: " in step.shown({})

    assert [wheels_only(step) for step in commands()] == [False, True, True]
    assert not any(wheels_only(step) for step in commands(allow_source=True))


def test_every_command_that_installs_names_its_index() -> None:
    assert [step.index for step in commands()] == [None, INDEX, "https://download.pytorch.org/whl/cpu"]


def test_without_a_mirror_the_index_is_that_of_the_users_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://own.example/simple")
    assert steps(CPU, NEW, Mirrors())[1].index == "https://own.example/simple"
