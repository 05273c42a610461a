"""Quote text for Dockerfiles, YAML, HCL, JSON and shells, so that they read it back unchanged."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from envkit.ground.errors import UsageError
from envkit.plan import names

_PLAIN_YAML = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+*<>!~,/ -]*[A-Za-z0-9_.=+*-]|[A-Za-z0-9_]")
# YAML 1.1, which PyYAML and others read, has all of these as booleans or null.
_YAML_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "null", "y", "n"])
# `1e3`, `0x1F`, `1_000`, and versions: YAML would read 3.10 as the number 3.1.
_NUMBER = re.compile(r"[0-9._+eExXoO-]+|0[xXbB][0-9A-Fa-f_]+")


def quoted(value: str) -> str:
    """Quote a value for LABEL and ENV: in double quotes, with characters that Docker expands escaped.

    Raises:
        UsageError: the value has a control or format character, which cannot be quoted.
    """
    why = names.text(value)
    if why:
        raise UsageError(
            f"{value[:80]!r} cannot be written into a Dockerfile: it {why}", hint="write it as one line of plain text"
        )
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def words(value: Sequence[str]) -> str:
    """Return a command in JSON form, on one line of ASCII."""
    return json.dumps(list(value))


def yaml(value: str) -> str:
    """Return a YAML scalar that reads back as this text, unquoted if that is safe."""
    safe = _PLAIN_YAML.fullmatch(value) and value.lower() not in _YAML_WORDS and not _NUMBER.fullmatch(value)
    # A JSON string is valid YAML.
    return value if safe else json.dumps(value, ensure_ascii=False)


def gitlab(value: str) -> str:
    """Return a YAML scalar for a CI/CD variable, escaped so that GitLab expands nothing in it."""
    return yaml(value.replace("$", "$$"))


def hcl(value: str) -> str:
    """Return an HCL string in which `${` and `%{` are escaped."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def json_text(value: Any) -> str:
    """Return a JSON value on one line, with non-ASCII characters unescaped."""
    return json.dumps(value, ensure_ascii=False)


def shell(value: str) -> str:
    """Quote one word for a POSIX shell."""
    return shlex.quote(value)
