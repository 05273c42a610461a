"""Real processes through the host runner: every way a payload can end has its exit code, and none a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.run.host import HostRunner
from envkit.verify import driver
from envkit.verify.driver import Options, verify_image
from envkit.verify.record import Record, schema
from tests.support.again import assert_same_again
from tests.support.judging import Load, plan
from tests.support.schema import faults

# In a stub, $1 is the payload and $3 the spec that the real Python would be given.
_NONCE = 'n=$(sed -e \'s/.*"nonce": "//\' -e \'s/".*//\' "$3")'
_EMPTY = (
    '{\\"schema\\":\\"envkit.payload/1\\",\\"nonce\\":\\"$n\\",\\"suite_version\\":\\"1\\",\\"started\\":\\"x\\",'
    '\\"duration_s\\":1,\\"tier\\":\\"quick\\",\\"seed\\":0,\\"env\\":{},\\"checks\\":[],\\"order\\":[]}'
)
_CLAIM = f'{_NONCE}; echo "{_EMPTY}"; echo "envkit.payload.end $n"'


def stub(folder: Path, script: str, *, timeout_s: float = 60) -> Record:
    python = folder / "python-stub"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    record = verify_image(
        image_name(str(python)), plan(cuda=None), HostRunner(), Silent(), Options(timeout_s=timeout_s)
    )
    assert faults(record.tree, schema(), closed=True) == []
    assert_same_again(record)
    return record


@pytest.mark.parametrize(
    ("script", "verdict", "code"),
    [
        ('echo hello; echo "::error::x"', "ERROR", "PAYLOAD_OUTPUT"),
        ('echo "{}"; echo "envkit.payload.end 0123"', "ERROR", "PAYLOAD_OUTPUT"),
        ("exit 0", "ERROR", "PAYLOAD_OUTPUT"),
        # Cut inside the document and before its last line, doubled, and of another run.
        (f'{_NONCE}; echo "{_EMPTY}" | head -c 90; echo; echo "envkit.payload.end $n"', "ERROR", "PAYLOAD_OUTPUT"),
        (f'{_NONCE}; echo "{_EMPTY}"', "ERROR", "PAYLOAD_OUTPUT"),
        (f"{_CLAIM}; {_CLAIM}", "ERROR", "PAYLOAD_OUTPUT"),
        (f'n=0123; echo "{_EMPTY}"; echo "envkit.payload.end $n"', "ERROR", "PAYLOAD_OUTPUT"),
        # The image claims a document before the payload prints its own.
        (f'{_CLAIM}; exec "{sys.executable}" -S "$1" --spec "$3" --only C00', "ERROR", "PAYLOAD_OUTPUT"),
        (
            "exec yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
            "ERROR",
            "PAYLOAD_OUTPUT",
        ),
        (f"{_CLAIM}; exit 1", "FAIL", "PAYLOAD_EXIT"),
        ("kill -BUS $$", "FAIL", "SHM_TOO_SMALL"),
        ("kill -SEGV $$", "FAIL", "CRASHED"),
        ("kill -ABRT $$", "FAIL", "ABORTED"),
        ("exec /nonexistent/python", "FAIL", "PYTHON_MISSING"),
    ],
)
def test_an_ending_is_a_verdict_and_exit_6(tmp_path: Path, script: str, verdict: str, code: str) -> None:
    record = stub(tmp_path, script)
    assert (record.verdict, record.exit_code) == (verdict, 6)
    assert record.tree["summary"]["reasons"][0]["code"] == code


def test_a_whole_document_without_a_check_proves_nothing(tmp_path: Path) -> None:
    record = stub(tmp_path, _CLAIM)
    assert (record.verdict, record.exit_code) == ("ERROR", 6)
    assert [reason["code"] for reason in record.tree["summary"]["reasons"]] == ["NOTHING_EXECUTED"]
    assert {check["reason_code"] for check in record.tree["checks"]} == {"NOT_OBSERVED"}


@pytest.mark.long
def test_a_run_that_said_everything_and_does_not_end_is_read_all_the_same(tmp_path: Path) -> None:
    record = stub(tmp_path, f'{_CLAIM}; trap "" TERM; while :; do sleep 0.1; done', timeout_s=1)
    assert {check["reason_code"] for check in record.tree["checks"]} == {"NOT_OBSERVED"}
    assert [reason["code"] for reason in record.tree["summary"]["reasons"]] == ["NOTHING_EXECUTED"]


def test_a_payload_that_never_ends_is_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Pressure", Load)  # on a machine that is busy it would be inconclusive
    record = stub(tmp_path, 'trap "" TERM; echo started >&2; while :; do sleep 0.1; done', timeout_s=1)
    assert (record.verdict, record.exit_code) == ("ERROR", 124)
    assert record.tree["summary"]["reasons"][0]["code"] == "TIME_LIMIT"


def test_the_real_payload_on_this_machine_is_reported_and_not_proved_without_a_plan() -> None:
    record = verify_image(image_name("host"), None, HostRunner(), Silent(), Options(only=("C00",), timeout_s=120))
    assert faults(record.tree, schema(), closed=True) == []
    assert_same_again(record)
    assert (record.verdict, record.exit_code) == ("NOT_VERIFIED", 5)
    ran = {check["id"]: check["verdict"] for check in record.tree["checks"] if check["reason_code"] != "NOT_SELECTED"}
    assert set(ran) == {"C00.gpu", "C00.shm", "C00.memlock", "C00.env"}
    assert set(ran.values()) <= {"PASS", "WARN", "SKIP"}
    assert record.tree["env"]["host"]["effective"] > 0
