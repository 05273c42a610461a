"""Environment variables that hide the GPUs, load other libraries, slow CUDA or torch down, or change results."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.knowledge.failures import Row, Severity

FILE = Path(__file__).parent / "tables" / "variables.yaml"
HIDES, SHADOWS, CHECK, SLOWS, RESULTS, NETWORK = KINDS = ("hides", "shadows", "check", "slows", "results", "network")
_OFF = ("", "0", "false", "no")
_WHEN = ("set", "on", "values", "lacks", "part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable and the effect that it has with some values."""

    id: str  # of a finding
    name: str
    kind: str  # one of KINDS
    severity: Severity
    when: str
    values: tuple[str, ...]
    match: str | None
    is_for_gpu: bool  # a CPU image may set the value on purpose
    effect: str
    fix: str
    explains: tuple[str, ...]
    sources: tuple[str, ...]

    def applies(self, value: str) -> bool:
        """Return whether a value has the effect."""
        if self.when == "values":
            return value.strip() in self.values
        if self.when == "lacks":
            return bool(value) and not set(self.values) & {part.strip() for part in value.split(",")}
        if self.when == "part":
            return bool(self.parts(value))
        return self.when == "set" or value.lower() not in _OFF

    def parts(self, value: str) -> tuple[str, ...]:
        """Return the folders of a path list that have the effect; empty for variables that are no path list."""
        folders = value.split(":") if self.match is not None else ()
        return tuple(folder for folder in folders if re.search(self.match or "", folder.rstrip("/").lower()))

    def said(self, value: str) -> str:
        """Return in one clause what a value does: `NAME=VALUE hides every GPU from CUDA`."""
        return f"{self.name}={value[:80]} {self.effect}"


@cache
def table() -> tuple[Variable, ...]:
    """Return all variables.

    Raises:
        UsageError: the file is invalid.
    """
    tree = strictyaml.read_file(FILE)
    if not isinstance(tree, dict) or tree.get("schema") != "1":
        raise UsageError(f"{FILE}: schema: 1 is missing", hint="begin the file with 'schema: \"1\"'")
    return tuple(_variable(entry) for entry in tree["variables"])


def found(
    environ: Mapping[str, str], *, gpu: bool = True, kinds: Collection[str] = KINDS
) -> tuple[tuple[Variable, str], ...]:
    """Return the variables of an environment that have an effect, with their values.

    `gpu` is whether a GPU is expected; without it, variables that hide GPUs on purpose are left out.
    """
    return tuple(
        (variable, environ[variable.name])
        for variable in table()
        if variable.kind in kinds and variable.name in environ and (gpu or not variable.is_for_gpu)
        if variable.applies(environ[variable.name])
    )


@cache
def literals() -> tuple[str, ...]:
    """Return the texts of which a line has to have one, in lower case, to set a variable that hides GPUs."""
    return tuple(f"{name.lower()}=" for name in names(HIDES))


def read(line: str) -> tuple[Row, ...]:
    """Return a row for each variable that a line sets to a value that hides GPUs: `export CUDA_VISIBLE_DEVICES=-1`."""
    values = {match[1]: match[2].strip("\"'") for match in _SET.finditer(line)}
    return tuple(
        Row(
            id=variable.id, group="variables", title=variable.said(value), role="cause", severity=Severity.WARN,
            signatures=(), cause=f"{variable.name} {variable.effect}.", check=(f"env | grep {variable.name}",),
            fix=(variable.fix,), distinguish="A container without GPUs has no /dev/nvidia* at all.",
            sources=variable.sources, explains=variable.explains, traps=(), codes=(),
        )
        for variable, value in found(values, kinds=(HIDES,))
    )  # fmt: skip


_SET = re.compile(r"""(?:^|[\s;(])([A-Z][A-Z0-9_]{2,40})=("[^"]{0,200}"|'[^']{0,200}'|[^\s;"']{0,200})""")


def names(*kinds: str) -> tuple[str, ...]:
    """Return the names of the variables of some kinds, each once."""
    return tuple(dict.fromkeys(variable.name for variable in table() if variable.kind in kinds))


def one(name: str, kind: str) -> Variable:
    """Return the variable of a name and kind.

    Raises:
        KeyError: the table has none.
    """
    return {(variable.name, variable.kind): variable for variable in table()}[name, kind]


def _variable(tree: Mapping[str, Any]) -> Variable:
    if tree["kind"] not in KINDS or tree["when"] not in _WHEN:
        raise UsageError(f"{FILE}: {tree['name']}: kind must be one of {', '.join(KINDS)}, when of {', '.join(_WHEN)}")
    return Variable(
        id=tree.get("id") or tree["name"].lower().replace("_", "-"),
        name=tree["name"],
        kind=tree["kind"],
        severity=Severity(tree["severity"]),
        when=tree["when"],
        values=tuple(tree.get("values", ())),
        match=tree.get("match"),
        is_for_gpu=tree.get("gpu", False) is True,
        effect=tree["effect"],
        fix=tree["fix"],
        explains=tuple(tree.get("explains", ())),
        sources=tuple(tree["sources"]),
    )
