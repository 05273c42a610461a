"""Whose the name of the distribution is, from what an index answers."""

import json

import pytest

from benchmarks.index_name import NAMES, PUBLISHED, File, Owner, files_of, owner
from envkit.ground.errors import EnvironmentProblem

A, B = "a" * 64, "b" * 64
WHEEL = "envkit_gpu-0.2.0-py3-none-any.whl"


def test_the_names_are_those_that_an_index_takes_for_the_same() -> None:
    assert NAMES == ("envkit-gpu", "envkitgpu")
    assert frozenset() == PUBLISHED


@pytest.mark.parametrize(
    ("status", "files", "found"),
    [
        (404, (), Owner.FREE),
        (200, (), Owner.OTHERS),  # reserved: its owner can upload files at any time
        (200, (File(WHEEL, A),), Owner.OURS),
        (200, (File(WHEEL, B),), Owner.OTHERS),  # our name and file name with another project's bytes
        (200, (File(WHEEL, A), File("envkit_gpu-0.3.0-py3-none-any.whl", B)), Owner.OTHERS),
        (200, (File(WHEEL, None),), Owner.OTHERS),
    ],
)
def test_only_the_bytes_say_whose_a_file_is(status: int, files: tuple[File, ...], found: Owner) -> None:
    assert owner(status, files, published={A}) is found


@pytest.mark.parametrize("status", [302, 401, 403, 429, 500, 503])
def test_an_index_that_does_not_answer_says_nothing(status: int) -> None:
    with pytest.raises(EnvironmentProblem, match=f"the index answers {status}"):
        owner(status, ())


def test_both_forms_of_a_list_are_read() -> None:
    tree = {"files": [{"filename": WHEEL, "hashes": {"sha256": A}}, {"filename": "x.zip", "hashes": {}}]}
    assert files_of(json.dumps(tree).encode(), "application/vnd.pypi.simple.v1+json") == (
        File(WHEEL, A), File("x.zip", None),
    )  # fmt: skip
    page = f'<a href="https://files.example/{WHEEL}#sha256={A}" data-yanked>{WHEEL}</a><a href="x.zip">x.zip</a>'
    assert files_of(page.encode(), "text/html") == (File(WHEEL, A), File("x.zip", None))
    assert files_of(b"<html></html>", "text/html") == ()


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"files": 3}', b'{"files": [3]}', b"\xff", b"[" * 100000])
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(EnvironmentProblem, match="no list of files"):
        files_of(data, "application/json")
