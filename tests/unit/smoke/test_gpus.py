from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.nvml import NOT_SUPPORTED, Code, session

gpus: Any = import_module("envkit.smoke.gpus")
nvml: Any = import_module("envkit.smoke.nvml")


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("8.0 GT/s PCIe\n", 3),
        ("16.0 GT/s PCIe", 4),
        ("32.0 GT/s PCIe", 5),
        ("Unknown", None),
        ("", None),
    ],
)
def test_generation_of_a_link_in_sysfs(text: str, generation: int | None) -> None:
    assert nvml.speed_generation(text) == generation


def test_the_link_is_read_from_sysfs_where_nvml_is_absent(tmp_path: Path) -> None:
    card = tmp_path / "0000:3b:00.0"
    card.mkdir()
    texts = {"current_link_speed": "8.0 GT/s PCIe", "current_link_width": "8", "max_link_speed": "16.0 GT/s PCIe"}
    for name, text in {**texts, "max_link_width": "16\n"}.items():
        (card / name).write_text(text)
    assert nvml.sysfs_link("3b:00.0", tmp_path) == {"gen": 3, "width": 8, "gen_max": 4, "width_max": 16}


def test_cards_of_several_domains_are_told_apart(tmp_path: Path) -> None:
    for domain, width in (("0001", "4"), ("0002", "16")):
        (tmp_path / f"{domain}:00:00.0").mkdir()
        (tmp_path / f"{domain}:00:00.0" / "current_link_width").write_text(width)
    assert nvml.sysfs_link("0002:00:00.0", tmp_path)["width"] == 16
    assert nvml.sysfs_link("00:00.0", tmp_path)["width"] is None


@pytest.mark.parametrize(
    ("properties", "address"),
    [
        ({"pci_bus_id": 59, "pci_device_id": 0}, "3b:00.0"),
        ({"pci_domain_id": 2, "pci_bus_id": 59, "pci_device_id": 0}, "0002:3b:00.0"),
        ({}, None),
    ],
)
def test_the_address_is_as_whole_as_torch_tells_it(properties: dict[str, int], address: str | None) -> None:
    cuda = SimpleNamespace(get_device_properties=lambda _index: SimpleNamespace(**properties))
    assert gpus.bus_address(SimpleNamespace(cuda=cuda)) == address


class Eight:
    """NVML with eight cards, which notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> int:
            self.asked.append(name)
            if name == "nvmlDeviceGetCount_v2":
                arguments[-1]._obj.value = 8
            elif name == "nvmlDeviceGetHandleByIndex_v2":
                arguments[-1]._obj.value = arguments[0].value + 1
            elif name == "nvmlDeviceGetUUID":
                arguments[1].value = f"GPU-00{arguments[0].value}".encode()
            return 0

        return answer


def test_a_card_is_found_by_its_uuid_and_nothing_else_is_read() -> None:
    library = Eight()
    assert nvml.Nvml(library).index_of("008") == 7
    assert set(library.asked) == {"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
    assert nvml.Nvml(library).index_of("MIG-008") is None


@pytest.mark.parametrize("address", [None, "5e:00.0"])
def test_an_unknown_card_has_an_unknown_link(tmp_path: Path, address: str | None) -> None:
    assert set(nvml.sysfs_link(address, tmp_path).values()) == {None}


@pytest.mark.parametrize(
    ("variable", "index", "entry"),
    [(None, 0, None), ("", 0, None), ("2,3", 1, 3), ("GPU-ab12", 0, "GPU-ab12"), ("0", 1, None), (" 1 , 0 ", 0, 1)],
)
def test_visible_devices(variable: str | None, index: int, entry: int | str | None) -> None:
    assert gpus.visible_entry(variable, index) == entry


SLICE = "11111111-0000-0000-0000-00000000000a"


def with_uuid(uuid: str, **properties: int) -> SimpleNamespace:
    told = SimpleNamespace(uuid=uuid, **properties)
    return SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _index: told))


def two_cards(**answers: Any) -> Any:
    return session(nvmlDeviceGetCount_v2=(2,), **answers)


def test_a_slice_is_found_by_its_own_uuid_and_has_its_own_memory() -> None:
    uuids = ["GPU-a", "GPU-b", "MIG-" + SLICE]
    slices = {"nvmlDeviceGetMaxMigDeviceCount": [(0,), (7,)], "nvmlDeviceGetMigDeviceHandleByIndex": (99,)}
    told = two_cards(nvmlDeviceGetUUID=list(uuids), **slices)
    assert gpus.nvml_index(with_uuid(SLICE), told) == 1
    told = two_cards(nvmlDeviceGetUUID=list(uuids), **{**slices, "nvmlDeviceGetMaxMigDeviceCount": [(0,), (7,)]})
    assert gpus.memory_handle(with_uuid(SLICE), told).value == 99


def test_a_slice_that_nvml_does_not_show_is_found_by_its_address() -> None:
    told = two_cards(
        nvmlDeviceGetMaxMigDeviceCount=Code(NOT_SUPPORTED),
        nvmlDeviceGetHandleByPciBusId_v2=(5,),
        nvmlDeviceGetIndex=(1,),
    )
    assert gpus.nvml_index(with_uuid(SLICE, pci_domain_id=0, pci_bus_id=59, pci_device_id=0), told) == 1


def test_a_card_that_cannot_be_matched_is_the_one_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.nvml_index(with_uuid(SLICE), two_cards(), 1) == 1
    assert gpus.nvml_index(with_uuid(SLICE), two_cards(), 2) is None


def test_the_place_of_a_card_is_read_from_sysfs(tmp_path: Path) -> None:
    card = tmp_path / "0000:3b:00.0"
    card.mkdir()
    for name, text in (("numa_node", "1\n"), ("local_cpulist", "16-31,48-63\n")):
        (card / name).write_text(text)
    assert gpus.placement("0000:3b:00.0", tmp_path) == {"node": 1, "cpus": "16-31,48-63"}
    (card / "numa_node").write_text("-1\n")
    assert gpus.placement("3b:00.0", tmp_path)["node"] is None
    assert gpus.placement(None, tmp_path) == gpus.placement("5e:00.0", tmp_path) == {"node": None, "cpus": None}


@pytest.mark.parametrize("sign", ["variable", "socket", "server", None])
def test_mps_is_noticed_by_any_of_its_signs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sign: str | None) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(gpus, "MPS_CONTROL", str(tmp_path / "control"))
    if sign == "variable":
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    if sign == "socket":
        (tmp_path / "control").touch()
    name = "/usr/bin/nvidia-cuda-mps-server" if sign == "server" else "/usr/bin/python3"
    told = session(processes=[(2**22 + 1, 1)], nvmlSystemGetProcessName=name)
    assert gpus.uses_mps(told, 0) is (sign is not None)
