"""The commands of README.md, typed in fresh roots of Debian releases: seconds and exit code of each.

    python -m benchmarks.readme [--only NAME ...] [--cache FOLDER]

Runs as root on Debian. A root has what mmdebstrap's `minbase` installs and a clone of this repository, nothing else:
its commands are read from README.md, so what is tried is what is printed there. `machine` is a root in which namespaces
work, `container` a chroot, where none do. `--cache` keeps downloads and layers from one root to the next; without it
each root downloads 3 GB. Ubuntu is tried where apt's own configuration has it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks._report import Figure, finish, tell
from benchmarks.plain_containers import machine_files
from tests.world import apt

CHECKOUT = Path(__file__).resolve().parents[1]
SUITES = ("bookworm", "trixie")
LIMIT_S = 1800
_AUTHORITIES = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
_INSTALL_LINE = {"machine": "a machine", "container": "a container"}
# What README tells to type after the installation; `run` needs a train.py of the reader.
_USED = ("envkit resolve", "envkit build", "envkit verify", "envkit render")
# The namespaces of a root whose files are not those of a chroot: there the kernel refuses user namespaces.
_ENTER = """\
mount --rbind "$1" "$1" && cd "$1" && mkdir -p .old && pivot_root . .old
mount -t proc proc /proc && umount -l /.old && rmdir /.old
exec /bin/bash /steps
"""
# The shell of README's reader: one, so that `. activate` holds for what follows.
_STEP = """\
began=$EPOCHREALTIME
{line}
code=$?
awk -v a="$began" -v b="$EPOCHREALTIME" -v c="$code" 'BEGIN {{ printf "%.1f %d\\n", b - a, c }}' >> /steps.done
[ "$code" = 0 ] || exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A typed command, its seconds and its exit code."""

    command: str
    seconds: float
    code: int


def commands(readme: str, place: str) -> list[str]:
    """Return the commands that README.md has for a place, without their comments."""
    typed = [line.removeprefix("$ ") for line in readme.splitlines() if line.startswith("$ ")]
    found = []
    for line in typed:
        command, _, comment = re.sub(r"\s+#", "\0", line, count=1).partition("\0")
        is_for_another = command.startswith("apt-get") and not comment.strip().startswith(_INSTALL_LINE[place])
        if not is_for_another and command.startswith(("apt-get", "python3", "pip", "envkit doctor", *_USED)):
            found.append(command)
    return found


def main() -> int:
    """Type the commands in each root; return 0 if each ended with 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    figures = []
    for suite in SUITES:
        for place in _INSTALL_LINE:
            name = f"{suite}, {place}"
            if options.only and name not in options.only:
                continue
            with _root(suite) as root:
                steps = _type(root, commands(readme, place), place, options.cache)
            tell(f"{name}: {sum(step.seconds for step in steps):.0f} s")
            for step in steps:
                tell(f"  {step.seconds:7.1f} s  exit code {step.code}  {step.command}")
            good = sum(step.code == 0 for step in steps)
            goal = len(commands(readme, place))
            figures.append(
                Figure(name=name, figure=good, unit="", better="higher", goal=goal, against="commands of README.md")
            )
    return finish("readme", figures)


@contextmanager
def _root(suite: str) -> Iterator[Path]:
    """Yield a fresh root of a release with a clone of this repository in /root/checkout."""
    sources = [source.line().replace("bookworm", suite) for source in apt.debian_sources()]
    carried = [f"--aptopt={option}" for option in apt.carried_options()]
    with tempfile.TemporaryDirectory(prefix="envkit-readme-", dir="/var/tmp") as folder:
        root = Path(folder, "root")
        command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", *carried, suite, str(root), *sources]
        subprocess.run(command, check=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        shutil.copy(_AUTHORITIES, root / "authorities.crt")
        subprocess.run(["git", "clone", "-q", str(CHECKOUT), str(root / "root/checkout")], check=True)
        with machine_files(root):
            yield root


def _type(root: Path, typed: Sequence[str], place: str, cache: Path | None) -> list[Step]:
    """Type commands in one shell until one fails."""
    (root / "steps").write_text("cd ~/checkout\n" + "".join(_STEP.format(line=line) for line in typed))
    env = {
        "HOME": "/root",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND": "noninteractive",
        **dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"), "/authorities.crt"),
    }
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        (root / "cache").mkdir()
        subprocess.run(["mount", "--bind", str(cache), str(root / "cache")], check=True)
        env["XDG_CACHE_HOME"] = "/cache"
    try:
        inside = ["chroot", str(root), "/bin/bash", "/steps"]
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", _ENTER, "sh", str(root)]
        argv = apart if place == "machine" else inside
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    finally:
        if cache is not None:
            subprocess.run(["umount", str(root / "cache")], check=True)
    rows = (root / "steps.done").read_text().splitlines() if (root / "steps.done").exists() else []
    steps = [
        Step(command=command, seconds=float(row.split()[0]), code=int(row.split()[1]))
        for command, row in zip(typed, rows, strict=False)
    ]
    if done.returncode:
        tell("\n".join((done.stdout + done.stderr).splitlines()[-30:]))
    return steps


if __name__ == "__main__":
    sys.exit(main())
