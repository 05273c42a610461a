"""Documents of the payload that were recorded on real machines, below `tests/machines/recordings/payload`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.checks.catalog import judges, select
from envkit.verify.exitcode import Summary, summarize
from envkit.verify.judge import Judged, judge
from envkit.verify.normalize import normalized

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parents[1] / "machines" / "recordings" / "payload"


@dataclass(frozen=True, slots=True)
class Recording:
    """One run of the payload. `expected` has the reason codes of a planted fault by finding, None without a fault."""

    name: str
    tier: str
    only: tuple[str, ...]
    spec: Mapping[str, Any]
    expected: Mapping[str, str] | None
    document: Mapping[str, Any]

    def judged(self) -> tuple[Judged, ...]:
        """Return the findings of today's judges with the thresholds in force."""
        return judge(normalized(self.document), self.spec, select(self.tier, self.only), judges())

    def codes(self) -> dict[str, tuple[str, str | None]]:
        """Return verdict and reason code of each finding that did not pass, by its ID."""
        return {
            item.id: (str(item.finding.verdict), item.finding.reason_code)
            for item in self.judged()
            if item.finding.verdict != "PASS" and item.finding.reason_code != "NOT_PROMISED"
        }

    def summary(self) -> Summary:
        """Return the verdict on the image."""
        return summarize(self.judged(), self.spec)


@cache
def recordings(machine: str) -> Mapping[str, Recording]:
    """Return the recordings of a machine by name."""
    found = {}
    for line in (FOLDER / f"{machine}.jsonl").read_text(encoding="utf-8").splitlines():
        tree = json.loads(line)
        only = tuple(tree["only"].split(",")) if tree["only"] else ()
        found[tree["name"]] = Recording(
            tree["name"], tree["tier"], only, tree["spec"], tree.get("expected"), tree["document"]
        )
    return found
