"""Read machines from the text of an inventory; the format is detected from the text."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

from envkit.cover.hosts import Inventory
from envkit.cover.inventory import diagnosis, kubernetes, plain, slurm, smi
from envkit.facts.model import Facts
from envkit.ground import trees
from envkit.ground.errors import UsageError

FORMS = ("auto", "csv", "json", "nvidia-smi", "kubectl", "slurm", "doctor")
_HINT = "write `name,gpu,driver` as the first line; envkit cover --help lists the formats (--format)"


def read_inventory(text: str, facts: Facts, *, form: str = "auto", where: str = "stdin") -> Inventory:
    """Return the machines of an inventory.

    Args:
        text: the output of a tool, or a CSV or JSON file.
        facts: the known GPU names.
        form: one of FORMS.
        where: names the text in errors.

    Raises:
        UsageError: the format is unknown, or rows are invalid; all errors of the rows are listed.
    """
    # Excel begins a CSV file in UTF-8 with a byte order mark.
    clean = text.removeprefix("\ufeff").strip("\r\n")
    if not clean.strip():
        raise UsageError(f"{where} has no hosts", hint=_HINT)
    if clean.lstrip()[0] in "[{":
        tree = trees.from_json(clean, where, surrogates=True, hint="kubectl get nodes -o json > FILE")
        inventory = _of_json(tree, form, where)
    else:
        try:
            inventory = _of_text(clean, facts, form, where)
        except csv.Error as error:
            raise UsageError(f"{where} is not an inventory: {error}", hint=_HINT) from error
    if not inventory.hosts:
        notes = f" ({'; '.join(inventory.notes)})" if inventory.notes else ""
        raise UsageError(f"{where} has no hosts with a GPU{notes}", hint=_HINT)
    return replace(inventory, hosts=tuple(replace(host, where=f"{where}, {host.where}") for host in inventory.hosts))


def _of_json(tree: Any, form: str, where: str) -> Inventory:
    if slurm.is_json(tree):
        raise UsageError(f"{where} is Slurm's JSON, which differs between its versions", hint=slurm.COMMAND)
    if form not in ("auto", "json", "kubectl", "doctor"):
        raise UsageError(f"{where} is JSON, not {form}", hint="remove --format")
    if form == "kubectl" or (form == "auto" and kubernetes.is_nodes(tree)):
        return kubernetes.parse(tree, where)
    if form == "doctor" or (form == "auto" and diagnosis.is_diagnosis(tree)):
        return diagnosis.parse(tree, where)
    return plain.parse_json(tree, where)


def _of_text(text: str, facts: Facts, form: str, where: str) -> Inventory:
    if form in ("json", "kubectl", "doctor"):
        raise UsageError(f"{where} is not JSON", hint="kubectl get nodes -o json, or remove --format")
    if form == "slurm" or (form == "auto" and slurm.is_table(text)):
        return slurm.parse_text(text, facts, where)
    if form == "nvidia-smi" or (form == "auto" and smi.is_answer(text, facts)):
        return smi.parse(text, facts, where)
    if form == "csv" or plain.is_table(text):
        return plain.parse_csv(text, where)
    raise UsageError(f"{where} has an unknown format; it begins with {text[:60]!r}", hint=_HINT)
