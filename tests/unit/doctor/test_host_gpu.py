from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from envkit.doctor.host import gpu, wiring
from envkit.doctor.host.view import NO_ANSWER, View
from envkit.doctor.model import Section, Severity
from envkit.facts.load import load
from envkit.ground.process import Answer
from tests.unit.doctor.machine import machine

MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
CARD = {
    "/sys/bus/pci/devices/0000:c1:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:c1:00.0/class": "0x030200\n",
    "/sys/bus/pci/devices/0000:c1:00.0/device": "0x20b5\n",
    "/sys/bus/pci/devices/0000:c1:00.0/current_link_speed": "2.5 GT/s PCIe\n",
    "/sys/bus/pci/devices/0000:c1:00.0/max_link_speed": "16.0 GT/s PCIe\n",
    "/sys/bus/pci/devices/0000:c1:00.0/current_link_width": "16\n",
    "/sys/bus/pci/devices/0000:c1:00.0/max_link_width": "16\n",
    "/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
    "/sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
}
DEVICES = {"/dev/nvidia0": "", "/dev/nvidiactl": "", "/dev/nvidia-uvm": ""}


def row(**changed: str) -> str:
    cells = {
        "index": "0", "name": "NVIDIA A100-SXM4-40GB", "driver": "535.104.05", "bus": "00000000:C1:00.0",
        "memory": "40960", "gen": "4", "gen_max": "4", "width": "16", "width_max": "16", "pstate": "P0",
        "persistence": "Enabled",
        "mode": "Default", "ecc": "0",
    }  # fmt: skip
    return ", ".join({**cells, **changed}.values()) + "\n"


def looked_at(root: Path, smi: str | Answer | None, files: dict[str, str] | None = None) -> Section:
    answers = {} if smi is None else {"nvidia-smi": smi}
    return gpu.section(
        machine(root, {**CARD, **DEVICES, "/proc/driver/nvidia/version": MODULE, **(files or {})}, answers), load()
    )


def ids(section: Section) -> list[str]:
    return [one.id for one in section.findings]


def test_a_sound_machine_has_no_findings_and_says_what_its_driver_runs(tmp_path: Path) -> None:
    found = looked_at(tmp_path, row())
    assert found.findings == ()
    assert dict(found.facts)["driver"] == "535.104.05"
    assert dict(found.facts)["runs CUDA"].startswith("up to 12.2 natively; all of 12.x, 11.x")
    assert "PCIe 4x16 now, 4x16 at most, P0" in dict(found.facts)["GPU 0"]


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({"width": "8"}, ["link-narrow"]),
        ({"gen": "1"}, ["link-slow"]),
        ({"gen": "1", "pstate": "P8"}, []),  # an idle link is not judged
        ({"mode": "Exclusive_Process"}, ["compute-mode"]),
        ({"ecc": "3"}, ["gpu-memory-error"]),
        ({"ecc": "[N/A]", "width": "[N/A]"}, []),
    ],
)
def test_each_fault_of_a_card_is_seen(tmp_path: Path, changed: dict[str, str], finding: list[str]) -> None:
    assert ids(looked_at(tmp_path, row(**changed))) == finding


@pytest.mark.parametrize(
    ("answer", "finding", "words"),
    [
        (
            Answer(code=18, out="", err="Failed to initialize NVML: Driver/library version mismatch"),
            "driver-library-mismatch",
            "",
        ),
        (
            Answer(code=NO_ANSWER, out="", err="nvidia-smi did not answer within 10 s"),
            "nvidia-smi-fails",
            "did not respond in time",
        ),
        (Answer(code=-9, out="", err=""), "nvidia-smi-fails", "was killed by signal 9"),
        (Answer(code=9, out="out of order", err=""), "nvidia-smi-fails", "fails with code 9"),
        (Answer(code=6, out="No devices were found", err=""), "smi-no-devices", "no GPU to show"),
    ],
)
def test_a_driver_that_answers_badly_is_told_of(tmp_path: Path, answer: Answer, finding: str, words: str) -> None:
    (found,) = looked_at(tmp_path, answer).findings
    assert (found.id, found.severity) == (finding, Severity.ERROR)
    assert words in found.title


