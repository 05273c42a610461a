"""Image x machine: all verifications of a run as one table. Pure: nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envkit.fleet.report import most_severe
from envkit.fleet.verify_task import Machine, Verification
from envkit.report.reading import blames_machine, headline

SCHEMA = "envkit.fleet-verify/1"
_MOST_CHECKS = 3  # in one cell
_MOST_LINES = 8  # below the table, per image


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All verifications of one run. `kept` has the path of each record, in their order; None if it was not saved."""

    images: tuple[str, ...]
    machines: tuple[Machine, ...]
    verifications: tuple[Verification, ...]
    kept: tuple[str | None, ...]

    @property
    def exit_code(self) -> int:
        """The most severe of all."""
        return most_severe([verification.exit_code for verification in self.verifications])

    def table(self) -> list[list[str]]:
        """Return the head with the machines, then a row of cells for each image."""
        head = ["image", *(f"{machine.name}{self._in_brackets(machine)}" for machine in self.machines)]
        rows = [[image, *(cell(self._at(image, machine)) for machine in self.machines)] for image in self.images]
        return [head, *rows]

    def remarks(self) -> list[str]:
        """Return the reasons and hints of cells without a PASS; machines with equal remarks on an image are merged."""
        grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for verification in self.verifications:
            if verification.exit_code or verification.verdict != "PASS":
                grouped.setdefault((verification.image, tuple(remarks(verification))), []).append(verification.machine)
        return [
            line
            for (image, lines), machines in grouped.items()
            for line in (f"{image} on {', '.join(machines)}: {lines[0]}", *(f"  {detail}" for detail in lines[1:]))
        ]

    def to_json(self, scheduler: str | None = None) -> dict[str, Any]:
        """Return a JSON-ready tree with the full records."""
        return {
            "schema": SCHEMA,
            "scheduler": scheduler,
            "images": list(self.images),
            "machines": [
                {
                    "name": machine.name,
                    "host": machine.host,
                    "address": machine.address,
                    "hardware": self._hardware(machine) or None,
                }
                for machine in self.machines
            ],
            "proofs": [
                _tree(verification, path) for verification, path in zip(self.verifications, self.kept, strict=True)
            ],
            "exit_code": self.exit_code,
        }

    def _at(self, image: str, machine: Machine) -> Verification | None:
        return next(
            (
                verification
                for verification in self.verifications
                if (verification.image, verification.machine) == (image, machine.name)
            ),
            None,
        )

    def _hardware(self, machine: Machine) -> str:
        """Return a machine's hardware as its records describe it; empty if no payload ran there."""
        descriptions = [
            hardware(verification.record)
            for verification in self.verifications
            if verification.machine == machine.name and verification.record is not None
        ]
        return next((text for text in descriptions if text), "")

    def _in_brackets(self, machine: Machine) -> str:
        description = self._hardware(machine)
        return f" ({description})" if description else ""


def cell(verification: Verification | None) -> str:
    """Return `PASS`, `FAIL C04 C06`, `ERROR exit 9`, `MACHINE FAULT C24` if the machine is faulty, or `-` for None."""
    if verification is None:
        return "-"
    record = verification.record
    if record is None:
        return f"{verification.verdict} exit {verification.exit_code}"
    machine = blames_machine(record["summary"])
    shown = [str(row["id"]) for row in _bad(record) if row["gates"] and (blames_machine(row) or not machine)]
    more = ["..."] if len(shown) > _MOST_CHECKS else []
    return " ".join([headline(record["summary"]), *shown[:_MOST_CHECKS], *more])


def remarks(verification: Verification) -> list[str]:
    """Return why a verification did not plainly pass: the verdict, then a line for each reason and each check."""
    record, code = verification.record, verification.exit_code
    if record is None:
        hint = [f"hint: {verification.hint}"] if verification.hint else []
        return [f"{verification.verdict}, exit code {code}: {verification.error}", *verification.details, *hint]
    reasons = [str(row["message"]) for row in record["summary"]["reasons"]]
    bad = _bad(record)
    more = [f"and {len(bad) - _MOST_LINES} more checks"] if len(bad) > _MOST_LINES else []
    checks = [f"{row['id']} {row['reason_code']}: {row['message']}" for row in bad[:_MOST_LINES]]
    return [f"{headline(record['summary'])}, exit code {code}", *reasons, *checks, *more]


def _bad(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the checks that failed or could not run; none if the run itself failed, which is the reason then."""
    if record["run"]["trouble"] is not None:
        return []
    return [row for row in record["checks"] if row["verdict"] in ("FAIL", "ERROR")]


def hardware(record: Mapping[str, Any]) -> str:
    """Return `2 x NVIDIA H200, driver 550.54`, or the processor; empty if the payload reported neither."""
    gpus = [gpu for gpu in record["env"]["gpu"] if isinstance(gpu, dict) and gpu.get("name")]
    if gpus:
        driver = f", driver {gpus[0]['driver']}" if gpus[0].get("driver") else ""
        return f"{f'{len(gpus)} x ' if len(gpus) > 1 else ''}{gpus[0]['name']}{driver}"
    processor = (record["env"]["host"] or {}).get("cpu_model")
    return f"no GPU, {processor}" if processor else ""


def _tree(verification: Verification, kept: str | None) -> dict[str, Any]:
    return {
        "image": verification.image,
        "machine": verification.machine,
        "worker": verification.worker,
        "verdict": verification.verdict,
        "exit_code": verification.exit_code,
        "duration_s": round(verification.duration_s, 3),
        "error": verification.error,
        "hint": verification.hint,
        "kept": kept,
        "record": None if verification.record is None else dict(verification.record),
    }
