"""The differences between two locks, one line per package."""

from __future__ import annotations

from envkit.lock.model import Lock


def between(old: Lock | None, new: Lock) -> tuple[str, ...]:
    """`numpy 2.3.0 -> 2.4.6`, `+ pillow 13.0.0`, `- six 1.17.0`, sorted by name; nothing without an old lock."""
    if old is None:
        return ()
    before, after = _versions(old), _versions(new)
    lines = []
    for kind, name in sorted({*before, *after}, key=lambda pair: (pair[1], pair[0])):
        was, now = before.get((kind, name)), after.get((kind, name))
        if was == now:
            continue
        if was is None:
            lines.append(f"+ {name} {now}")
        elif now is None:
            lines.append(f"- {name} {was}")
        else:
            lines.append(f"{name} {was} -> {now}")
    return tuple(lines)


def _versions(lock: Lock) -> dict[tuple[str, str], str]:
    found = {("base", package.name): package.version for package in lock.base.packages}
    if lock.base.digest:
        found["base", lock.base.reference] = lock.base.digest
    found |= {("conda", package.name): f"{package.version} {package.build}" for package in lock.conda}
    return found | {("wheel", wheel.name): wheel.version for wheel in lock.wheels}
