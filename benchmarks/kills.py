"""kill -9 at random moments of build, lock, push and verify: outputs are old, new or absent, and the next run works.

    python -m benchmarks.kills [COUNT] [SEED]

COUNT kills of each command (default 10; 100 makes 400 kills and takes about half an hour on two cores).
The moment of a kill is drawn evenly from the time that the command takes undisturbed. After each kill, everything that
the command writes is read back: every blob of an image is hashed, a lock is compared byte for byte, the blobs of a tag
are fetched, a record is parsed. After every tenth kill, and at the end, the same command runs to its end and must give
what it gave before. Then no process and no file of the killed commands may be left.
"""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._report import Figure, finish
from benchmarks._small import Small, small
from envkit.ground import identity

_RUN_AGAIN = 10  # kills between two complete runs
_GONE_S = 20.0  # how long processes of a killed run may take to end


@dataclass(frozen=True, slots=True)
class _Command:
    """A command, its exit code, the check of its outputs, and the names of these outputs."""

    name: str
    argv: Sequence[str]
    code: int
    check: Callable[[Small], None]
    fresh: Sequence[str]


@dataclass(slots=True)
class Tally:
    """The kills of one command."""

    name: str
    tried: int = 0
    running: int = 0  # kills that came while the command ran
    lost: list[str] = field(default_factory=list)


def main() -> int:
    """Kill the commands and print the table; return 0 if nothing was lost."""
    count, seed = (int(text) for text in (*sys.argv[1:3], *("10", "1")[len(sys.argv) - 1 :]))
    chance = random.Random(seed)  # noqa: S311 - moments, not secrets
    before = frozenset(Path("/sys/fs/cgroup").rglob("envkit-*"))
    with small() as here:
        commands = (
            _Command("build", here.build(), 0, _image_is_whole, ("out", "cache")),
            _Command("lock", here.lock(), 0, _lock_is_whole, ("new.lock",)),
            _Command("push", here.push("killed"), 0, _tag_is_whole, ()),
            _Command("verify", here.verify(), 6, _record_is_whole, ("record.json",)),
        )
        tallies = [_kill(here, command, count, chance) for command in commands]
        left = _left(here, before)
    print(f"{'kill -9 in':<10} {'tried':>6} {'running':>8} {'lost':>5}")
    for tally in tallies:
        print(f"{tally.name:<10} {tally.tried:>6} {tally.running:>8} {len(tally.lost):>5}")
    lost = [f"{tally.name}: {text}" for tally in tallies for text in tally.lost] + left
    print("\n".join(lost) or "nothing was lost, and nothing is left of the killed runs")
    total = sum(tally.tried for tally in tallies)
    running = sum(tally.running for tally in tallies)
    survived = 100 * (total - min(len(lost), total)) / total
    against = f"{total} kills, {running} of a running command, {len(lost)} problems"
    return finish(
        "kills", [Figure(name="survived", figure=survived, unit="%", better="higher", goal=100, against=against)]
    )


def _kill(here: Small, command: _Command, count: int, chance: random.Random) -> Tally:
    """Kill a command `count` times. Its output is removed before every other kill, so that half of the runs have it."""
    argv, code, check = command.argv, command.code, command.check
    tally = Tally(command.name)
    usual = here.run(argv).seconds
    for number in range(count):
        if number % 2:
            here.forget(*command.fresh)
        ended = here.signaled(argv, signal.SIGKILL, chance.uniform(0, usual))
        tally.tried += 1
        tally.running += ended.code == -signal.SIGKILL
        if ended.code not in (-signal.SIGKILL, code):
            tally.lost.append(f"kill {number}: exit code {ended.code}: {ended.err[-300:]}")
        _noted(tally, number, lambda: check(here))
        if number % _RUN_AGAIN == _RUN_AGAIN - 1 or number == count - 1:
            again = here.run(argv)
            usual = min(usual, again.seconds)  # the machine may have been busier during the first run
            if again.code != code:
                tally.lost.append(f"the run after kill {number}: exit code {again.code}: {again.err[-300:]}")
            _noted(tally, number, lambda: check(here))
    print(f"{command.name}: {tally.tried} kills, {len(tally.lost)} lost", flush=True)
    return tally


def _noted(tally: Tally, number: int, check: Callable[[], None]) -> None:
    try:
        check()
    except (ValueError, OSError) as error:
        tally.lost.append(f"after kill {number}: {error}")


def _image_is_whole(here: Small) -> None:
    digest = here.digest_of("out")
    if digest not in (None, here.digest):
        raise ValueError(f"out is {digest}")


def _lock_is_whole(here: Small) -> None:
    path = here.folder / "new.lock"
    if path.exists() and path.read_bytes() != (here.folder / "x.lock").read_bytes():
        raise ValueError("new.lock is not the lock")


def _tag_is_whole(here: Small) -> None:
    base = f"http://{here.registry}/v2/team/small"
    manifest = _fetched(f"{base}/manifests/killed")
    if manifest is None:
        return
    tree = json.loads(manifest)
    for row in (tree["config"], *tree["layers"]):
        if _fetched(f"{base}/blobs/{row['digest']}") is None:
            raise ValueError(f"the tag's {row['digest']} is missing")


def _fetched(url: str) -> bytes | None:
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    try:
        with urllib.request.urlopen(  # noqa: S310 - the registry on loopback
            urllib.request.Request(url, headers=accept),  # noqa: S310
            timeout=20,
        ) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def _record_is_whole(here: Small) -> None:
    for path in (here.folder / "record.json", *(here.folder / "state/envkit/records").glob("*.json")):
        if path.exists():
            json.loads(path.read_bytes())


def _left(here: Small, before: frozenset[Path]) -> list[str]:
    """Return what is left of the killed runs: processes, partial files, scratch and run folders, control groups.

    `before` has the control groups that are older than all of them.
    """
    until = time.monotonic() + _GONE_S
    while (processes := here.left()) and time.monotonic() < until:
        time.sleep(0.1)
    left = [f"process {pid}" for pid in processes]
    left += [str(path) for path in (here.folder / "tmp").iterdir()]
    left += [str(path) for path in (here.folder / "cache/envkit/runs").iterdir()]
    left += [str(path) for path in here.folder.glob(".*.tmp")]
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    groups = (path for path in Path("/sys/fs/cgroup").rglob("envkit-*") if path.is_dir() and path not in before)
    return left + [str(path) for path in groups if is_leftover(path.name, namespace, identity.start_ticks)]


def is_leftover(group: str, namespace: int, start_ticks: Callable[[int], str]) -> bool:
    """Return whether a control group is that of a run that has ended; False if this process cannot tell.

    Args:
        group: its name, `envkit-NAMESPACE-PID-STARTED-RANDOM`.
        namespace: the number of this process's PID namespace; process IDs of another mean nothing here.
        start_ticks: when a process started; empty if it does not exist.
    """
    match = re.fullmatch(r"envkit-(\d+)-(\d+)-(\d+)-[0-9a-f]+", group)
    return match is not None and int(match[1]) == namespace and start_ticks(int(match[2])) != match[3]


if __name__ == "__main__":
    sys.exit(main())