def test_a_card_without_a_driver_is_an_error_and_its_link_is_read_from_the_kernel(tmp_path: Path) -> None:
    found = gpu.section(machine(tmp_path, {**CARD, "/sys/module/nouveau/version": ""}), load())
    assert ids(found) == ["no-driver"]
    assert "nouveau" in found.findings[0].evidence[0].text
    assert dict(found.facts)["PCI 0000:c1:00.0"] == "NVIDIA device 0x20b5, PCIe 1x16 now, 4x16 at most"


def test_missing_device_files_are_named(tmp_path: Path) -> None:
    found = gpu.section(machine(tmp_path, {"/proc/driver/nvidia/version": MODULE}), load())
    assert [one.text for one in found.findings[0].evidence] == [
        f"/dev/{name} does not exist" for name in ("nvidia0", "nvidiactl", "nvidia-uvm")
    ]


def test_no_gpu_is_a_warning_and_no_error(tmp_path: Path) -> None:
    found = gpu.section(machine(tmp_path), load())
    assert found.facts == (("driver", "none"), ("GPUs", "none"))
    assert [(one.id, one.severity) for one in found.findings] == [("no-nvidia-driver", Severity.WARN)]


def test_a_specification_of_another_driver_is_stale(tmp_path: Path) -> None:
    files = {"/proc/driver/nvidia/version": MODULE, "/etc/cdi/nvidia.yaml": "hostPath: /usr/lib/libcuda.so.550.54.15\n"}
    answers = {"nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.17.4\n"}
    found = wiring.section(machine(tmp_path, files, answers), {})
    assert ids(found) == ["stale-cdi"]
    assert "libcuda.so.550.54.15; the driver is 535.104.05" in found.findings[0].evidence[0].text
    assert dict(found.facts)["container toolkit"] == "1.17.4"
    sound = {**files, "/etc/cdi/nvidia.yaml": "hostPath: /usr/lib/libcuda.so.535.104.05\n"}
    assert wiring.section(machine(tmp_path, sound, answers), {}).findings == ()


def test_a_driver_without_toolkit_and_specification_is_told_of(tmp_path: Path) -> None:
    assert ids(wiring.section(machine(tmp_path, {"/proc/driver/nvidia/version": MODULE}), {})) == [
        "no-container-toolkit",
        "no-cdi",
    ]
    broken = machine(tmp_path, {"/etc/cdi/nvidia.yaml": "x"}, {"nvidia-ctk": "version 1.19.1\n"})
    assert ids(wiring.section(broken, {})) == ["toolkit-label-bug"]


def test_docker_has_to_know_the_toolkit(tmp_path: Path) -> None:
    files = {"/proc/driver/nvidia/version": MODULE}
    view = machine(tmp_path, files, {"nvidia-ctk": "version 1.17.4\n"})
    assert ids(wiring.section(view, {"Runtimes": {"runc": {}}})) == ["docker-without-nvidia", "no-cdi"]
    assert ids(wiring.section(view, {"Runtimes": {"runc": {}, "nvidia": {}}})) == ["no-cdi"]
    by_cdi = machine(tmp_path, {"/etc/cdi/nvidia.yaml": "libcuda.so.535.104.05"}, {"nvidia-ctk": "version 1.17.4\n"})
    assert ids(wiring.section(by_cdi, {"Runtimes": {"runc": {}}, "CDISpecDirs": ["/etc/cdi"]})) == []


def test_an_older_driver_is_asked_for_less(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(argv: Sequence[str], _patience_s: float = 1.0, /) -> Answer | None:
        asked.append(argv[1])
        if "pstate" in argv[1]:
            return Answer(code=2, out='Field "pcie.link.gen.max" is not a valid field to query.\n', err="")
        return Answer(code=0, out="0, Tesla K80, 470.223.02, 11441\n", err="")

    view = View(root=tmp_path, environ={}, ask=ask)
    found = gpu.section(view, load())
    assert len(asked) == 2
    assert dict(found.facts)["GPU 0"].startswith("Tesla K80, 11441 MiB")
    assert [one.id for one in found.findings] == ["device-files-missing"]


def test_a_specification_without_a_driver_is_told_of(tmp_path: Path) -> None:
    assert ids(wiring.section(machine(tmp_path, {"/etc/cdi/nvidia.yaml": "x"}), {})) == ["cdi-without-driver"]
