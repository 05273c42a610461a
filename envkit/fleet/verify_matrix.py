"""Image x machine: all verifications of a run as one table. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.fleet.report import SEVERITY
from envkit.fleet.verify_task import Machine, Verification
from envkit.report.reading import blames_machine, headline

SCHEMA = "envkit.fleet-verify/1"
_MOST_CHECKS = 3  # in a cell
_MOST_LINES = 8  # below the table, of one image


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All verifications of one run. `kept` is where each record lies, in their order; None where it does not."""

    images: tuple[str, ...]
    machines: tuple[Machine, ...]
    verifications: tuple[Verification, ...]
    kept: tuple[str | None, ...]

    @property
    def exit_code(self) -> int:
        """The most severe of all."""
        return most_severe([verification.exit_code for verification in self.verifications])

    def table(self) -> list[list[str]]:
        """Rows of cells under a row of machines."""
        head = ["image", *(f"{machine.name}{self._told(machine)}" for machine in self.machines)]
        rows = [[image, *(cell(self._at(image, machine)) for machine in self.machines)] for image in self.images]
        return [head, *rows]

    def remarks(self) -> list[str]:
        """Why cells are not plain passes, and what to do; machines that say the same of an image say it together."""
        said: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for verification in self.verifications:
            if verification.exit_code or verification.verdict != "PASS":
                said.setdefault((verification.image, tuple(remarks(verification))), []).append(verification.machine)
        return [
            line
            for (image, lines), machines in said.items()
            for line in (f"{image} on {', '.join(machines)}: {lines[0]}", *(f"  {detail}" for detail in lines[1:]))
        ]

    def to_json(self, scheduler: str | None = None) -> dict[str, Any]:
        """A JSON-ready tree with whole records."""
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
        """What the records tell of a machine; empty where no payload ran there."""
        descriptions = [
            hardware(verification.record)
            for verification in self.verifications
            if verification.machine == machine.name and verification.record is not None
        ]
        return next((text for text in descriptions if text), "")

    def _told(self, machine: Machine) -> str:
        description = self._hardware(machine)
        return f" ({description})" if description else ""


def most_severe(codes: Sequence[int]) -> int:
    """Return the most severe exit code; 0 if there is none."""
    return min(codes, key=lambda code: SEVERITY.index(code) if code in SEVERITY else -1, default=0)


def cell(found: Verification | None) -> str:
    """`PASS`, `FAIL C04 C06`, `NOT_VERIFIED`, `ERROR exit 9`; `MACHINE FAULT C24` where the machine is faulty."""
    if found is None:
        return "-"
    if found.record is None:
        return f"{found.verdict} exit {found.exit_code}"
    machine = blames_machine(found.record["summary"])
    shown = [str(row["id"]) for row in _bad(found.record) if row["gates"] and (blames_machine(row) or not machine)]
    more = ["..."] if len(shown) > _MOST_CHECKS else []
    return " ".join([headline(found.record["summary"]), *shown[:_MOST_CHECKS], *more])


def remarks(found: Verification) -> list[str]:
    """Return why one verification is not a plain pass: the verdict, then a line for each reason and each check."""
    if found.record is None:
        hint = [f"hint: {found.hint}"] if found.hint else []
        return [f"{found.verdict}, exit code {found.exit_code}: {found.error}", *found.details, *hint]
    reasons = [str(row["message"]) for row in found.record["summary"]["reasons"]]
    bad = _bad(found.record)
    more = [f"and {len(bad) - _MOST_LINES} more checks"] if len(bad) > _MOST_LINES else []
    checks = [f"{row['id']} {row['reason_code']}: {row['message']}" for row in bad[:_MOST_LINES]]
    said = headline(found.record["summary"])
    return [f"{said}, exit code {found.exit_code}", *reasons, *checks, *more]


def _bad(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The checks that failed or could not be held; none where the run itself ended badly, which says it all."""
    if record["run"]["trouble"] is not None:
        return []
    return [row for row in record["checks"] if row["verdict"] in ("FAIL", "ERROR")]


def hardware(record: Mapping[str, Any]) -> str:
    """`2 x NVIDIA H200, driver 550.54`, or the processor; empty where the payload told nothing."""
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
