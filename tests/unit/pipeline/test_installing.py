"""The commands of `envkit install`, as they are shown."""

import shlex

from envkit.pipeline.installing import Step


def test_a_shown_command_can_be_pasted_into_a_shell() -> None:
    step = Step(argv=("/opt/uv", "pip", "install", "--python", "/my venv/bin/python", "setuptools>=77"))
    assert shlex.split(str(step)) == ["uv", "pip", "install", "--python", "/my venv/bin/python", "setuptools>=77"]
    assert "'setuptools>=77'" in str(step)
