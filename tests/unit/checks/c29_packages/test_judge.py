from __future__ import annotations

from typing import Any

import pytest

from envkit.checks.c29_packages.judge import judge
from envkit.checks.case import Case
from tests.support.verdicts import ERROR, FAIL, INCONCLUSIVE, PASS, SKIP, WARN, found, said

DEBIAN = {"id": "debian", "version": "12", "like": []}
AUDIO = (
    "Detected that PyTorch and TorchAudio were compiled with different CUDA versions. PyTorch has CUDA version 13.2 "
    "whereas TorchAudio has CUDA version 13.0."
)
TWELVE = {"libcublas": ["12", "12.6.4.1"], "libcublasLt": ["12"], "libcudart": ["12"], "libcudnn": ["9"]}


def row(name: str, outcome: str = "imported", **more: Any) -> dict[str, Any]:
    found = {"name": name, "conda": False, "version": "1.0", "modules": [name], "of": 1, "outcome": outcome}
    return {**found, "missing_libraries": {}, "missing_of_modules": [], **more}


def failing(name: str, kind: str, line: str, *, module: str | None = None, **more: Any) -> dict[str, Any]:
    error = {"module": module or name, "type": kind, "line": line, "text": line}
    return row(name, "failed", failed=[error], **more)


def spec_of(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"packages": [{"name": item["name"], "conda": False} for item in rows], "cuda": "13.2", "gpu": True, **more}


def imports(*rows: dict[str, Any], **more: Any) -> Any:
    return found("C29.imports", {"packages": list(rows), "system": DEBIAN}, spec_of(*rows, **more))


def test_what_is_imported_passes_and_what_has_no_modules_is_said() -> None:
    finding = imports(row("torch"), row("tini", "no modules", modules=[]), row("einops"))
    assert (finding.verdict, finding.reason_code) == (PASS, None)
    assert finding.message == "2 packages of the plan imported; without modules, so not tried: tini"
    assert finding.derived["without_modules"] == ["tini"]


def test_a_plan_of_nothing_that_can_be_imported_is_no_pass() -> None:
    finding = imports(row("tini", "no modules", modules=[]))
    assert (finding.verdict, finding.reason_code) == (SKIP, "NOTHING_TO_IMPORT")


def test_a_companion_of_another_cuda_is_named_with_its_first_line() -> None:
    finding = imports(row("torch"), failing("torchaudio", "RuntimeError", AUDIO))
    assert (finding.verdict, finding.reason_code) == (FAIL, "IMPORT_FAILED")
    assert finding.message == f"torchaudio 1.0: import torchaudio: RuntimeError: {AUDIO}"
    assert finding.advice == (
        "Install torchaudio's build for CUDA 13.2 from torch's own index, or remove torchaudio from the definition.",
    )


def test_a_library_of_the_system_is_named_with_its_package_and_with_those_that_would_be_next() -> None:
    line = "libxcb.so.1: cannot open shared object file: No such file or directory"
    missing = dict.fromkeys(["libGL.so.1", "libodd.so.1", "libxcb.so.1"], "cv2/cv2.abi3.so")
    opencv = failing("opencv-python", "ImportError", line, module="cv2", modules=["cv2"], missing_libraries=missing)
    finding = imports(opencv)
    assert (finding.verdict, finding.reason_code) == (FAIL, "SYSTEM_LIBRARY_MISSING")
    assert finding.message == f"opencv-python 1.0: import cv2: ImportError: {line} (and libGL.so.1)"
    assert finding.advice == ("Add to the definition: apt: [libxcb1, libgl1]",)


