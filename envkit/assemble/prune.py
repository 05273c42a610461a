"""Which of the things that are kept go, and their removal: what was used longest ago first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envkit.assemble.stock import Entry, alone, entries, take_away

USUAL_S = 30 * 86400.0  # what no build has used for so long, the next one will hardly use


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What may go; a field that is None says nothing. What killed runs left goes by every rule."""

    keep: int | None = None  # bytes that may stay
    older_than_s: float | None = None  # unused for so long
    everything: bool = False
    images: bool = False  # images in the state folder, too


@dataclass(slots=True, kw_only=True)
class Pruned:
    """What was done."""

    removed: list[Entry] = field(default_factory=list)
    in_use: list[Entry] = field(default_factory=list)
    freed: int = 0  # bytes
    held: int = 0  # bytes of removed entries that stay on the disk, because images have the same files


def chosen(kept: Sequence[Entry], rule: Rule, now: float) -> tuple[Entry, ...]:
    """The entries that a rule lets go, in the order of their removal. `kept` begins with what was used longest ago."""
    candidates = [one for one in kept if rule.images or one.kind != "images"]
    total = sum(one.size for one in candidates)
    found = []
    for one in candidates:
        old = rule.older_than_s is not None and one.used < now - rule.older_than_s
        much = rule.keep is not None and total > rule.keep
        if rule.everything or old or much or one.kind == "leftovers":
            found.append(one)
            total -= one.size
    return tuple(found)


def prune(cache: Path, state: Path, rule: Rule) -> Pruned:
    """Remove what a rule lets go. What builds or runs use at this moment stays.

    Args:
        cache: XDG_CACHE_HOME/envkit.
        state: XDG_STATE_HOME/envkit.
        rule: what may go.
    """
    done = Pruned()
    with alone(cache) as idle:
        for entry in chosen(entries(cache, state), rule, time.time()):
            gone = take_away(entry, idle=idle)
            if gone is None:
                done.in_use.append(entry)
                continue
            done.removed.append(entry)
            done.freed += gone[0]
            done.held += gone[1]
    return done
