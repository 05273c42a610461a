"""What a GPU, its driver and its limits can get wrong, as far as a container shows it on a machine without one.

The driver's libraries are a stand-in built from C and read through the payload's own ctypes; the device behind torch
is the CPU, with the clock of a model. That shows that a fault is seen and called by its name, not how fast a GPU is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from envkit.plan.model import BuildPlan
from envkit.resolve.model import Driver
from tests.engines.broken_worlds import BREAKS, SITE, Forks, Said, Sound
from tests.support import standin
from tests.support.payloads import said
from tests.world import apt

pytestmark = [pytest.mark.engine, pytest.mark.long]
NODE = "--device=/dev/null:/dev/nvidia0"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
Checked = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def promised(sound: Sound) -> BuildPlan:
    """The plan of a CUDA image."""
    driver = Driver(native="560.28", minimum="525.60.13", mode=None, given=None)
    made = replace(sound.plan.resolution, cuda="12.6", driver=driver, gpu_archs=("8.0", "9.0"))
    return replace(sound.plan, resolution=made)


@pytest.fixture(scope="module")
def driven(sound: Sound, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image with a driver's libraries, and a torch that takes the CPU for a CUDA device where BREAK=cuda."""
    library = standin.build_driver(apt.require("gcc", "gcc"), tmp_path_factory.mktemp("driver"))
    device = {"cuda": f"__import__('runpy').run_path('{BREAKS}/device.py')", "device": standin.DEVICE.read_text()}
    names = [f"COPY driver.so {LIBRARIES}/{name}" for name in standin.LIBRARIES]
    return sound.layer_of({"driver.so": library.read_bytes()}, *names, base=sound.broken(device))


@pytest.fixture(scope="module")
def device(sound: Sound, driven: str) -> Iterator[Forks]:
    """One container with that device for many runs."""
    with sound.forks(driven, NODE) as found:
        yield found


def test_a_driver_too_old_and_a_build_for_other_gpus(sound: Sound, promised: BuildPlan, driven: str) -> None:
    found = sound.said("C03", "--env=STANDIN_DRIVER=470.57.02", image=driven, plan=promised)
    assert found["C03.driver"] == ("FAIL", "DRIVER_TOO_OLD")
    assert found["C03.archs"] == ("FAIL", "ARCH_MISSING")
    assert found["C03.device"] == ("FAIL", "NO_KERNEL_IMAGE")
    newer = sound.said("C03", "--env=STANDIN_DRIVER=570.86.15", image=driven, plan=promised)
    assert newer["C03.driver"] == ("PASS", None)


def test_a_gpu_without_its_libraries_and_without_locked_memory(sound: Sound, promised: BuildPlan) -> None:
    flags = (NODE, "--ulimit=memlock=0:0", "--env=NVIDIA_DRIVER_CAPABILITIES=utility", "--env=CUDA_VISIBLE_DEVICES=")
    found = sound.said("C00", *flags, plan=promised)
    assert found["C00.gpu"] == ("FAIL", "NO_COMPUTE_CAPABILITY")
    assert found["C00.memlock"] == ("WARN", "MEMLOCK_TOO_SMALL")
    assert found["C00.env"] == ("WARN", "BAD_CUDA_ENV")
    given = sound.said("C00", NODE, plan=promised)
    assert [given[name] for name in ("C00.gpu", "C00.memlock", "C00.env")] == [("PASS", None)] * 3
    assert sound.said("C00", plan=promised)["C00.gpu"] == ("SKIP", "NO_GPU")


def test_a_kernel_that_fails_and_one_that_is_wrong(
    sound: Sound, promised: BuildPlan, driven: str, device: Forks
) -> None:
    # A node and a driver, and a torch that says CUDA and was built without it.
    says = sound.layer(f"RUN sed -i \"s/^cuda.*/cuda = '12.6'/\" {SITE}/torch/version.py")
    found = sound.said("C04", NODE, image=says, plan=promised)
    assert found["C04.kernel"] == ("FAIL", "CPU_BUILD_INSTALLED")
    broken = device.given(BREAK="cuda", STANDIN_FAULT="kernel")
    wrong = sound.said("C04,C09", image=driven, plan=promised, runner=broken)
    assert wrong["C04.kernel"] == ("FAIL", "WRONG_RESULT")
    assert wrong["C09"] == ("SKIP", "CUDA_UNUSABLE")