@pytest.mark.parametrize(
    ("kind", "line", "expected", "words"),
    [
        ("OSError", "sndfile library not found", (FAIL, "SYSTEM_LIBRARY_MISSING"), "libsndfile1"),
        ("ImportError", "libpq.so.5: cannot open shared object file", (FAIL, "SYSTEM_LIBRARY_MISSING"), "libpq5"),
        ("ImportError", "libcudart.so.12: cannot open shared object file", (FAIL, "CUDA_LIBRARY_MISSING"), "CUDA 13.2"),
        ("ImportError", "Failed to initialize: Bad git executable.", (FAIL, "PROGRAM_MISSING"), "apt: [git]"),
        ("ModuleNotFoundError", "No module named 'pkg_resources'", (FAIL, "IMPORT_FAILED"), "setuptools<81"),
        ("ModuleNotFoundError", "No module named 'google.iam'", (FAIL, "IMPORT_FAILED"), "google.iam"),
        ("ImportError", "x.so: undefined symbol: _ZN3c105ErrorC2E", (FAIL, "IMPORT_FAILED"), "another torch"),
        ("ImportError", "numpy.dtype size changed", (FAIL, "IMPORT_FAILED"), "numpy<2"),
        (
            "AttributeError",
            "`np.sctypes` was removed in the NumPy 2.0 release. Access dtypes explicitly instead.",
            (FAIL, "IMPORT_FAILED"),
            "numpy<2",
        ),
        ("AttributeError", "`np.float_` was removed in the NumPy 2.0 release.", (FAIL, "IMPORT_FAILED"), "numpy<2"),
        ("AttributeError", "module 'numpy' has no attribute 'bool'.", (FAIL, "IMPORT_FAILED"), "numpy<1.24"),
        (
            "AttributeError",
            "`np.int` was a deprecated alias for the builtin `int`.",
            (FAIL, "IMPORT_FAILED"),
            "numpy<1.24",
        ),
        ("SystemExit", "1", (FAIL, "IMPORT_FAILED"), "python -c 'import demo'"),
        ("KeyError", "'DISPLAY'", (WARN, "IMPORT_NEEDS_DISPLAY"), "python -c 'import demo'"),
        ("DisplayNameError", 'Bad display name ""', (WARN, "IMPORT_NEEDS_DISPLAY"), "import demo"),
        ("ConnectionError", "Temporary failure in name resolution", (WARN, "IMPORT_NEEDS_NETWORK"), "import demo"),
        ("OSError", "[Errno 30] Read-only file system: '/opt/x'", (WARN, "IMPORT_WRITES"), "import demo"),
        ("ImportError", "libcuda.so.1: cannot open shared object file", (WARN, "IMPORT_NEEDS_DRIVER"), "with a GPU"),
        ("RuntimeError", "Found no NVIDIA driver on your system", (WARN, "IMPORT_NEEDS_DRIVER"), "with a GPU"),
    ],
)
def test_what_an_import_raised(kind: str, line: str, expected: tuple[Any, str], words: str) -> None:
    finding = imports(failing("demo", kind, line))
    assert (finding.verdict, finding.reason_code) == expected
    assert words in " ".join(finding.advice)
    assert "demo 1.0" in finding.message


def test_with_a_gpu_the_driver_has_to_be_there() -> None:
    demo = failing("demo", "ImportError", "libcuda.so.1: cannot open shared object file")
    observation = {"id": "C29.imports", "observed": {"packages": [demo], "system": DEBIAN}}
    finding = judge(Case(observation, spec_of(demo), {"gpu": [{"name": "H200"}]}))
    assert (finding.verdict, finding.reason_code) == (FAIL, "DRIVER_LIBRARY_MISSING")


@pytest.mark.parametrize(
    ("item", "expected", "words"),
    [
        (
            row("demo", "absent", version=None, modules=[]),
            (FAIL, "PACKAGE_MISSING"),
            "demo is planned, but not installed",
        ),
        (row("demo", "crashed", signal=11, printed="Illegal"), (FAIL, "IMPORT_CRASHED"), "with SIGSEGV (Illegal)"),
        (row("demo", "crashed", signal=35, printed=""), (FAIL, "IMPORT_CRASHED"), "with signal 35"),
        (row("demo", "exited", code=3, printed="no license"), (FAIL, "IMPORT_EXITED"), "exit code 3 (no license)"),
        (row("demo", "timeout", printed=""), (INCONCLUSIVE, "IMPORT_TIME"), "1 import did not end within"),
        (row("demo", "not tried"), (INCONCLUSIVE, "IMPORT_TIME"), "time limit of C29: demo"),
        (row("tini", "not conda"), (SKIP, "NOTHING_TO_IMPORT"), "not a conda environment"),
        (row("demo", "odd"), (ERROR, "MALFORMED_OBSERVATION"), "odd"),
    ],
)
def test_how_an_import_ended(item: dict[str, Any], expected: tuple[Any, str], words: str) -> None:
    observed = {"packages": [item], "system": DEBIAN}
    finding = found("C29.imports", observed, spec_of(item))
    assert (finding.verdict, finding.reason_code) == expected
    assert words in finding.message


def test_all_that_ended_too_late_are_one_line() -> None:
    finding = imports(row("torch"), row("slow", "timeout"), row("waits", "not tried"))
    assert finding.message == "2 imports did not end within the time limit of C29: slow, waits"
    assert finding.advice == ("Run it again while nothing else uses this machine.",)


def test_a_part_that_has_another_name_than_the_package_only_warns() -> None:
    modules = ["setuptools", "pkg_resources"]
    part = failing("setuptools", "ImportError", "no part", module="pkg_resources", modules=modules)
    assert imports(part).verdict is WARN
    whole = failing("setuptools", "ImportError", "no part", module="setuptools", modules=modules)
    assert imports(whole).verdict is FAIL


