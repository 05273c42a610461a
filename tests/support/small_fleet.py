"""Build tasks for small images without a base: real layers from local wheels, built in a second without a network."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path

from envkit.fleet.model import BuildTask
from envkit.lock.model import LockedBase, Wheel
from envkit.lock.store import to_text
from tests.support.locks import lock_for
from tests.support.plans import plan_from
from tests.support.wheels import wheel_entries, write_wheel

BODY = """template: wheels
companions: []
request: {torch: "2.13.0", cpu: true, source: pytorch}
env: {NUMBER: "%d"}
"""


def wheel_of(folder: Path, name: str, size: int) -> Wheel:
    """Return a wheel with random bytes of this size, equal for equal names."""
    folder.mkdir(exist_ok=True)
    data = random.Random(name).randbytes(size)
    path = write_wheel(folder, wheel_entries({f"{name}/data.bin": data}, name=name, deflated=False), name=name)
    whole = path.read_bytes()
    return Wheel(
        name=name,
        version="1.0",
        file=path.name,
        url=f"https://wheels.example.com/{path.name}",
        sha256=hashlib.sha256(whole).hexdigest(),
        size=len(whole),
        source="pypi",
    )


def task_of(number: int, wheels: tuple[Wheel, ...], output: str | None = None) -> BuildTask:
    """Return the task of an image with these wheels, without verification."""
    plan = replace(plan_from(BODY % number), family=(), pip=tuple(wheel.name for wheel in wheels))
    lock = replace(lock_for(plan), wheels=wheels, base=LockedBase(kind="none", reference="none"))
    return BuildTask(
        name=f"small-{number}",
        plan=plan.canonical().decode(),
        lock=to_text(lock),
        engine="embedded",
        output=output and f"{output}:small-{number}",
        tags=(f"envkit/small:{number}",),
        verify=False,
        options={"base": "none", "offline": True},
    )


def tasks_of(folder: Path, count: int, output: str | None = None, *, size: int = 4_000_000) -> list[BuildTask]:
    """Return tasks with a wheel common to all, one per pair and one per task. The wheels are written to `folder`."""
    common = wheel_of(folder, "common", size)
    return [
        task_of(
            number,
            (common, wheel_of(folder, f"own{number}", size // 8), wheel_of(folder, f"pair{number // 2}", size)),
            output,
        )
        for number in range(count)
    ]