def test_memory_that_cannot_be_pinned(sound: Sound, promised: BuildPlan, driven: str) -> None:
    flags = (NODE, "--env=BREAK=cuda", "--ulimit=memlock=0:0")
    found = sound.said("C04,C09,C10", *flags, image=driven, plan=promised)
    assert found["C04.kernel"] == ("PASS", None)
    assert found["C09.pinned"] == ("FAIL", "PINNING_FAILED")
    assert found["C10"] == ("SKIP", "BUFFERS_UNAVAILABLE")


def test_copies_that_arrive_changed_over_a_link_that_fell_back(
    sound: Sound, promised: BuildPlan, driven: str, device: Forks
) -> None:
    broken = device.given(BREAK="cuda", STANDIN_FAULT="copy", STANDIN_GEN="1")
    found = sound.said("C09,C10", image=driven, plan=promised, runner=broken)
    assert found["C09.pinned"] == ("PASS", None)
    assert found["C10.integrity"] == ("FAIL", "COPY_WRONG")
    assert found["C10.non_blocking"] == ("FAIL", "COPY_WRONG")
    # The device copies faster than 16 lanes of PCIe 1.0, by two clocks: so the link is not what is reported.
    assert found["C10.link"] == ("SKIP", "LINK_UNKNOWN")
    assert found["C10.h2d_pinned_256MiB"] == ("WARN", "LINK_UNKNOWN")
    slow = device.given(BREAK="cuda", STANDIN_FAULT="lanes", STANDIN_GEN="2")
    found = sound.said("C10", image=driven, plan=promised, runner=slow)
    assert found["C10.link"] == ("FAIL", "LINK_DOWNTRAINED")


@pytest.fixture(scope="module")
def checked(sound: Sound, promised: BuildPlan, driven: str, device: Forks) -> Checked:
    """The record's checks of one on the device, with a fault."""

    def run(check: str, fault: str = "none", **variables: str) -> dict[str, dict[str, Any]]:
        given = device.given(BREAK="cuda", STANDIN_FAULT=fault, **variables)
        brief = {"sustained_s": 4.0}
        return sound.checks(check, image=driven, plan=promised, tier="deep", runner=given, launch=brief)

    return run


@pytest.fixture(scope="module")
def quiet(checked: Checked) -> Callable[..., dict[str, Said]]:
    """What is said of it where the machine is quiet, which this one need not be: the device has its own clock."""

    def run(check: str, fault: str = "none", **variables: str) -> dict[str, Said]:
        found = checked(check, fault, **variables)
        return {name: said(one) for name, one in found.items() if name.startswith(f"{check}.")}

    return run


def test_copies_below_what_the_link_gives(quiet: Callable[..., dict[str, Said]]) -> None:
    for fault, expected in (("none", ("PASS", None)), ("lanes", ("FAIL", "BANDWIDTH_BELOW_FLOOR"))):
        found = quiet("C10", fault)
        assert found["C10.link"] == ("PASS", None)
        assert [found[f"C10.{way}_pinned_256MiB"] for way in ("h2d", "d2h")] == [expected] * 2


def test_copies_and_kernels_that_take_turns(quiet: Callable[..., dict[str, Said]]) -> None:
    assert quiet("C11")["C11.overlap"] == ("PASS", None)
    assert quiet("C11", "engine")["C11.overlap"] == ("FAIL", "NO_OVERLAP")


def test_products_that_no_tensor_core_computes(quiet: Callable[..., dict[str, Said]]) -> None:
    found = quiet("C15", STANDIN_CC="80")
    assert [found[f"C15.gemm.{name}"] for name in ("tf32", "fp16", "bf16")] == [("PASS", None)] * 3
    assert quiet("C15", "cores", STANDIN_CC="80")["C15.gemm.fp16"] == ("FAIL", "TENSOR_CORES_UNUSED")


def test_a_load_that_a_gpu_does_not_stand(checked: Checked) -> None:
    good = checked("C24")
    assert {name: said(one) for name, one in good.items() if name.startswith("C24")} == {
        "C24.load": ("PASS", None),
        "C24.telemetry": ("PASS", None),
    }
    broken = checked("C24", "kernel", STANDIN_XID="79", STANDIN_MHZ="146")
    assert said(broken["C24.load"]) == ("FAIL", "RESULTS_CHANGE_UNDER_LOAD")
    told = broken["C24.telemetry"]
    assert said(told) == ("FAIL", "XID")
    # One cause is named, the worst; without it the next one is.
    assert said({**told, "observed": {**told["observed"], "xids": []}}) == ("FAIL", "CLOCK_COLLAPSED")
