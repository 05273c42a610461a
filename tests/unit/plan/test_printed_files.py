"""Every line that envkit prints names files that an index is recorded to have.

The recorded lists were not made by this project's rules: index_files.json is what pip says of the Python index, and
pytorch_files.json has the file names of public copies of the PyTorch index (torch up to 2.10.0, torchvision up to
0.25.0, torchaudio up to 2.1.0). A later file is checked against the rows of the facts, which have a source each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from envkit.facts.load import load
from envkit.facts.model import Build
from envkit.ground.versions import key, parse_constraint
from envkit.plan.install import CONDA_FORMATS, FORMATS, text_of
from envkit.resolve.companions import COMPANIONS, companions
from envkit.resolve.index import WHEEL_SOURCES, index
from envkit.resolve.model import Request, Resolution
from envkit.resolve.resolver import resolve
from tests.support import index_files

FACTS = load()
# The last release of each package in the copies of the PyTorch index, and the first whose list is known to be whole.
COPIED = {"torch": "2.10.0", "torchvision": "0.25.0", "torchaudio": "2.1.0"}
_PIN = re.compile(r"(torch|torchvision|torchaudio)(?:==| = (?:\{ version = )?\"==)([0-9][0-9A-Za-z.+]*)")


@cache
def pytorch_files() -> dict[str, dict[str, dict[str, str]]]:
    """Package -> 'cu126 linux-64' -> version in the file name -> Pythons."""
    content: dict[str, dict[str, dict[str, str]]] = json.loads(
        Path(index_files.__file__).with_name("pytorch_files.json").read_text()
    )
    return content


def answers() -> Iterator[tuple[Build, Resolution]]:
    """Every wheel that the facts have, with each of its Pythons, as the answer to a request for just that."""
    for build in FACTS.builds:
        if build.source not in WHEEL_SOURCES or build.pythons is None:
            continue
        for python in build.pythons:
            request = Request(
                torch=parse_constraint(f"=={build.torch}", "--torch"),
                cuda=parse_constraint(build.cuda, "--cuda") if build.cuda else None,
                python=parse_constraint(python, "--python"),
                platform=build.platform,
                source=build.source,
                cpu=build.cuda is None,
                os="ubuntu24.04" if build.glibc and key(build.glibc) > key("2.28") else None,
            )
            yield build, resolve(request, FACTS)


def exists(build: Build, package: str, version: str, python: str) -> bool | None:
    """Whether an index has the file of a pin; None where the recorded lists do not reach so far."""
    public = version.partition("+")[0]
    if build.source == "pypi":
        return python in index_files.table()[package].get(version, {}).get(build.platform, [])
    if key(public) > key(COPIED[package]):
        return None
    folder = "cpu" if build.cuda is None else f"cu{build.cuda.replace('.', '')}"
    lists = pytorch_files()[package]
    pages = [lists.get(f"{page} {build.platform}", {}) for page in (folder, "root")]
    return any(python in page.get(version, "").split() for page in pages)


def stated(build: Build, package: str, version: str, python: str) -> bool:
    """Whether a row of the facts has the file."""
    if package == "torch":
        return version == f"{build.torch}{build.local_version or ''}" and python in (build.pythons or ())
    return any(row.pinned == version for row in companions(build, package, python, index(FACTS)))


def test_every_pin_of_every_format_is_a_file() -> None:
    resolutions, checked, recorded, missing = 0, 0, 0, []
    for build, answer in answers():
        resolutions += 1
        for form in FORMATS.keys() - CONDA_FORMATS:
            text = text_of(answer, form)
            pins = set(_PIN.findall(text))
            assert {name for name, _ in pins} == {"torch", *(name for name in COMPANIONS if name in answer.files)}
            for name, version in sorted(pins):
                checked += 1
                found = exists(build, name, version, answer.python)
                recorded += found is not None
                if not (stated(build, name, version, answer.python) if found is None else found):
                    missing.append(
                        (form, build.torch, build.cuda, build.platform, build.source, answer.python, name, version)
                    )
    assert missing == []
    assert resolutions > 900
    assert (checked > 10_000, recorded > checked // 2) == (True, True)


def test_the_copies_say_what_the_rows_say() -> None:
    """Every row of a companion that a copy of the index reaches is in it, with the same Pythons."""
    different = []
    for row in FACTS.companions:
        if row.index == "pypi" or key(row.version) > key(COPIED.get(row.package, "0")):
            continue
        listed = pytorch_files()[row.package].get(f"{row.index} {row.platform}", {}).get(row.pinned, "").split()
        if tuple(listed) != row.pythons:
            different.append((row.package, row.pinned, row.index, row.platform, row.pythons, listed))
    assert different == []
