"""Quote text so that Dockerfiles, YAML and curl read it back unchanged."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from envkit.ground.errors import UsageError
from envkit.plan import names

_PLAIN_YAML = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+*<>!~,/ -]*[A-Za-z0-9_.=+*-]|[A-Za-z0-9_]")
_YAML_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "null", "y", "n"])
_NUMBER = re.compile(r"[0-9._+eExXoO-]+|0[xXbB][0-9A-Fa-f_]+")


def quoted(value: str) -> str:
    """A value for LABEL and ENV: in double quotes, with what Docker expands escaped.

    Raises:
        UsageError: a control or format character, which no quoting carries.
    """
    why = names.text(value)
    if why:
        raise UsageError(f"{value[:80]!r} cannot be put into a Dockerfile: it {why}", hint="write it on one plain line")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def words(value: Sequence[str]) -> str:
    """A command in JSON form, on one line of ASCII."""
    return json.dumps(list(value))


def yaml(value: str) -> str:
    """A YAML scalar that reads back as this text, plain where that is safe."""
    safe = _PLAIN_YAML.fullmatch(value) and value.lower() not in _YAML_WORDS and not _NUMBER.fullmatch(value)
    return value if safe else json.dumps(value, ensure_ascii=False)


def gitlab(value: str) -> str:
    """A YAML scalar for the value of a CI/CD variable, in which GitLab expands nothing."""
    return yaml(value.replace("$", "$$"))


def hcl(value: str) -> str:
    """A string of HCL without templates: `${` and `%{` stay what they are."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def json_text(value: Any) -> str:
    """Any JSON value on one line; readable in every script, escaped where only JSON's own rules ask for it."""
    return json.dumps(value, ensure_ascii=False)


def shell(value: str) -> str:
    """One word for a POSIX shell."""
    return shlex.quote(value)
