from typing import Any

import pytest

from tests.support.verdicts import FAIL, INCONCLUSIVE, PASS, SKIP, WARN, found, said

GOOD = {
    "outcome": "answered",
    "error": None,
    "cold_s": 12.3,
    "warm_ms": 0.05,
    "eager_ms": 0.04,
    "kernels": {".cpp": 7, ".so": 7},
    "result_error": 8e-8,
}
REQUIRED = {"features": {"compile": "required"}}
OPTIONAL = {"features": {"compile": "optional"}}


def test_kernels_that_compute_the_same_pass() -> None:
    finding = found("C18.inductor", GOOD, REQUIRED)
    assert (finding.verdict, finding.rule["gates"]) == (PASS, True)
    assert finding.message == "14 kernel files, results equal to 8e-08; the first call took 12.3 s"
    assert finding.derived["speed_up"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"kernels": {}}, "COMPILE_NOT_USED"),
        ({"error": "InvalidCxxCompiler: No working C++ compiler found in torch._inductor"}, "NO_COMPILER"),
        (
            {"error": "BackendCompilerFailed: PermissionError: [Errno 13] Permission denied: ''"},
            "COMPILER_VARIABLE_EMPTY",
        ),
        (
            {"error": "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."},
            "NO_COMPILER",
        ),
        ({"error": "TritonMissing: Cannot find a working triton installation."}, "NO_TRITON"),
        (
            {
                "error": "RuntimeError: Found Tesla P100 which is too old to be supported by the triton GPU compiler, "
                "which is used as the backend. Triton only supports devices of CUDA Capability >= 7.0"
            },
            "GPU_TOO_OLD_FOR_TRITON",
        ),
        ({"error": "CUDA error: CUDA-capable device(s) is/are busy or unavailable"}, "GPU_EXCLUSIVE"),
        ({"error": "fatal error: Python.h: No such file or directory"}, "NO_PYTHON_HEADERS"),
        ({"error": "RuntimeError: Dynamo is not supported on Python 3.12+"}, "PYTHON_NOT_SUPPORTED"),
        ({"error": "/usr/bin/ld: cannot find -lcuda: No such file or directory"}, "NO_CUDA_LINK"),
        ({"error": "OSError: [Errno 30] Read-only file system: '/root/.triton'"}, "CACHE_NOT_WRITABLE"),
        ({"error": "KeyError: 'getpwuid(): uid not found: 54321'"}, "NO_USER_NAME"),
        ({"error": "OSError: No username set in the environment"}, "NO_USER_NAME"),
        ({"error": "LoweringException: something else"}, "COMPILE_FAILED"),
        ({"outcome": "absent", "error": "torch 1.13.1 has no torch.compile"}, "COMPILE_ABSENT"),
        ({"outcome": "failed", "error": "Segmentation fault"}, "COMPILE_FAILED"),
    ],
)
def test_each_fault_fails_where_compiling_is_required_and_warns_where_it_is_not(
    changed: dict[str, Any], code: str
) -> None:
    assert said("C18.inductor", {**GOOD, **changed}, REQUIRED) == (FAIL, code)
    finding = found("C18.inductor", {**GOOD, **changed}, OPTIONAL)
    assert (finding.verdict, finding.reason_code, finding.rule["gates"]) == (WARN, code, False)


def test_a_wrong_result_fails_everywhere() -> None:
    for spec in (REQUIRED, OPTIONAL, {}):
        assert said("C18.inductor", {**GOOD, "result_error": 0.01}, spec) == (FAIL, "COMPILE_WRONG_RESULT")


def test_a_torch_without_compile_is_no_fault_where_nothing_is_promised() -> None:
    assert said("C18.inductor", {**GOOD, "outcome": "absent", "error": "none"}) == (SKIP, "COMPILE_ABSENT")
    assert said("C18.inductor", {**GOOD, "error": "InvalidCxxCompiler: g++"}) == (SKIP, "NO_COMPILER")


def test_a_compiler_that_does_not_answer_proves_nothing() -> None:
    changed = {"outcome": "timeout", "error": "no answer in 75 s"}
    assert said("C18.inductor", {**GOOD, **changed}, REQUIRED) == (INCONCLUSIVE, "COMPILE_TIME_LIMIT")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ('Traceback (most recent call last):\n  File "<string>", line 1\nKeyError: \'x\'\n', "KeyError: 'x'"),
        ("BackendCompilerFailed: backend='inductor' raised:\nCppCompileError: C++ compile error\n\nCommand:\ng++",
         "BackendCompilerFailed: backend='inductor' raised: CppCompileError: C++ compile error"),
        ("InductorError: SubprocException\n\nSet TORCHDYNAMO_VERBOSE=1", "InductorError: SubprocException"),
        ("\n", "torch.compile failed without a message"),
    ],
)  # fmt: skip
def test_the_message_is_what_happened_and_no_head_of_a_traceback(error: str, message: str) -> None:
    assert found("C18.inductor", {**GOOD, "outcome": "failed", "error": error}, OPTIONAL).message == message
