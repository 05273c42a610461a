"""Packages that go with torch as constraints of a request: `--with torchaudio`, `--torchvision 0.20`."""

from collections.abc import Callable

import pytest

from envkit.plan.install import command
from envkit.resolve.model import Conflict, Resolution

Answer = Callable[[str], Resolution]
Find = Callable[[str], Conflict]


def test_the_answer_is_the_newest_torch_that_the_package_is_for(answer: Answer) -> None:
    found = answer("--with torchaudio")
    assert (found.torch, found.cuda, found.torchaudio) == ("2.14.1", "13.0", "2.11.0")
    assert "torchaudio==2.11.0" in command(found)
    assert answer("--torchvision 0.21").torch == "2.6.0"
    assert "torchtext==0.18.0" in command(answer("--with torchtext"))


def test_a_newer_build_of_another_source_is_not_denied(answer: Answer) -> None:
    """torchcodec is on the Python index only, where CUDA 12.6 ends with torch 2.7.1."""
    found = answer("--with torchcodec --cuda 12.6")
    assert (found.torch, found.source) == ("2.7.1", "pypi")
    assert found.reasons["torch"] == "last release with CUDA 12.6 on the Python index"


def test_what_would_have_a_package_names_the_source_if_it_is_another(answer: Answer) -> None:
    assert any(
        line.endswith("there is one with --source pytorch --cuda 13.0") for line in answer("--source pypi").warnings
    )
    assert any(line.endswith("there is one with --cuda 13.0") for line in answer("--torch 2.15").warnings)


@pytest.mark.parametrize(
    ("line", "because"),
    [
        ("--with torchaudio --cuda 13.2", "CUDA 13.2 has no torchaudio"),
        ("--torchvision 0.20 --torch 2.9", "torchvision==0.20 is available for torch 2.5.0 to 2.5.1"),
        ("--torchvision 0.20 --torch 2.9", "torch 2.9 has torchvision 0.24.0, 0.24.1"),
        ("--with torchtext --torch 2.9", "torchtext is available for torch 1.8.0 to 2.3.1"),
        ("--with torchaudio==2.5 --python 3.14", "torchaudio==2.5 is available for Python 3.9, 3.10, 3.11, 3.12, 3.13"),
        ("--with torchaudio --with torchvision==0.20 --torch 2.9", "torch 2.9 has torchvision 0.24.0, 0.24.1"),
    ],
)
def test_a_clash_says_which_versions_there_are(line: str, because: str, conflict: Find) -> None:
    assert because in conflict(line).because


def test_a_version_that_no_index_has_is_said_with_those_there_are(conflict: Find) -> None:
    found = conflict("--torchvision 9.9")
    assert found.clash == ("--with torchvision==9.9",)
    assert found.because[0].startswith("torchvision==9.9 is not in the compatibility data of ")


@pytest.mark.parametrize(
    ("line", "spec"),
    [
        ("--with torchaudio", " torchaudio "),
        ("--torchvision '0.20.*'", " torchvision=0.20 "),
        ("--torchvision '>=0.20,<0.21'", " 'torchvision >=0.20,<0.21' "),
    ],
)
def test_conda_chooses_a_version_that_is_unknown_here(line: str, spec: str, answer: Answer) -> None:
    found = answer(f"--source conda-forge {line}")
    assert spec in command(found)
    assert found.torch == ("2.13.0" if "audio" in line else "2.5.1")


def test_conda_is_not_asked_for_a_pair_that_upstream_does_not_have(conflict: Find) -> None:
    found = conflict("--source conda-forge --torchvision 0.20 --torch 2.9")
    assert found.suggestions[0].change == "--torch 2.5 instead of 2.9"
