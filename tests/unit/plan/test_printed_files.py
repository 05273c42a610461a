"""Every line that envkit prints names files that an index is recorded to have, or a row of the facts."""

from __future__ import annotations

import re

from envkit.facts.load import load
from envkit.facts.model import Build
from envkit.ground.versions import key
from envkit.plan.install import CONDA_FORMATS, FORMATS, text_of
from envkit.resolve.companions import COMPANIONS, companions
from envkit.resolve.index import index
from tests.support import index_files
from tests.support.family_files import COPIED, answers, pytorch_files

FACTS = load()
_PIN = re.compile(r"(torch|torchvision|torchaudio)(?:==| = (?:\{ version = )?\"==)([0-9][0-9A-Za-z.+]*)")


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
    for build, answer in answers(FACTS):
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
