from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit import smoke
from envkit.ground.errors import PayloadError
from envkit.verify import payload
from envkit.verify.payload import parse_document, payload_archive, suite_digest
from tests.support.judging import document, observation, printed

NONCE = "n0nce"


def whole(*checks: Any, **changed: Any) -> bytes:
    return printed({**document(*checks, nonce=NONCE), **changed}, NONCE)


def test_the_archive_is_the_same_bytes_every_time_and_small() -> None:
    assert payload_archive() == payload_archive()
    # It travels in every run, and base64-encoded in a ConfigMap of at most 1 MB.
    assert len(payload_archive()) <= 128 * 1024


def test_the_suite_has_a_digest_of_its_own() -> None:
    assert len(suite_digest()) == 64
    assert suite_digest() == suite_digest()


def test_the_archive_holds_every_source_and_nothing_else_dated_alike() -> None:
    with zipfile.ZipFile(io.BytesIO(payload_archive())) as archive:
        names = archive.namelist()
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names == sorted(names)
    assert {
        "__main__.py",
        "envkit/__init__.py",
        "envkit/smoke/__main__.py",
        "envkit/checks/c00_container.py",
    } <= set(names)
    assert not [name for name in names if not name.endswith(".py") and name != "envkit/checks/catalog.json"]
    assert not [name for name in names if "__pycache__" in name or name.endswith(("/judge.py", "/show.py"))]


def test_both_sides_agree_on_schema_and_end_mark() -> None:
    assert (payload.SCHEMA, payload.END_MARK) == (smoke.SCHEMA, smoke.END_MARK)


def test_a_sound_document_is_returned() -> None:
    found = parse_document(whole(observation("C05.fp32")), NONCE)
    assert found["checks"][0]["observed"] == {"error": 2e-7}


def test_an_entrypoint_may_print_before_the_document() -> None:
    banner = b'== PyTorch ==\nNVIDIA Release 24.01\n{"not": "it"}\n'
    assert parse_document(banner + whole(), NONCE)["schema"] == "envkit.payload/1"


def test_escape_codes_and_hidden_characters_are_taken_out_of_every_string() -> None:
    check = observation("C05")
    check["observed"] = {"\x1b[1mkey": ["\x1b]0;title\x07red \x1b[31mtext\x1b[0m", "a\u202eb\x00c\rd"], "n": 1}
    assert parse_document(whole(check), NONCE)["checks"][0]["observed"] == {"key": ["red text", "abcd"], "n": 1}


@pytest.mark.requirement("R48")
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "ends early; its last line is: nothing"),
        (b"Killed\n", "ends early; its last line is: Killed"),
        (b"\x1b[31mred\n", "its last line is: red"),
        (whole()[:-20], "ends early"),
        (whole() + whole(), "a second document with the nonce of this run"),
        (whole() + b"text\n" + whole(observation("C05")), "a second document with the nonce of this run"),
        (f"envkit.payload.end {NONCE}\n".encode(), "no document"),
        (f"not json\nenvkit.payload.end {NONCE}\n".encode(), "is not JSON"),
        (f'{{"a": NaN}}\nenvkit.payload.end {NONCE}\n'.encode(), "NaN is not a JSON number"),
        (f'{{"a": -Infinity}}\nenvkit.payload.end {NONCE}\n'.encode(), "-Infinity is not a JSON number"),
        (f'{{"a": 1e999}}\nenvkit.payload.end {NONCE}\n'.encode(), "1e999 is too large"),
        (f'{{"a": -2e100}}\nenvkit.payload.end {NONCE}\n'.encode(), "-2e100 is too large"),
        (f'{{"a": 1{"0" * 400}}}\nenvkit.payload.end {NONCE}\n'.encode(), "0000 is too large"),
        (f'{{"a": 1, "a": 2}}\nenvkit.payload.end {NONCE}\n'.encode(), "same key twice"),
        (b"[" * 100_000 + f"\nenvkit.payload.end {NONCE}\n".encode(), "is not JSON"),
        (b'{"a": "\xff"}\n' + f"envkit.payload.end {NONCE}\n".encode(), "is not JSON"),
        (f"[]\nenvkit.payload.end {NONCE}\n".encode(), "not a JSON object"),
        (whole(schema="envkit.payload/9"), "'envkit.payload/9', expected 'envkit.payload/1'"),
        (whole(nonce="another"), "nonce of another run"),
        (whole(env=[]), "no usable env"),
        (whole(seed=True), "no usable seed"),
        (whole(checks=[1]), r"checks\[0\] of the payload's document: not an object"),
        (whole(observation("../../etc")), "id is '../../etc'"),
        (whole(observation("C05", status="passed")), "status is 'passed'"),
        (whole(observation("C05", observed=[])), "observed is"),
        (whole(observation("C05", controls=None)), "controls is None"),
        (whole(observation("C05", reason="because")), "reason is 'because'"),
        (whole(observation("C05"), observation("C05")), "C05 on cpu appears twice"),
        (whole(*[observation(f"C05.x{number}") for number in range(1001)]), "1001 observations"),
    ],
)
def test_a_document_that_is_not_one_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        parse_document(raw, NONCE)
    assert caught.value.exit_code == 6
    assert "\x1b" not in caught.value.message


@pytest.mark.requirement("R48")
def test_more_than_the_limit_is_refused_unread() -> None:
    with pytest.raises(PayloadError, match="more than the limit of 8388608"):
        parse_document(b" " * (payload.MAX_BYTES + 1), NONCE)


@pytest.mark.requirement("R48")
def test_a_run_without_a_nonce_cannot_be_told_from_another() -> None:
    with pytest.raises(PayloadError, match="this run has no nonce"):
        parse_document(printed(document(nonce=""), ""), "")


@pytest.mark.requirement("R48")
@given(st.binary(max_size=400))
def test_no_bytes_make_it_fail_in_another_way(raw: bytes) -> None:
    with pytest.raises(PayloadError):
        parse_document(raw, NONCE)


@given(
    st.recursive(st.none() | st.floats() | st.text(), lambda item: st.lists(item) | st.dictionaries(st.text(), item))
)
def test_no_tree_makes_it_fail_in_another_way(tree: object) -> None:
    raw = f"{json.dumps(tree)}\nenvkit.payload.end {NONCE}\n".encode()
    with pytest.raises(PayloadError):
        parse_document(raw, NONCE)
