"""The values that a log names: versions as the libraries number them, and sentences of several lines."""

from __future__ import annotations

import io

import pytest

from envkit.doctor.logs import diagnose_log
from envkit.knowledge.failures import Reading
from envkit.knowledge.readings import Value, Values
from envkit.knowledge.signatures import Signature


@pytest.mark.parametrize(
    ("number", "library", "version"),
    [
        ("12080", "cuda", "12.8"),
        ("11040", "cuda", "11.4"),
        ("121", "cuda", "12.1"),
        ("8907", "cudnn", "8.9.7"),
        ("9100", "cudnn", "9.1.0"),
        ("90100", "cudnn", "9.1.0"),
        ("12.4", "cuda", "12.4"),
        ("8907", "", "8907"),
        ("8907", "cuDNN", "8.9.7"),
        ("120304", "cuBLAS", "120304"),
    ],
)
def test_a_number_is_written_as_a_version(number: str, library: str, version: str) -> None:
    assert format(Value(number), library) == version


def reading(match: str, say: str = "") -> Reading:
    return Reading(signature=Signature(has="", match=match), say=say)


def test_a_sentence_has_the_values_of_the_lines_before_it() -> None:
    values = Values()
    needs = reading(r"(?P<who>\w{1,9}) needs", "")
    what = reading(r"- (?P<what>\w{1,9})", "{who} needs {what}.")
    for line in ("torch needs", "- cuda", "vision needs", "- torch", "- torch"):
        values.read(needs, line)
        values.read(what, line)
    assert list(values.sentences()) == ["torch needs cuda.", "vision needs torch."]


def test_a_sentence_waits_for_a_value_that_comes_later_and_is_left_out_without_it() -> None:
    values = Values()
    first = reading(r"installed (?P<installed>\d{1,5})", "{installed} is installed, {needed} is needed.")
    values.read(first, "installed 8")
    assert list(values.sentences()) == []
    values.read(reading(r"needed (?P<needed>\d{1,5})"), "needed 9")
    assert list(values.sentences()) == ["8 is installed, 9 is needed."]


def test_each_library_has_its_own_version() -> None:
    values = Values()
    for line, part in (("8907", "cuDNN"), ("11080", "CUDA")):
        values.read(reading(r"(?P<part>\w{2,9})"), part)
        values.read(reading(r"(?P<found>\d{3,6})", "{part} {found:{part}} was found."), line)
    assert list(values.sentences()) == ["cuDNN 8.9.7 was found.", "CUDA 11.8 was found."]


def test_the_number_of_sentences_is_bounded() -> None:
    values = Values()
    for number in range(99):
        values.read(reading(r"(?P<n>\d{1,5})", "It is {n}."), str(number))
    assert len(list(values.sentences())) == 6


def test_a_value_with_braces_is_only_text() -> None:
    log = "package {x.__class__}-1 requires cuda {0!r}, but none of the providers can be installed\n"
    (finding,) = diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), "log").findings
    assert "{x.__class__}-1 requires cuda {0!r}." in finding.cause


def test_broken_hardware_is_named_before_a_fault_of_a_program() -> None:
    log = (
        "NVRM: Xid (PCI:0000:00:05): 43, pid=1045242, name=python, Ch 00000008\n"
        "NVRM: Xid (PCI:0000:00:08): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No\n"
    )
    first, second = diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), "log").findings
    assert (first.id, second.id) == ("gpu-memory-error", "gpu-program-fault")
    assert "the GPU at PCI 0000:00:08" in first.cause
