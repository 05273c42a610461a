"""The file lists of the torch family on the Python index: which (version, Python, platform) has a wheel.

`python -m tests.support.index_files` writes index_files.json again, with pip and the index in its configuration. Tests
compare the facts and the resolver's answers with this table, so they need no network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("index_files.json")
PACKAGES = ("torch", "torchvision", "torchaudio")
PYTHONS = tuple(f"3.{minor}" for minor in range(6, 16))
# The newest tag of each kind; pip adds the older tags that manylinux2014 includes.
TAGS = {
    "linux-64": ("manylinux_2_28_x86_64", "manylinux2014_x86_64"),
    "linux-aarch64": ("manylinux_2_28_aarch64", "manylinux2014_aarch64"),
}
_AVAILABLE = re.compile(r"^Available versions: (.*)$", re.MULTILINE)

Table = dict[str, dict[str, dict[str, list[str]]]]


@cache
def table() -> Table:
    """Return the committed table: package -> version -> platform -> Pythons."""
    content: Table = json.loads(TABLE.read_text())
    return content


def versions(package: str, python: str, platform: str) -> list[str]:
    """Return the releases of a package that have a wheel for a Python and a platform, according to pip."""
    number = python.replace(".", "")
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--only-binary=:all:"]
    # Old releases require 3.6.2 or later.
    command += ["--python-version", "3.6.15" if python == "3.6" else python, "--implementation", "cp"]
    # ABI tags have no `m` since Python 3.8.
    command += ["--abi", f"cp{number}m" if python in ("3.6", "3.7") else f"cp{number}"]
    command += [word for tag in TAGS[platform] for word in ("--platform", tag)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = _AVAILABLE.search(done.stdout)
    if match is None and "No matching distribution found" not in done.stderr:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    # Releases with a local version come from this machine's own index.
    return [release for release in match.group(1).split(", ") if "+" not in release] if match else []


def collect() -> Table:
    """Return the table of the index's current files."""
    queries = [(package, python, platform) for package in PACKAGES for python in PYTHONS for platform in TAGS]
    content: Table = {package: {} for package in PACKAGES}
    with ThreadPoolExecutor(4) as pool:
        for (package, python, platform), releases in zip(
            queries, pool.map(lambda query: versions(*query), queries), strict=True
        ):
            for release in releases:
                content[package].setdefault(release, {}).setdefault(platform, []).append(python)
    return content


def text(content: Table) -> str:
    """Return the table as JSON with one release per line, oldest first."""
    lines: list[str] = []
    for package in PACKAGES:
        releases = sorted(content[package].items(), key=lambda row: [int(part) for part in re.findall(r"\d+", row[0])])
        rows = ",\n".join(f'  "{version}": {json.dumps(platforms)}' for version, platforms in releases)
        lines.append(f'"{package}": {{\n{rows}\n}}')
    return "{" + ",\n".join(lines) + "}\n"


if __name__ == "__main__":
    TABLE.write_text(text(collect()), encoding="utf-8", newline="\n")
