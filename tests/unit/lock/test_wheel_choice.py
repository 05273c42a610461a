"""Which wheel of a version is taken, and what is read from uv's answer."""

import itertools

import pytest
from packaging.tags import parse_tag

from envkit.ground.errors import EnvironmentProblem
from envkit.lock.wheel_choice import parse_pylock as parse
from envkit.lock.wheel_choice import ranks_of

RANKS = ranks_of("linux-64", "2.36", "3.11")
HEAD = 'lock-version = "1.0"\ncreated-by = "uv"\n'


def row(name: str, *files: str, hashes: str = 'sha256 = "{}"'.format("a" * 64)) -> str:
    wheels = ", ".join(f'{{ url = "https://files.example.com/{file}", hashes = {{ {hashes} }} }}' for file in files)
    return f'[[packages]]\nname = "{name}"\nversion = "1.0"\nwheels = [{wheels}]\n'


BEST_FIRST = (
    "a-1.0-cp311-cp311-manylinux_2_36_x86_64.whl",
    "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "a-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "a-1.0-cp311-cp311-manylinux2014_x86_64.whl",
    "a-1.0-cp311-cp311-linux_x86_64.whl",
    "a-1.0-cp311-abi3-manylinux_2_28_x86_64.whl",
    "a-1.0-cp39-abi3-manylinux_2_28_x86_64.whl",
    "a-1.0-py3-none-manylinux_2_28_x86_64.whl",
    "a-1.0-py3-none-any.whl",
)


@pytest.mark.parametrize(("better", "worse"), list(itertools.pairwise(BEST_FIRST)))
def test_the_most_specific_wheel_is_taken_whatever_the_order(better: str, worse: str) -> None:
    for files in ((better, worse), (worse, better)):
        (found,) = parse(HEAD + row("a", *files), RANKS)
        assert found.url.endswith(better)


def test_a_higher_build_number_wins_among_equals() -> None:
    (found,) = parse(HEAD + row("a", "a-1.0-2-py3-none-any.whl", "a-1.0-10-py3-none-any.whl"), RANKS)
    assert "-10-" in found.url


@pytest.mark.parametrize(
    "file",
    [
        "a-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "a-1.0-cp311-cp311-manylinux_2_39_x86_64.whl",
        "a-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "a-1.0-cp311-cp311-musllinux_1_2_x86_64.whl",
        "a-1.0.tar.gz",
        "a-1.0-cp311-cp311-win_amd64.whl",
    ],
)
def test_a_wheel_that_does_not_fit_is_none(file: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"the index has no compatible wheel of a 1\.0"):
        parse(HEAD + row("a", file), RANKS)


def test_a_file_without_sha256_cannot_be_locked() -> None:
    with pytest.raises(EnvironmentProblem, match=r"has md5 for a-1\.0-py3-none-any\.whl; a lock needs its SHA-256"):
        parse(HEAD + row("a", "a-1.0-py3-none-any.whl", hashes='md5 = "0"'), RANKS)


def test_names_are_normalized_sorted_and_left_out_where_they_stand_for_something_chosen() -> None:
    text = HEAD + row("Zope.Interface", "a-1.0-py3-none-any.whl") + row("b", "b-1.0-py3-none-any.whl")
    assert [one.name for one in parse(text, RANKS)] == ["b", "zope-interface"]
    assert [one.name for one in parse(text, RANKS, without={"b"})] == ["zope-interface"]


def test_an_answer_without_packages_is_no_wheels() -> None:
    assert parse(HEAD, RANKS) == ()


def test_machines_do_not_mix() -> None:
    arm = ranks_of("linux-aarch64", "2.34", "3.12")
    assert any(tag in arm for tag in parse_tag("cp312-cp312-manylinux_2_34_aarch64"))
    assert not any(tag in arm for tag in parse_tag("cp312-cp312-manylinux_2_35_aarch64"))
    assert not any("x86_64" in tag.platform for tag in arm)
