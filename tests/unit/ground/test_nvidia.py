"""What drivers print, parsed; `tests/machines` asks real programs and libraries."""

import pytest

from envkit.ground import nvidia
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.nvidia import Driver, HostGpu

FIELDS = ("name", "driver_version", "compute_cap")
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 11\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (builder@ci)\n"


def test_gpus_and_driver_of_nvidia_smi() -> None:
    gpus, driver = nvidia.parse_smi(
        "NVIDIA A100-SXM4-80GB, 550.54.15, 8.0\nNVIDIA GeForce RTX 4090, 550.54.15, 8.9\n", FIELDS
    )
    assert gpus == (HostGpu("NVIDIA A100-SXM4-80GB", "8.0"), HostGpu("NVIDIA GeForce RTX 4090", "8.9"))
    assert driver == "550.54.15"


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA-SMI has failed, because it could not\n"])
def test_what_is_no_row_is_no_gpu(text: str) -> None:
    assert nvidia.parse_smi(text, FIELDS) == ((), None)


def test_a_capability_that_is_not_told_leaves_the_name() -> None:
    gpus, driver = nvidia.parse_smi("Tesla V100-SXM2-16GB, 470.57.02, [N/A]\n", FIELDS)
    assert (gpus, driver) == ((HostGpu("Tesla V100-SXM2-16GB", None),), "470.57.02")


@pytest.mark.parametrize(("text", "driver"), [(PROPRIETARY, "535.104.05"), (OPEN, "570.124.06"), ("", None)])
def test_the_kernel_module_tells_the_driver(text: str, driver: str | None) -> None:
    assert nvidia.parse_module(text) == driver


def test_names_carry_no_control_characters() -> None:
    gpus, _ = nvidia.parse_smi("NVIDIA \x1b[31mA100, 550.54.15, 8.0\n", FIELDS)
    assert gpus[0].name == "NVIDIA A100"


def test_a_machine_without_a_gpu_says_what_to_type() -> None:
    here = Driver(version=None, gpus=(), source=None, notes=("why",))
    with pytest.raises(EnvironmentProblem) as caught:
        here.need_version()
    assert caught.value.message == "--driver auto: no NVIDIA driver found on this machine"
    assert (
        caught.value.hint
        == "use --driver with the version of the machine that will run the image, such as --driver 550.54.15"
    )
    with pytest.raises(EnvironmentProblem) as caught:
        here.need_gpus()
    assert (caught.value.exit_code, caught.value.details) == (9, ("why",))
    assert caught.value.message == "--gpu auto: no NVIDIA GPU is visible on this machine"
    assert caught.value.hint is not None
    assert "--gpu A100 or --gpu sm_80" in caught.value.hint
