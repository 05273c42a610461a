"""The knowledge base: known failures and the messages they leave in logs, read from `data/*.yaml`.

A row has an id, a title, a role, a severity, signatures, cause, check, fix, how to distinguish it from similar
failures, and sources. `role: cause` is the error itself, `role: effect` a message that several errors lead to, and
`role: end` a final message that follows any failure. `explains` lists the rows that this row causes if both are in
one log, `codes` the reason codes of verify records with the same meaning. `needs` and `refuted_by` are lines of the
same log: without one of the former, or with one of the latter, the log does not bear out the row, and it is not named.

`only_in` and `not_in` are contexts (`tables/contexts.yaml`: Docker, Windows, conda, JAX): a row with `only_in` needs a
log that shows one of them, a row with `not_in` one that shows none. `in` has other texts for a context: title, cause,
check or fix replace those of the row, of the first context that the log shows. `reads` are lines whose values belong
into the cause: the named groups of `match` are kept, and `say` is a sentence with them, left out if one is not in the
log. `{needed:cudnn}` and `{found:cuda}` write the numbers of those libraries as versions. `after` are rows that are
named before this one if both are in one log, whichever came first: broken hardware before a fault of a program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.knowledge import contexts
from envkit.knowledge.signatures import Signature, signature, texts

DATA = Path(__file__).parent / "data"
ROLES = ("cause", "effect", "end")
_ROW = {
    "id", "title", "role", "severity", "signatures", "cause", "check", "fix", "distinguish", "sources", "explains",
    "traps", "codes", "needs", "refuted_by", "only_in", "not_in", "in", "reads", "after",
}  # fmt: skip
_OPTIONAL = {"explains", "traps", "codes", "needs", "refuted_by", "only_in", "not_in", "in", "reads", "after"}
_TEXTS = {"title", "cause", "check", "fix"}  # that a context may replace


class Severity(StrEnum):
    """How serious a finding is; traps in the facts have the same values."""

    ERROR = "error"
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A line whose values belong into the cause; `say` is a sentence with the groups of all readings of the row."""

    signature: Signature
    say: str = ""  # only keeps values


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A known failure; the module's docstring describes the fields."""

    id: str
    group: str  # the name of its file, without .yaml
    title: str
    role: str
    severity: Severity
    signatures: tuple[Signature, ...]
    cause: str
    check: tuple[str, ...]
    fix: tuple[str, ...]
    distinguish: str
    sources: tuple[str, ...]
    explains: tuple[str, ...]
    traps: tuple[str, ...]
    codes: tuple[str, ...]  # reason codes of verify records that mean the same
    needs: tuple[Signature, ...] = ()  # of which one must be somewhere in the log
    refuted_by: tuple[Signature, ...] = ()  # of which none may be in the log
    only_in: tuple[str, ...] = ()  # contexts of which the log has to show one
    not_in: tuple[str, ...] = ()  # contexts of which the log may show none
    # By context: the fields that have another text in it.
    texts_in: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    reads: tuple[Reading, ...] = ()
    after: tuple[str, ...] = ()  # rows that are named before this one

    def is_possible(self, shown: Collection[str]) -> bool:
        """Return whether the row can be meant in a log that shows these contexts."""
        is_refuted = any(name in shown for name in self.not_in)
        return not is_refuted and (not self.only_in or any(name in shown for name in self.only_in))

    def seen_in(self, shown: Collection[str]) -> Row:
        """Return the row with the texts for the contexts that a log shows."""
        name = next((name for name in self.texts_in if name in shown), None)
        return self if name is None else replace(self, **self.texts_in[name])


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows of all files, in the order of the files' names.

    Raises:
        UsageError: a file is invalid.
    """
    all_rows: list[Row] = []
    for path in sorted(DATA.glob("*.yaml")):
        tree = strictyaml.read_file(path)
        if not isinstance(tree, dict) or tree.get("schema") != "1":
            raise UsageError(f"{path}: schema: 1 is missing", hint="begin the file with 'schema: 1'")
        listed = tree.get("rows")
        all_rows += [_row(entry, path) for entry in (listed if isinstance(listed, list) else [])]
    by_id = {entry.id: entry for entry in all_rows}
    if len(by_id) != len(all_rows):
        raise UsageError("two rows of the knowledge base have the same id")
    for row in all_rows:
        unknown = [name for name in (*row.explains, *row.after) if name not in by_id]
        if unknown:
            raise UsageError(f"{row.id}: explains or comes after {unknown[0]!r}, which is not a row")
    return tuple(all_rows)


def row(ident: str) -> Row:
    """Return the row with an ID.

    Raises:
        KeyError: the ID is unknown.
    """
    return {entry.id: entry for entry in rows()}[ident]


def _row(tree: Any, path: Path) -> Row:
    if not isinstance(tree, dict) or not isinstance(tree.get("id"), str):
        raise UsageError(f"{path}: a row has no id")
    name = f"{path}: {tree['id']}"
    if set(tree) - _ROW or _ROW - _OPTIONAL - set(tree):
        wrong = sorted((set(tree) - _ROW) | (_ROW - _OPTIONAL - set(tree)))
        raise UsageError(f"{name}: unknown or missing fields: {', '.join(wrong)}")
    if tree["role"] not in ROLES or tree["severity"] not in tuple(Severity):
        raise UsageError(f"{name}: role must be one of {', '.join(ROLES)}, severity one of {', '.join(Severity)}")
    return Row(
        id=tree["id"],
        group=path.stem,
        title=tree["title"],
        role=tree["role"],
        severity=Severity(tree["severity"]),
        signatures=tuple(signature(entry, name) for entry in tree["signatures"]),
        cause=tree["cause"],
        check=texts(tree["check"]),
        fix=texts(tree["fix"]),
        distinguish=tree["distinguish"],
        sources=texts(tree["sources"]),
        explains=texts(tree.get("explains")),
        traps=texts(tree.get("traps")),
        codes=texts(tree.get("codes")),
        needs=tuple(signature(entry, name) for entry in tree.get("needs", ())),
        refuted_by=tuple(signature(entry, name) for entry in tree.get("refuted_by", ())),
        only_in=_contexts(tree.get("only_in"), name),
        not_in=_contexts(tree.get("not_in"), name),
        texts_in=_texts_in(tree.get("in", {}), name),
        reads=tuple(_reading(entry, name) for entry in tree.get("reads", ())),
        after=texts(tree.get("after")),
    )


def _contexts(value: Any, name: str) -> tuple[str, ...]:
    names = texts(value)
    unknown = [one for one in names if one not in contexts.names()]
    if unknown:
        raise UsageError(f"{name}: unknown context {unknown[0]!r}", hint=f"known: {', '.join(contexts.names())}")
    return names


def _texts_in(tree: Any, name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for context in _contexts(list(tree), name):
        other = tree[context]
        if not isinstance(other, dict) or not other or set(other) - _TEXTS:
            raise UsageError(f"{name}: in {context}: only {', '.join(sorted(_TEXTS))} can be replaced")
        found[context] = {key: texts(text) if key in ("check", "fix") else text for key, text in other.items()}
    return found


def _reading(tree: Any, name: str) -> Reading:
    if not isinstance(tree, dict) or "match" not in tree:
        raise UsageError(f"{name}: reads: an entry is a mapping of has, match, unless and say")
    return Reading(
        signature=signature({key: value for key, value in tree.items() if key != "say"}, name), say=tree.get("say", "")
    )