def test_a_part_that_is_only_loaded_later_warns_with_the_package_that_it_needs() -> None:
    part = "PyQt5/QtWidgets.abi3.so"
    missing = {"libGL.so.1": part, "libodd.so.1": part, "libpq.so.5": "PyQt5/Qt5/plugins/libqsqlpsql.so"}
    finding = imports(row("PyQt5", missing_libraries=missing, missing_of_modules=["libGL.so.1", "libodd.so.1"]))
    assert (finding.verdict, finding.reason_code) == (WARN, "SYSTEM_LIBRARY_ABSENT")
    assert f"({part}) needs libGL.so.1, which the image lacks" in finding.message
    assert finding.advice == ("Add to the definition: apt: [libgl1]",)
    # A plug-in, or a library that no table knows, may be of no use to anybody.
    assert imports(row("PyQt5", missing_libraries=missing, missing_of_modules=["libodd.so.1"])).verdict is PASS


def test_several_problems_are_one_finding_with_the_most_severe_first() -> None:
    rows = [
        row("slow", "timeout"),
        failing("screen", "KeyError", "'DISPLAY'"),
        failing("broken", "ValueError", "broken"),
        row("gone", "absent", version=None),
    ]
    finding = imports(*rows)
    assert (finding.verdict, finding.reason_code) == (FAIL, "IMPORT_FAILED")
    assert finding.message.startswith("broken 1.0: import broken: ValueError: broken; gone is planned")
    assert finding.message.endswith("; and 1 more, which are in the record")
    assert finding.derived["problems"] == [
        "IMPORT_FAILED", "IMPORT_NEEDS_DISPLAY", "IMPORT_TIME", "PACKAGE_MISSING",
    ]  # fmt: skip


def test_a_package_that_the_image_leaves_out_of_its_answer_is_malformed() -> None:
    observed = {"packages": [row("torch")], "system": DEBIAN}
    spec = spec_of(row("torch"), row("torchaudio"))
    assert said("C29.imports", observed, spec) == (ERROR, "MALFORMED_OBSERVATION")


def needing(name: str, needs: dict[str, dict[str, str]], *, named: bool = True) -> dict[str, Any]:
    return {"name": name, "version": "1.31.1", "named": named, "needs": needs}


def test_a_package_for_another_cuda_major_is_named_with_both_versions() -> None:
    file = "onnxruntime/capi/libonnxruntime_providers_cuda.so"
    needs = {"libcublas": {"13": file}, "libcublasLt": {"13": file}, "libcudart": {"13": file}}
    observed = {"has": TWELVE, "packages": [needing("onnxruntime-gpu", needs)]}
    finding = found("C29.cuda", observed, {"cuda": "12.6"})
    assert (finding.verdict, finding.reason_code) == (FAIL, "OTHER_CUDA_MAJOR")
    assert finding.message == (
        "onnxruntime-gpu 1.31.1 is built for CUDA 13: needs libcublas.so.13, libcublasLt.so.13, libcudart.so.13 "
        f"({file}); the image has libcublas.so.12, libcublasLt.so.12, libcudart.so.12"
    )
    assert "CUDA 12.6" in finding.advice[0]


@pytest.mark.parametrize(
    ("needs", "named", "expected"),
    [
        ({"libcublas": {"12": "a.so"}}, True, (PASS, None)),
        ({"libcublas": {"12.6": "a.so"}}, True, (PASS, None)),
        # bitsandbytes brings code for several versions.
        ({"libcublas": {"11": "a.so", "12": "b.so", "13": "c.so"}}, True, (PASS, None)),
        # The image has none, so there is nothing to compare with.
        ({"libcusparse": {"11": "a.so"}}, True, (PASS, None)),
        ({"libcudart": {"11.0": "a.so"}}, True, (FAIL, "OTHER_CUDA_MAJOR")),
        ({"libcudart": {"11.0": "a.so"}}, False, (WARN, "OTHER_CUDA_MAJOR")),
        ({"libcublas": {"12": "a.so"}, "libcudnn": {"8": "b.so"}}, True, (WARN, "OTHER_CUDA_MAJOR")),
        ({"libcublas": {"1": "a.so"}}, True, (FAIL, "OTHER_CUDA_MAJOR")),
    ],
)
def test_versions_of_libraries(
    needs: dict[str, dict[str, str]], *, named: bool, expected: tuple[Any, str | None]
) -> None:
    observed = {"has": TWELVE, "packages": [needing("demo", needs, named=named)]}
    assert said("C29.cuda", observed, {"cuda": "12.6"}) == expected


def test_without_packages_for_cuda_there_is_nothing_wrong() -> None:
    assert said("C29.cuda", {"has": {}, "packages": []}, {"cuda": None}) == (PASS, None)
