"""Every row and every signature of the knowledge base: positive, near miss, bounded work, sources, links."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.log_size import block
from benchmarks.log_verdicts import KEPT, entries
from envkit.doctor.logs import diagnose_log, scan
from envkit.doctor.logtext import plain
from envkit.doctor.model import Verdict
from envkit.facts.load import load
from envkit.ground import strictyaml
from envkit.knowledge import contexts
from envkit.knowledge.failures import Row, rows
from envkit.knowledge.readings import wanted
from envkit.knowledge.signatures import compiled
from tests.support.linear import MOST_WAYS, ways
from tests.unit.knowledge.test_contexts import CONTEXTS

CASES = Path(__file__).parent / "cases"
ROWS = rows()
FAILING = [*entries(KEPT, "failures")]


@cache
def cases() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(CASES.glob("*.yaml")):
        tree = strictyaml.read_file(path)
        assert isinstance(tree, dict)
        assert not set(tree) & set(found)
        found |= tree
    return found


def found_in(log: str) -> set[str]:
    return set(scan(io.BufferedReader(io.BytesIO(log.encode()))).hits)


def test_there_are_many_rows_and_each_has_its_cases() -> None:
    assert len(ROWS) >= 60
    assert {row.id for row in ROWS} == set(cases())


# A thousand tests of a few milliseconds would cost more than what they do, so what every row has to fulfil is one test
# that names the rows which do not.
def test_every_failure_is_recognized() -> None:
    assert not [row.id for row in ROWS if row.id not in found_in(cases()[row.id]["seen"])]


def test_every_signature_has_a_line_of_its_own() -> None:
    for row in ROWS:
        lines = [plain(line) for line in cases()[row.id]["seen"].splitlines()]
        for signature in row.signatures:
            own = any(signature.has in line.lower() and signature.fits(line) for line in lines)
            assert own, f"{row.id}: {signature}"


def test_what_resembles_a_failure_is_something_else() -> None:
    assert not [row.id for row in ROWS if row.id in found_in(cases()[row.id]["near"])]


def test_a_near_miss_shares_a_word_with_the_failure() -> None:
    """It would prove nothing otherwise."""
    assert not [row.id for row in ROWS if not words(cases()[row.id]["seen"]) & words(cases()[row.id]["near"])]


def words(text: str) -> set[str]:
    return {word.strip(".,:'\"`()").lower() for word in text.split()}


@pytest.mark.parametrize("row", [row for row in ROWS if row.refuted_by], ids=lambda row: row.id)
def test_a_line_that_contradicts_a_row_takes_it_back(row: Row) -> None:
    """Each line that refutes a row does so before and after it, and the line itself stays a failure."""
    seen, lines = cases()[row.id]["seen"], cases()[row.id]["refuted"].splitlines()
    for signature in row.refuted_by:
        assert any(signature.has in line.lower() and signature.fits(plain(line)) for line in lines), signature
    for line in lines:
        for log in (f"{line}\n{seen}", f"{seen}\n{line}\n"):
            assert row.id not in found_in(log), line
            found = diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), "log")
            assert found.findings or found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("row", [row for row in ROWS if row.needs], ids=lambda row: row.id)
def test_a_row_without_what_it_needs_is_not_named(row: Row) -> None:
    lines = cases()[row.id]["seen"].splitlines()
    kept = [
        line for line in lines if not any(need.has in line.lower() and need.fits(plain(line)) for need in row.needs)
    ]
    assert len(kept) < len(lines)
    assert row.id not in found_in("\n".join(kept))


@pytest.mark.parametrize("row", [row for row in ROWS if row.only_in or row.not_in], ids=lambda row: row.id)
def test_a_context_decides_whether_a_row_can_be_meant(row: Row) -> None:
    seen = cases()[row.id]["seen"]
    lines = {context.name: CONTEXTS[context.name]["seen"][0] for context in contexts.table()}
    for name in row.not_in:
        assert row.id not in found_in(f"{lines[name]}\n{seen}")
    for name in row.only_in:
        assert row.id in found_in(f"{lines[name]}\n{seen}")


@pytest.mark.parametrize("row", [row for row in ROWS if row.texts_in], ids=lambda row: row.id)
def test_a_context_has_its_own_texts(row: Row) -> None:
    for name, texts in row.texts_in.items():
        log = f"{CONTEXTS[name]['seen'][0]}\n{cases()[row.id]['seen']}"
        found = diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), "log").findings
        (finding,) = [one for one in found if one.id == row.id]
        # Another context of the case may come first.
        kept = [one for one in row.texts_in.values() if finding.fix == one.get("fix", row.fix)]
        assert texts in kept or len(row.texts_in) > 1
        assert kept


@pytest.mark.parametrize("row", [row for row in ROWS if row.reads], ids=lambda row: row.id)
def test_the_values_of_a_row_are_read(row: Row) -> None:
    """Each line with values is in the case or in a log of the row, and each sentence is said in one of them."""
    logs = [cases()[row.id]["seen"], *(entry["line"] for entry in FAILING if row.id in entry.get("rows", ()))]
    lines = [plain(line) for log in logs for line in log.splitlines()]
    groups: set[str] = set()
    for reading in row.reads:
        assert any(reading.signature.has in line.lower() and reading.signature.fits(line) for line in lines), reading
        groups |= set(compiled(reading.signature.match or "").groupindex)
    said = {wanted(reading.say) for reading in row.reads if reading.say}
    assert set().union(*said) == groups
    causes = " ".join(
        finding.cause
        for log in logs
        for finding in diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), "log").findings
        if finding.id == row.id
    )
    for reading in row.reads:
        start = reading.say.partition("{")[0].strip() or reading.say.rpartition("}")[2].strip()
        assert start in causes, reading


def test_the_work_of_every_expression_is_bounded() -> None:
    for row in ROWS:
        for signature in (*row.signatures, *row.needs, *row.refuted_by, *(reading.signature for reading in row.reads)):
            assert len(signature.has) >= 3, row.id
            for pattern in (signature.match, signature.unless):
                assert pattern is None or ways(pattern) <= MOST_WAYS, f"{row.id}: {pattern}"


def test_an_ordinary_line_of_a_training_is_tested_for_no_row() -> None:
    """A log has millions of them: a literal that they have made one of 2 GB take minutes instead of seconds."""
    text = block(37).lower()
    ordinary = [line for line in re.split(r"[\r\n]", text) if "info step" in line or "it/s]" in line]
    assert len(ordinary) > 50
    ordinary.append("runtimeerror: it failed, error: bad")
    signatures = {
        signature.has: row.id
        for row in ROWS
        for signature in (*row.signatures, *row.needs, *row.refuted_by, *(reading.signature for reading in row.reads))
    }
    assert {has: ident for has, ident in signatures.items() if any(has in line for line in ordinary)} == {}


def test_an_expression_without_a_bound_is_noticed() -> None:
    for pattern in ("a+b", "(a|b)*", r"(?=x)y", r"(x)\1"):
        with pytest.raises(AssertionError):
            ways(pattern)
    assert ways(r".{0,80}x.{0,80}") > MOST_WAYS


def test_every_row_says_what_it_has_to() -> None:
    for row in ROWS:
        assert all((row.title, row.cause, row.check, row.fix, row.distinguish, row.sources)), row.id
        assert not row.title.endswith("."), row.id
        for text in (row.cause, row.distinguish):
            assert text.endswith((".", '"', ")")), f"{row.id}: {text}"


def test_rows_point_at_traps_that_exist() -> None:
    known = {trap.id for trap in load().traps}
    assert not {(row.id, name) for row in ROWS for name in row.traps if name not in known}


def test_no_two_rows_explain_each_other() -> None:
    by_id = {row.id: row for row in ROWS}

    def below(ident: str, path: tuple[str, ...]) -> None:
        assert ident not in path, " -> ".join((*path, ident))
        for name in by_id[ident].explains:
            below(name, (*path, ident))

    for row in ROWS:
        below(row.id, ())


def test_reason_codes_are_those_of_the_rules() -> None:
    folder = Path(__file__).parents[3] / "envkit"
    rules = "".join(
        path.read_text() for part in ("checks", "verify", "smoke") for path in sorted((folder / part).rglob("*.py"))
    )
    missing = {code for row in ROWS for code in row.codes if f'"{code}"' not in rules}
    assert not missing


def test_no_comma_tore_an_entry_apart() -> None:
    for row in ROWS:
        for text in (*row.check, *row.fix):
            assert text.count("(") == text.count(")"), f"{row.id}: {text}"
            assert not text.startswith(("or ", "and ", "with ")), f"{row.id}: {text}"


def test_a_source_is_an_address_or_a_repository() -> None:
    for row in ROWS:
        for source in row.sources:
            assert source.startswith("https://") or source.count("/") == 1, f"{row.id}: {source}"
