"""docs/reference/matrix.md, made from the facts: torch and CUDA by GPU generation with the lowest driver."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from envkit.facts import evidence
from envkit.facts.evidence import GRADES, Evidence, grade_of
from envkit.facts.load import load
from envkit.facts.model import Build, Facts, Gpu
from envkit.ground.versions import key
from envkit.resolve import rules
from envkit.resolve.index import Index, index

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "matrix.md"
# Column -> compute capabilities.
GENERATIONS = {
    "Kepler": ("3.5", "3.7"), "Maxwell": ("5.0", "5.2"), "Pascal": ("6.0", "6.1"), "Volta": ("7.0",),
    "Turing": ("7.5",), "Ampere": ("8.0", "8.6"), "Ada": ("8.9",), "Hopper": ("9.0",), "B200": ("10.0",),
    "B300": ("10.3",), "RTX 50": ("12.0",), "GB10": ("12.1",),
}  # fmt: skip
_COMMIT = 40  # digits
TEXT = """# Builds by GPU and driver

<!-- Made from the facts by `python -m tests.golden --update`. -->

The wheels of the PyTorch index for x86-64, newest first. A cell shows the lowest driver that runs the build on this GPU
generation. `to 580` means that later driver branches do not support the GPU. `PTX` means that the driver compiles the
code for the GPU. An empty cell means that the build has no code for the GPU. If a compute capability stands in front of
the driver, the build covers only this one of the generation.

The two letters after the driver are the grades of evidence for architectures and driver: **p** proved, **q** quoted,
**c** cited, **i** inferred, **x** conflict ([what they mean](../facts.md#evidence)). The last two columns name the
sources of both facts. `envkit matrix show VERSION -v` shows file, hash, offset and quotation.

<div id="facts-filter"></div>

"""


def matrix_page() -> bytes:
    """Return the page with its current table."""
    facts = load()
    known = index(facts)
    builds = [one for one in facts.builds if one.source == "pytorch" and one.platform == "linux-64" and one.cuda]
    builds.sort(key=lambda one: (key(one.torch), key(one.cuda or "0")), reverse=True)
    head = ["torch", "CUDA", *GENERATIONS, "architectures from", "driver from"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(row(build, known))} |" for build in builds]
    return (TEXT + "\n".join(lines) + "\n").encode()


def row(build: Build, known: Index) -> list[str]:
    """Return the cells of a build."""
    facts, need = known.facts, known.needs[build.cuda or ""]
    code = _architectures(build)
    toolkit = [one for one in evidence.read("toolkits") if one.row in _releases(build.cuda or "", facts)]
    compat = need.minimum != need.native
    # A minor-version floor is a row of its own, which no quotation is recorded for.
    driver = "cited" if compat else grade_of(toolkit, "inferred" if need.inferred else None)
    marks = f"{_letter(grade_of(code, _archs_confidence(build)))}{_letter(driver)}"
    cells = [_cell(build, capabilities, known, marks) for capabilities in GENERATIONS.values()]
    source = _said(code) or ("not known" if build.archs is None else ", ".join(build.refs))
    native = "" if compat else _said(toolkit)
    floor = [ref for one in facts.compat if one.cuda_major == key(build.cuda or "0")[0] for ref in one.refs]
    return [build.torch, build.cuda or "", *cells, source, native or ", ".join(floor if compat else need.refs)]


def _archs_confidence(build: Build) -> str | None:
    return "inferred" if build.archs is None else build.confidence


def _letter(grade: str) -> str:
    return "x" if grade == GRADES[-1] else grade[0]


def _releases(cuda: str, facts: Facts) -> set[str]:
    """The first release of a toolkit's minor version: from its driver on, the toolkit runs natively."""
    found = [one.toolkit for one in facts.toolkits if one.linux_min and one.toolkit.startswith(f"{cuda}.")]
    return {min(found, key=key)} if found else set()


def _architectures(build: Build) -> list[Evidence]:
    """What says which code a build has: its own evidence, and that of the same release on the Python index."""
    names = [f"{build.torch} {build.cuda} {source} {build.platform}" for source in ("pytorch", "pypi")]
    return [one for name in names for one in _by_row().get(name, ()) if one.field == "archs"]


@cache
def _by_row() -> dict[str, list[Evidence]]:
    found: dict[str, list[Evidence]] = {}
    for one in evidence.read("builds"):
        found.setdefault(one.row, []).append(one)
    return found


def _said(found: Iterable[Evidence]) -> str:
    best = min(found, key=lambda one: GRADES.index(one.grade), default=None)
    if best is None:
        return ""
    if best.sha256:
        return f"{best.kind} of {best.file} ({best.sha256[:12]})"
    return " ".join(word[:12] if len(word) == _COMMIT else word for word in (best.reference or "").split())


def _cell(build: Build, capabilities: tuple[str, ...], known: Index, marks: str) -> str:
    gpus = [gpu for gpu in known.facts.gpus if gpu.capability in capabilities]
    runs = [gpu for gpu in gpus if rules.code(build, gpu) and rules.cudnn_runs(build, gpu, known)]
    if not runs:
        return ""
    part = "" if len(runs) == len(gpus) else " ".join(gpu.capability for gpu in runs) + ": "
    return f"{part}{_driver(build, runs, known)} {marks}"


def _driver(build: Build, gpus: list[Gpu], known: Index) -> str:
    need = known.needs[build.cuda or ""]
    ptx = all(rules.code(build, gpu) == "ptx" for gpu in gpus)
    lowest = need.native if ptx else need.minimum
    branch = min(gpu.min_driver_branch or 0 for gpu in gpus)
    if branch > key(lowest)[0]:
        lowest = str(branch)
    last = max((gpu.last_driver_branch or 0 for gpu in gpus), default=0)
    return f"{lowest}{f' to {last}' if last else ''}{' PTX' if ptx else ''}"
