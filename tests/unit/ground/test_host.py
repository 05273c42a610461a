from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envkit.ground import host
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import HostGpu

FIELDS = ("name", "driver_version", "compute_cap")
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 11\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (builder@ci)\n"


def answering(known: Sequence[str], text: str) -> Callable[[Sequence[str]], str | None]:
    """An nvidia-smi that knows some fields only, as older drivers do."""

    def smi(arguments: Sequence[str]) -> str | None:
        asked = arguments[0].removeprefix("--query-gpu=").split(",")
        return text if set(asked) <= set(known) else None

    return smi


def silent(arguments: Sequence[str]) -> str | None:
    del arguments
    return None


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_gpus_and_driver_of_nvidia_smi() -> None:
    gpus, driver = host.parse_smi(
        "NVIDIA A100-SXM4-80GB, 550.54.15, 8.0\nNVIDIA GeForce RTX 4090, 550.54.15, 8.9\n", FIELDS
    )
    assert gpus == (HostGpu("NVIDIA A100-SXM4-80GB", "8.0"), HostGpu("NVIDIA GeForce RTX 4090", "8.9"))
    assert driver == "550.54.15"
    assert [gpu.typed for gpu in gpus] == ["sm_80", "sm_89"]


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA-SMI has failed, because it could not\n"])
def test_what_is_no_row_is_no_gpu(text: str) -> None:
    assert host.parse_smi(text, FIELDS) == ((), None)


def test_a_capability_that_is_not_told_leaves_the_name() -> None:
    gpus, driver = host.parse_smi("Tesla V100-SXM2-16GB, 470.57.02, [N/A]\n", FIELDS)
    assert (gpus[0].typed, driver) == ("Tesla V100-SXM2-16GB", "470.57.02")


@pytest.mark.parametrize(("text", "driver"), [(PROPRIETARY, "535.104.05"), (OPEN, "570.124.06"), ("", None)])
def test_the_kernel_module_tells_the_driver(text: str, driver: str | None) -> None:
    assert host.parse_module(text) == driver


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n', "debian12"),
        ('ID=ubuntu\nVERSION_ID="22.04"\n', "ubuntu22.04"),
        ('ID="rocky"\nVERSION_ID="9.3"\n', "rockylinux9"),
        ('ID="rhel"\nVERSION_ID="9.4"\n', "ubi9"),
        ('ID="centos"\nVERSION_ID="7"\n', "centos7"),
        ("# nothing\n", None),
    ],
)
def test_os_release_gives_our_name(text: str, name: str | None) -> None:
    assert host.parse_os_release(text)[0] == name


def test_an_older_driver_is_asked_again_without_the_capability(tmp_path: Path) -> None:
    here = host.read(tmp_path, answering(FIELDS[:2], "Tesla V100-SXM2-16GB, 470.57.02\n" * 2))
    assert here.need_driver() == "470.57.02"
    assert here.need_gpus() == ("Tesla V100-SXM2-16GB",)


def test_without_nvidia_smi_the_kernel_tells(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/driver/nvidia/version": OPEN,
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H200\nIRQ:   \t\t 130\n",
            "etc/os-release": 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12"\n',
        },
    )
    here = host.read(root, silent)
    assert (here.driver, here.gpus, here.os, here.os_title) == (
        "570.124.06",
        (HostGpu("NVIDIA H200", None),),
        "debian12",
        "Debian 12",
    )


def test_a_machine_without_a_gpu_says_what_to_type(tmp_path: Path) -> None:
    here = host.read(tmp_path, silent)
    assert (here.driver, here.gpus, here.os) == (None, (), None)
    with pytest.raises(EnvironmentProblem) as caught:
        here.need_driver()
    assert caught.value.message == "--driver auto: no NVIDIA driver found on this machine"
    assert (
        caught.value.hint
        == "use --driver with the version of the machine that will run the image, such as --driver 550.54.15"
    )
    with pytest.raises(EnvironmentProblem) as caught:
        here.need_gpus()
    assert caught.value.exit_code == 9
    assert caught.value.hint is not None
    assert "--gpu A100 or --gpu sm_80" in caught.value.hint


def test_no_program_is_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host, "_WSL_TOOLS", str(tmp_path))
    assert host.run_smi(["--query-gpu=name"]) is None
