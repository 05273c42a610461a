from __future__ import annotations

from envkit.doctor.model import Diagnosis, Evidence, Finding, Section, Severity, by_weight
from envkit.doctor.text import lines

LONG = "words " * 40


def shown(*findings: Finding, width: int = 80, verbose: bool = False) -> list[str]:
    section = Section(id="x", title="X", facts=(("a", "1"), ("long", "2")), findings=findings)
    found = Diagnosis(subject="host", name="x", sections=(section, section), exit_code=0, conclusion="done")
    return [line for line, _ in lines(found, width=width, verbose=verbose)]


def test_facts_are_aligned_and_sections_apart() -> None:
    assert shown() == ["X", "  a     1", "  long  2", "", "X", "  a     1", "  long  2", "", "done"]


def test_a_finding_has_its_parts_in_order() -> None:
    finding = Finding(
        id="x", severity=Severity.WARN, title="T", evidence=(Evidence(text="e", line=3), Evidence(text="f")), cause="C",
        check=("c1", "c2"), fix=("F",), distinguish="D", sources=("S",), consequences=("A",), times=2,
    )  # fmt: skip
    text = shown(finding, verbose=True)
    assert text[3:14] == [
        "  warn   T (2 times)", "         seen    line 3: e", "                 f", "         why     C",
        "         check   c1", "                 c2", "         fix     F", "         source  S",
        "         not to be confused with", "                 D",
        "         then    A",
    ]  # fmt: skip
    assert text[-1] == "done (2 warnings)"


def test_prose_fits_the_width_and_evidence_is_never_broken() -> None:
    evidence = "x" * 200
    finding = Finding(id="x", severity=Severity.ERROR, title=LONG, cause=LONG, evidence=(Evidence(text=evidence),))
    text = shown(finding)
    assert any(evidence in line for line in text)
    assert all(len(line) <= 80 for line in text if evidence not in line)


def test_the_worst_comes_first_otherwise_as_it_came() -> None:
    kinds = (Severity.INFO, Severity.ERROR, Severity.WARN, Severity.ERROR)
    found = by_weight(Finding(id=str(place), severity=kind, title="") for place, kind in enumerate(kinds))
    assert [one.id for one in found] == ["1", "3", "2", "0"]
