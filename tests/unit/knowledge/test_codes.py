"""Each code of each table: its line, what resembles it, texts and sources."""

from __future__ import annotations

import io

import pytest

from envkit.doctor.logs import diagnose_log
from envkit.doctor.model import Diagnosis
from envkit.knowledge import codes
from envkit.knowledge.codes import Code
from envkit.knowledge.failures import rows
from tests.support.linear import MOST_WAYS, ways

EVERY = [code for name in codes.NAMES for code in codes.table(name).codes]


def line(code: Code) -> str:
    """A line that shows a code, as its library prints it."""
    return {
        "xid": f"NVRM: Xid (PCI:0000:b3:00): {code.number}, pid=812, name=python",
        "nvml": f"Failed to initialize NVML: {code.text}",
        "cuda": f"RuntimeError: CUDA error: {code.text}",
        "cudnn": f"RuntimeError: cuDNN error: {code.symbol}",
        "nccl": f"DistBackendError: NCCL error in: NCCLUtils.hpp:317, {code.symbol}",
    }[code.table]


def near_miss(code: Code) -> str:
    """A line that has the words of a code and is of another program."""
    if code.table == "xid":
        return f"transaction {code.number} got xid {code.number} (PCI slot 3)"
    if code.table in ("cuda", "nvml"):
        return f"the archive of the old server: {code.text[:-1]}, {code.symbol}s"
    return f"{code.symbol}_OF_ANOTHER my{code.symbol}"


def diagnosed(text: str) -> Diagnosis:
    return diagnose_log(io.BufferedReader(io.BytesIO(text.encode())), "log")


def test_every_code_is_read_from_its_line() -> None:
    # Two numbers of CUDA have the same text.
    same = {code: {one.text for one in EVERY if one.table == code.table == "cuda"} & {code.text} for code in EVERY}
    read = {code: codes.read(line(code)) for code in EVERY}
    assert not [code for code, found in read.items() if code not in found and found[0].text not in same[code]]


def test_every_code_is_explained() -> None:
    for code in EVERY:
        found, shown = codes.read(line(code)), diagnosed(line(code) + "\n").findings
        assert {row.id for one in found for row in one.rows} & {one.id for one in shown}, code
        assert any(one.means in finding.cause for one in found for finding in shown), code


def test_what_resembles_a_code_is_something_else() -> None:
    assert not [f"{code.table} {code.name}" for code in EVERY if codes.read(near_miss(code))]


def test_a_text_alone_belongs_to_a_library_only_if_no_other_program_prints_it() -> None:
    texts = [code for code in EVERY if code.text]
    assert not [code for code in texts if (code in codes.read(f"train.py: {code.text}")) is not code.is_alone]


def test_every_code_says_what_it_has_to() -> None:
    for code in EVERY:
        assert code.means.endswith("."), code
        assert code.rows, code
        for row in code.rows:
            assert all((row.title, row.cause, row.check, row.fix, row.sources)), code
            assert row.distinguish.endswith((".", '"', ")")), code
            for text in (*row.check, *row.fix):
                assert text.count("(") == text.count(")"), text


@pytest.mark.parametrize("name", codes.NAMES)
def test_a_table_has_a_public_source_and_each_number_and_name_once(name: str) -> None:
    table = codes.table(name)
    assert all(source.startswith("https://") for source in table.sources)
    numbers = [code.number for code in table.codes if code.number is not None]
    assert len(numbers) == len(set(numbers))
    assert len(table.codes) == len({code.name for code in table.codes})


def test_no_two_rows_have_the_same_id() -> None:
    made = [row.id for code in EVERY if code.kind is not None for row in code.rows]
    every = [*made, *(row.id for row in rows())]
    assert len(every) == len(set(every))
    known = set(every)
    assert not {name for code in EVERY for row in code.rows for name in row.explains} - known


def test_a_row_without_a_signature_is_that_of_a_code() -> None:
    named = {row.id for code in EVERY for row in code.rows}
    unlisted = codes.table("xid").unlisted
    assert unlisted is not None
    assert {row.id for row in rows() if not row.signatures} <= named | {unlisted.id}


def test_the_work_of_the_patterns_is_bounded() -> None:
    for pattern in (codes._CUDA, codes._LOCATED, codes._NUMBERED, codes._NVML, codes._NCCL, codes._XID, codes._SYMBOL):
        assert ways(pattern.pattern) <= MOST_WAYS


def test_all_numbers_of_the_catalog_are_in_the_table() -> None:
    assert [code.number for code in codes.table("xid").codes] == list(range(1, 173))


def test_a_number_that_the_catalog_does_not_have_is_still_an_xid() -> None:
    found = diagnosed("NVRM: Xid (PCI:0000:b3:00): 199, pid=1, new\n")
    assert [finding.id for finding in found.findings] == ["gpu-xid"]
    assert found.exit_code == 5


def test_the_error_that_tore_a_channel_down_is_the_cause() -> None:
    found = diagnosed("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149\n")
    assert found.findings[0].id == "xid-149"


@pytest.mark.parametrize("action", codes.table("xid").actions)
def test_the_action_that_the_driver_asks_for_is_read(action: str) -> None:
    log = (
        "NVRM: Xid (PCI:0000:b3:00): 119, pid=1, Timeout after 6s of waiting for RPC response\n"
        f"NVRM: Xid (PCI:0000:b3:00): 154, pid=1, GPU recovery action changed from 0x0 (None) to 0x1 ({action})\n"
    )
    first = diagnosed(log).findings[0]
    assert first.id == "gpu-gsp"
    assert f"asks for {action}: {codes.table('xid').actions[action]}." in first.cause


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Error 700: cannot open the socket", None),
        ("top-1 error 2: out of memory of the student", None),
        ("cuda runtime error (59) : device-side assert triggered at THC.cu:265", "device-assert"),
        ("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA error: CUDA_ERROR_ILLEGAL_ADDRESS", "illegal-access"),
        ("RuntimeError: CUDA error: an illegal instruction was encountered", "cuda-illegal-instruction"),
        ("pynvml.nvml.NVMLError_DriverNotLoaded: Driver Not Loaded", "driver-not-running"),
        ("NVRM: Xid (0000:03:00): 32, Channel ID 00000001", "xid-32"),
        ("CUDA driver is a stub library", "cuda-stub-library"),
        ("MPS client failed to connect to the MPS control daemon or the MPS server", "cuda-mps-connection-failed"),
    ],
)
def test_lines_of_other_programs_and_of_old_releases(text: str, first: str | None) -> None:
    found = diagnosed(text + "\n").findings
    assert (found[0].id if found else None) == first
