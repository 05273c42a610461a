"""The output of `envkit doctor --json` on one machine, schema `envkit.doctor/1`."""

from __future__ import annotations

import re
from typing import Any

from envkit.cover.hosts import Gpu, Host, Inventory
from envkit.doctor.model import SCHEMA
from envkit.ground.errors import UsageError
from envkit.ground.versions import is_version

_GPU = re.compile(r"GPU \d+")
_HINT = "envkit doctor --json > FILE, on the machine with the GPUs"


def is_diagnosis(tree: Any) -> bool:
    """Return whether a document is output of `envkit doctor --json`, of any version."""
    return isinstance(tree, dict) and str(tree.get("schema", "")).startswith(SCHEMA.partition("/")[0])


def parse(tree: Any, where: str) -> Inventory:
    """Return the machine of a diagnosis.

    Raises:
        UsageError: the diagnosis is not about a machine, has an unknown version, or found neither driver nor GPU.
    """
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        schema = tree.get("schema") if isinstance(tree, dict) else None
        raise UsageError(f"{where} has the schema {schema!r:.60}; this envkit reads {SCHEMA}", hint=_HINT)
    if tree.get("subject") != "host":
        subject = tree.get("subject")
        raise UsageError(f"{where} is a diagnosis of {subject!r:.40}, not of a machine ('host')", hint=_HINT)
    known = _facts(tree)
    driver = known.get("driver", "")
    gpus = tuple(Gpu(name=value.split(",", 1)[0]) for name, value in known.items() if _GPU.fullmatch(name))
    driver_found = is_version(driver)
    if not gpus and not driver_found:
        raise UsageError(f"{where}: envkit doctor found no NVIDIA driver and no GPU on that machine", hint=_HINT)
    system, _, machine = known.get("system", "").rpartition(", ")
    host = Host(
        name=str(tree.get("name") or "host"), where="section gpu", gpus=tuple(dict.fromkeys(gpus)),
        driver=driver if driver_found else None, machine=machine or None, os=system or None,
    )  # fmt: skip
    return Inventory(hosts=(host,), form="doctor")


def _facts(tree: dict[str, Any]) -> dict[str, str]:
    """Return the facts of the sections `gpu` and `system`; invalid parts are ignored."""
    sections = tree.get("sections")
    rows = [
        row
        for section in (sections if isinstance(sections, list) else ())
        if isinstance(section, dict) and section.get("id") in ("gpu", "system")
        for row in (section["facts"] if isinstance(section.get("facts"), list) else ())
    ]
    return {
        row["name"]: row["value"]
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("value"), str)
    }
