"""The claims as claims.yaml has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.checks.catalog import TIERS, catalog
from envkit.ground import strictyaml

FILE = Path(__file__).with_name("claims.yaml")
SCHEMA = "envkit.claims/1"
_KEYS = {"id", "says", "checks", "tier", "figure", "gpu", "least", "most", "known", "sources", "unmeasured"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim. `figure` names the function that reads it from a record; if it is '', `unmeasured` says why.

    `gpu` claims are only about GPUs. `least` and `most` are the numbers claimed, in the figure's unit; None if the
    claim has no number.
    """

    id: str
    topic: str
    says: str
    checks: tuple[str, ...]
    tier: str
    figure: str
    unmeasured: str
    gpu: bool
    least: float | None
    most: float | None
    known: str
    sources: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that measures it on another machine, '' if there is none."""
        if not self.figure:
            return ""
        tier = "" if self.tier == "quick" else f" --tier {self.tier}"
        return f"envkit verify IMAGE{tier} --only {','.join(self.checks)}"

    def holds(self, value: float) -> bool:
        """Whether a figure is as claimed."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def load(path: Path = FILE) -> tuple[Claim, ...]:
    """Return every claim, in the order of the file.

    Raises:
        UsageError: the file is not strict YAML.
        ValueError: a claim is incomplete, or refers to a check that does not exist.
    """
    tree: Any = strictyaml.read_file(path)
    if tree["schema"] != SCHEMA:
        raise ValueError(f"{path}: schema {tree['schema']}, not {SCHEMA}")
    claims = tuple(_claim(item, topic["title"]) for topic in tree["topics"] for item in topic["claims"])
    names = [claim.id for claim in claims]
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: two claims have the same id")
    return claims


def _claim(item: dict[str, Any], topic: str) -> Claim:
    name = item["id"]
    if unknown := set(item) - _KEYS:
        raise ValueError(f"{name}: unknown {', '.join(sorted(unknown))}")
    known_checks = {entry.id: entry for entry in catalog()}
    if strange := [check for check in item["checks"] if check not in known_checks]:
        raise ValueError(f"{name}: unknown check {', '.join(strange)}")
    if any(TIERS.index(known_checks[check].tier) > TIERS.index(item["tier"]) for check in item["checks"]):
        raise ValueError(f"{name}: tier {item['tier']} does not run its checks")
    if bool(item.get("figure")) == bool(item.get("unmeasured")):
        raise ValueError(f"{name}: needs either figure or unmeasured")
    if not item["sources"] or not item["known"].strip():
        raise ValueError(f"{name}: needs known and sources")
    return Claim(
        id=name,
        topic=topic,
        says=item["says"],
        checks=tuple(item["checks"]),
        tier=item["tier"],
        figure=item.get("figure") or "",
        unmeasured=item.get("unmeasured") or "",
        gpu=item.get("gpu") is True,
        least=_number(item.get("least")),
        most=_number(item.get("most")),
        known=item["known"].strip(),
        sources=tuple(item["sources"]),
    )


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
