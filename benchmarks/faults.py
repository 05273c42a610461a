"""Signals, damaged caches, full disks and wrong clocks: how many faults were tried, and how many lost something.

    python -m benchmarks.faults [--full] [signals] [damage] [disks] [clocks]

Runs as root on Linux, in its own mount namespace. By default it is a sample of a few minutes; `--full` takes about an
hour on two cores:

    signals   SIGHUP, SIGINT and SIGTERM at 186 random moments of build and verify: within ten seconds the exit code is
              that of the signal (or the command's own, if it had ended); no process and no partial output is left
    damage    20 files of a warm cache, each damaged in 12 ways: the next build gives the same image
    disks     file systems of 4 KiB to 20 MiB, and with few inodes, under the cache, the output, the state, the lock and
              TMPDIR: exit code 0 or 9, the output complete or absent, the old lock unchanged, and the next run works
    clocks    1970, 2038, 2099, 400 days off, and sixty times as fast, cold and warm: the same image, the same lock
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._report import Figure, finish
from benchmarks._small import Small, small
from tests.world import apt

_INSIDE = "--inside"
_SEED = 1
_END_S = 10.0  # from a signal to the end of the command
_CLOCKS = ("@1970-01-02 00:00:00", "@2038-01-20 00:00:00", "@2099-01-01 00:00:00", "-400d", "+400d", "+0 x60")
_DISKS = (
    "size=4k",
    "size=64k",
    "size=256k",
    "size=1m",
    "size=2m",
    "size=4m",
    "size=20m",
    "nr_inodes=4",
    "nr_inodes=12",
)


@dataclass(slots=True)
class Tally:
    """How often one kind of fault was tried, and every problem it caused."""

    name: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)

    def count(self, what: str, problem: str | None) -> None:
        """Count one fault; `problem` is what went wrong, None if nothing did."""
        self.tried += 1
        if problem is not None:
            self.lost.append(f"{self.name}, {what}: {problem}")
            print(self.lost[-1], flush=True)
        if self.tried % 20 == 0:
            print(f"{self.name}: {self.tried} tried, {len(self.lost)} lost", flush=True)


def main() -> int:
    """Cause the faults and print the table; return 0 if nothing was lost."""
    arguments = sys.argv[1:]
    if _INSIDE not in arguments:
        if os.geteuid() != 0:
            raise SystemExit("benchmarks.faults mounts small file systems, so it must run as root")
        argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "benchmarks.faults"]
        os.execvp(argv[0], [*argv, _INSIDE, *arguments])  # noqa: S606 - a list of arguments, no shell
    full = "--full" in arguments
    chosen = [name for name in _KINDS if name in arguments] or list(_KINDS)
    tallies = []
    with small() as here:
        for name in chosen:
            tallies.append(Tally(name))
            _KINDS[name](here, tallies[-1], full=full)
            print(f"{name}: {tallies[-1].tried} tried, {len(tallies[-1].lost)} lost", flush=True)
    print(f"{'fault':<10} {'tried':>6} {'survived':>9} {'lost':>5}")
    for tally in tallies:
        print(f"{tally.name:<10} {tally.tried:>6} {tally.tried - len(tally.lost):>9} {len(tally.lost):>5}")
    tried, lost = sum(tally.tried for tally in tallies), sum(len(tally.lost) for tally in tallies)
    survived = 100 * (tried - lost) / tried
    against = ", ".join(f"{tally.name} {tally.tried - len(tally.lost)} of {tally.tried}" for tally in tallies)
    return finish(
        "faults", [Figure(name="survived", figure=survived, unit="%", better="higher", goal=100, against=against)]
    )


def _signals(here: Small, tally: Tally, *, full: bool) -> None:
    chance = random.Random(_SEED)  # noqa: S311 - moments, not secrets
    commands = [(here.build(), 0, ("out", "cache")), (here.verify(), 6, ("record.json",))]
    usual = [here.run(argv).seconds for argv, _, _ in commands]
    kinds = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    for number in range(186 if full else 12):
        argv, code, fresh = commands[number % 2]
        if number % 4 < 2:
            here.forget(*fresh)
        kind, moment = kinds[number % 3], chance.uniform(0, usual[number % 2])
        ended = here.signaled(argv, kind, moment)
        problem = None
        if ended.code not in (128 + kind, -kind, code):
            problem = f"exit code {ended.code}: {ended.err[-500:]}"
        elif ended.seconds > moment + _END_S and ended.code != code:
            problem = f"ended {ended.seconds - moment:.1f} s after the signal"
        elif ended.code == 128 + kind and f"ended by {kind.name}" not in ended.err:
            problem = f"does not name the signal: {ended.err[-500:]}"
        tally.count(f"{kind.name} {moment:.2f} s into {argv[0]}", problem or _image(here, "out", absent=True))
    time.sleep(1)
    if left := here.left():
        tally.lost.append(f"signals: processes {left} are left")


def _damage(here: Small, tally: Tally, *, full: bool) -> None:
    argv = here.build()
    here.run(argv)
    root = here.folder / "cache/envkit"
    files = sorted(path for path in root.rglob("*") if path.is_file() and "tree" not in path.parts)
    step = max(1, len(files) // 20)
    chosen = {path: path.read_bytes() for path in files[::step] if path.stat().st_size}
    for number, (path, first) in enumerate(list(chosen.items())[:20]):
        for at, (what, damage) in enumerate(_DAMAGES.items()):
            if not full and (number + at) % 10:
                continue
            # A build that did not need the file has left it damaged.
            before = (path.read_bytes() if path.is_file() else b"") or first
            _remove(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            damage(path, before)
            here.forget("out")
            ended = here.run(argv)
            problem = None if ended.code == 0 else f"exit code {ended.code}: {ended.err[-400:]}"
            tally.count(f"{path.relative_to(root)} {what}", problem or _image(here, "out"))
            if problem is not None:
                here.forget("cache")
                here.run(argv)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _change_byte_and_keep_old_time(path: Path, data: bytes) -> None:
    at = len(data) // 2
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    os.utime(path, (1_700_000_000, 1_700_000_000))


def _folder_with_a_file(path: Path, data: bytes) -> None:
    path.mkdir()
    (path / "file").write_bytes(data)


_DAMAGES: Mapping[str, Callable[[Path, bytes], object]] = {
    "empty": lambda path, _: path.touch(),
    "cut in half": lambda path, data: path.write_bytes(data[: len(data) // 2]),
    "first byte changed": lambda path, data: path.write_bytes(bytes([data[0] ^ 1]) + data[1:]),
    "a byte changed, old time": _change_byte_and_keep_old_time,
    "zeros": lambda path, data: path.write_bytes(bytes(len(data))),
    "random": lambda path, data: path.write_bytes(random.Random(_SEED).randbytes(len(data))),  # noqa: S311
    "longer": lambda path, data: path.write_bytes(data + b"x"),
    "gone": lambda *_: None,
    "a folder": lambda path, _: path.mkdir(),
    "a folder with a file": _folder_with_a_file,
    "a link to nowhere": lambda path, _: path.symlink_to("nowhere"),
    "a pipe": lambda path, _: os.mkfifo(path),
}


def _disks(here: Small, tally: Tally, *, full: bool) -> None:
    disk = here.folder / "disk"
    disk.mkdir()
    kept = (here.folder / "x.lock").read_bytes()
    commands: tuple[tuple[str, Sequence[str], Mapping[str, str]], ...] = (
        ("the cache", here.build(), {"XDG_CACHE_HOME": str(disk)}),
        ("the output", here.build(f"oci:{disk}/out"), {}),
        ("the state", here.build(), {"XDG_STATE_HOME": str(disk)}),
        ("the lock", here.lock(f"{disk}/new.lock"), {}),
        ("TMPDIR", here.lock(), {"TMPDIR": str(disk)}),
    )
    for at, (where, argv, env) in enumerate(commands):
        for number, options in enumerate(_DISKS):
            if not full and (number + at) % 4:
                continue
            here.forget("out", "new.lock")
            with _mounted(disk, options):
                if where == "the lock" and options.startswith("size"):
                    with contextlib.suppress(OSError):
                        (disk / "new.lock").write_bytes(b"old")
                ended = here.run(argv, env)
                problem = None if ended.code in (0, 9) else f"exit code {ended.code}: {ended.err[-500:]}"
                if ended.code == 9 and "hint:" not in ended.err:
                    problem = f"the error has no hint: {ended.err[-500:]}"
                problem = problem or _image(here, "disk/out", absent=True) or _image(here, "out", absent=True)
                for lock in (disk / "new.lock", here.folder / "new.lock"):
                    if lock.exists() and lock.read_bytes() not in (kept, b"old", b""):
                        problem = f"{lock} is a partial lock"
            tally.count(f"{options} under {where}", problem)
    ended = here.run(here.build())
    if ended.code or _image(here, "out"):
        tally.lost.append(f"disks: the next build: {ended.code}")


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=0755", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _clocks(here: Small, tally: Tally, *, full: bool) -> None:
    apt.require("faketime", "faketime")
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    kept = (here.folder / "x.lock").read_bytes()
    for clock in _CLOCKS if full else _CLOCKS[::2]:
        env = {"LD_PRELOAD": str(library), "FAKETIME": clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        for warm in (False, True):
            here.forget("out", *(() if warm else ("cache",)))
            ended = here.run(here.build(), env)
            problem = None if ended.code == 0 else f"exit code {ended.code}: {ended.err[-400:]}"
            tally.count(f"{clock}, {'warm' if warm else 'cold'}", problem or _image(here, "out"))
    here.forget("new.lock")
    ended = here.run(here.lock(), {"LD_PRELOAD": str(library), "FAKETIME": _CLOCKS[2]})
    same = (here.folder / "new.lock").exists() and (here.folder / "new.lock").read_bytes() == kept
    tally.count("the lock in 2099", None if same else f"exit code {ended.code}: {ended.err[-400:]}")


def _image(here: Small, layout: str, *, absent: bool = False) -> str | None:
    """Return what is wrong with a layout; None if it is the image, or if it may be absent and is."""
    try:
        digest = here.digest_of(layout)
    except ValueError as error:
        return str(error)
    return None if digest == here.digest or (digest is None and absent) else f"the image is {digest}"


_KINDS: Mapping[str, Callable[..., None]] = {
    "signals": _signals, "damage": _damage, "disks": _disks, "clocks": _clocks,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
