"""What a short text shows: the rows of the log reader, read by checks, by records and by this machine's diagnosis."""

from __future__ import annotations

import io

import pytest

from envkit.doctor.logs import diagnose_log
from envkit.knowledge import matching, variables
from envkit.knowledge.failures import Severity, rows
from tests.unit.doctor.test_knowledge import cases


def test_a_short_text_shows_what_a_log_shows() -> None:
    for row in rows():
        seen = cases()[row.id]["seen"]
        found = diagnose_log(io.BufferedReader(io.BytesIO(seen.encode())), "log").findings
        causes = [finding.id for finding in found if finding.severity is Severity.ERROR]
        assert {one.id for one in matching.shown(seen)} >= set(causes[:1]), row.id


def test_an_error_that_another_explains_is_left_out() -> None:
    text = (
        "RuntimeError: NCCL error: unhandled system error\nError while creating shared memory segment /dev/shm/nccl-1"
    )
    assert [row.id for row in matching.shown(text)] == ["nccl-shm"]


def test_a_text_that_contradicts_a_row_does_not_show_it() -> None:
    busy = "CUDA error: all CUDA-capable devices are busy or unavailable"
    assert [row.id for row in matching.shown(busy)] == ["device-busy"]
    assert [row.id for row in matching.shown(f"CUDA_MPS_PIPE_DIRECTORY=/mps\n{busy}")] == ["mps-refused"]


def test_the_context_of_a_check_counts_as_nearby() -> None:
    error = "PermissionError: [Errno 13] Permission denied: ''"
    assert matching.reason(error, {"COMPILER_VARIABLE_EMPTY"}) is None
    known = matching.reason(error, {"COMPILER_VARIABLE_EMPTY"}, "inductor")
    assert known is not None
    assert known[0] == "COMPILER_VARIABLE_EMPTY"


@pytest.mark.parametrize("variable", variables.table(), ids=lambda one: one.id)
def test_a_variable_says_what_it_does_and_how_to_undo_it(variable: variables.Variable) -> None:
    assert variable.fix.endswith(".")
    assert variable.sources
    for source in variable.sources:
        assert source.startswith("https://") or source.count("/") == 1
    harmful = {"set": "0", "on": "1", "values": (*variable.values, "")[0], "lacks": "video", "part": "/x/cuda/stubs"}
    harmless = {"set": None, "on": "0", "values": "7", "lacks": (*variable.values, "")[0], "part": "/opt/lib"}
    assert variable.applies(harmful[variable.when])
    value = harmless[variable.when]
    assert value is None or not variable.applies(value)


def test_a_cpu_image_may_hide_gpus_on_purpose() -> None:
    environ = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_LAUNCH_BLOCKING": "1"}
    assert [variable.name for variable, _ in variables.found(environ, gpu=False)] == ["CUDA_LAUNCH_BLOCKING"]
    assert len(variables.found(environ)) == 2


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("+ export CUDA_VISIBLE_DEVICES=-1", "cuda-visible-devices"),
        ('CUDA_VISIBLE_DEVICES="" python train.py', "cuda-visible-devices"),
        ("docker run -e NVIDIA_VISIBLE_DEVICES=void train:1", "nvidia-visible-devices"),
        ("NVIDIA_DRIVER_CAPABILITIES=utility", "no-compute"),
        ("CUDA_VISIBLE_DEVICES=0,1", "no-cuda-device"),
        ("MY_CUDA_VISIBLE_DEVICES=-1", "no-cuda-device"),
    ],
)
def test_a_log_that_hides_its_gpus_says_so_before_the_error_that_follows(line: str, first: str) -> None:
    log = f"{line}\nRuntimeError: No CUDA GPUs are available\n"
    found = diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), "log").findings
    assert found[0].id == first
    assert found[0].severity is Severity.ERROR


def test_gpus_that_are_hidden_on_purpose_are_no_failure() -> None:
    log = "CUDA_VISIBLE_DEVICES=-1 python prepare.py\ntraining finished\n"
    found = diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), "log")
    assert (found.exit_code, [finding.severity for finding in found.findings]) == (0, [Severity.WARN])
