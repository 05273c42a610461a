"""Which code runs on which GPU, and that `resolve`, C03 and `inspect` say the same of every build and GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.attest.verification import cubin
from envkit.checks.c03_arch.judge import judge
from envkit.checks.case import Case
from envkit.facts.gpu_code import EXACT, PTX, SAME_MAJOR, knows, parse_flags, runs, supports
from envkit.facts.load import load
from envkit.resolve.rules import code
from tests.support.verdicts import FAIL, said

CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "compute_90"]
CU128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "flags", "how"),
    [
        ((8, 0), CU126, "exact"),
        ((8, 9), CU126, "same-major"),
        ((7, 0), CU126, "exact"),
        ((7, 0), CU128, None),
        ((7, 5), CU128, "exact"),
        ((6, 1), CU126, "same-major"),
        ((10, 0), CU126, "ptx"),
        ((12, 0), CU126, "ptx"),
        ((12, 1), CU128, "same-major"),
        ((10, 3), CU128, "same-major"),
        ((11, 0), CU128, None),
        ((8, 0), ["sm_86"], None),
        ((9, 0), ["sm_90a"], "exact"),
        ((9, 1), ["sm_90a"], None),
        ((10, 3), ["sm_100f"], "same-major"),
        ((12, 0), ["compute_90a"], None),
        ((3, 5), CU126, None),
        ((8, 0), [], None),
    ],
)
def test_cubins_run_within_their_major_and_ptx_on_all_later(
    capability: tuple[int, int], flags: list[str], how: str | None
) -> None:
    assert runs(capability, *parse_flags(flags)) == how


@given(st.sampled_from(CU126 + CU128), st.integers(5, 12), st.integers(0, 9))
def test_more_kernels_never_lose_a_device(extra: str, major: int, minor: int) -> None:
    before = runs((major, minor), *parse_flags(CU126))
    assert runs((major, minor), *parse_flags([*CU126, extra])) is not None or before is None


def test_flags_are_told_apart() -> None:
    assert parse_flags(["sm_90a", "compute_120", "gfx90a"]) == ([(9, 0, "a")], [(12, 0, "")])


def test_the_three_readers_agree_on_every_build_and_gpu() -> None:
    facts, seen = load(), 0
    for build in {(row.archs, row.ptx, row.cuda, row.platform): row for row in facts.builds}.values():
        if build.cuda is None or build.archs is None:
            continue
        flags = [f"sm_{arch.replace('.', '')}" for arch in build.archs]
        flags += [f"compute_{arch.replace('.', '')}" for arch in build.ptx]
        for gpu in facts.gpus:
            # A Jetson module has an Arm CPU; and `resolve` alone judges what the toolkit's libraries know.
            if gpu.integrated and build.platform != "linux-aarch64":
                continue
            if not (supports(build.cuda, gpu) and knows(build.cuda, gpu)):
                continue
            observed = {"name": "GPU", "cc": gpu.capability, "arch_list": flags, "cuda": build.cuda}
            finding = judge(Case({"id": "C03.device", "subject": "gpu:0", "observed": observed}, {}, {}))
            how = (finding.derived or {}).get("support")
            resolved = code(build, gpu)
            assert resolved == {EXACT: "cubin", SAME_MAJOR: "cubin", PTX: "ptx"}.get(str(how)), (build, gpu)
            assert (cubin(build.archs, gpu.capability) is not None) == (resolved == "cubin"), (build, gpu)
            seen += 1
    assert seen > 400


def test_a_jetson_module_runs_only_code_for_itself() -> None:
    orin = next(gpu for gpu in load().gpus if gpu.capability == "8.7")
    assert runs((8, 7), *parse_flags(["sm_80", "sm_90", "compute_80"]), gpu=orin) is None
    assert runs((8, 7), *parse_flags(["sm_80", "sm_87"]), gpu=orin) == EXACT
    assert cubin(["8.0", "9.0"], "8.7") is None
    observed = {"name": "Orin", "cc": "8.7", "arch_list": ["sm_80", "sm_90"], "cuda": "13.0"}
    assert said("C03.device", observed, {}, subject="gpu:0") == (FAIL, "NO_KERNEL_IMAGE")
