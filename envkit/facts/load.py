"""Load the snapshot, and add the rows of plug-ins and of the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envkit.facts import tables
from envkit.facts.model import Facts
from envkit.ground import plugins
from envkit.ground.errors import EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.installation import again

SNAPSHOT = Path(__file__).parent / "snapshot.json"


def load(overlay: Path | None = None) -> Facts:
    """Return the facts of this installation with the rows of plug-ins and of `overlay`.

    A row with the key of an existing row replaces it; `overlay` overrides plug-ins. The digest covers all rows. Takes
    about 10 ms without added rows.

    Raises:
        EnvironmentProblem: the snapshot is missing or has another version, or a plug-in cannot be loaded or has an
            invalid row.
        IntegrityError: the snapshot was modified.
        UsageError: the overlay cannot be read or has invalid rows; all its errors are reported at once.
    """
    facts, added = _snapshot(), plugins.of(plugins.FACTS)
    if overlay is None and not added:
        return facts
    from envkit.facts.overlay import apply  # noqa: PLC0415 - YAML and checks are slow to import and seldom needed

    for plugin in added:
        try:
            facts = apply(facts, plugin.path(folder=False))
        except UsageError as error:
            raise plugin.fault(error.message) from error
    return facts if overlay is None else apply(facts, overlay)


def _snapshot() -> Facts:
    try:
        text = SNAPSHOT.read_bytes()
        content: dict[str, Any] = json.loads(text)
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{SNAPSHOT} cannot be read: {error}", hint=again()) from error
    if content.get("schema") != tables.SCHEMA:
        raise EnvironmentProblem(
            f"{SNAPSHOT} has schema {content.get('schema')!r}, but this envkit needs {tables.SCHEMA!r}",
            hint=again(),
        )
    stated, actual = content.get("checksum"), tables.checksum(text.partition(b"\n")[2])
    if actual != stated:
        raise IntegrityError(
            f"{SNAPSHOT} was modified: its checksum is {actual}, but it states {stated!r:.14}",
            hint="put your own rows into a file: --facts FILE (envkit help facts); "
            f"{again()} restores the file; "
            "in a checkout, python -m envkit.facts.snapshot generates it from the tables",
        )
    rows = {table.name: tables.decode(table, content["tables"][table.name]) for table in tables.TABLES}
    return Facts(
        collected=content["collected"],
        digest=content["digest"],
        version=content["version"],
        releases={row.torch: row for row in rows.pop("releases")},
        sources=content["sources"],
        capabilities_left_out=tuple(content["capabilities_left_out"]),
        **rows,
    )
