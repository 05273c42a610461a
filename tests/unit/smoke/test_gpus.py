from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize("address", [None, "5e:00.0"])
def test_an_unknown_card_has_an_unknown_link(tmp_path: Path, address: str | None) -> None:
    assert set(nvml.sysfs_link(address, tmp_path).values()) == {None}


@pytest.mark.parametrize(
    ("variable", "index", "entry"),
    [(None, 0, None), ("", 0, None), ("2,3", 1, 3), ("GPU-ab12", 0, "GPU-ab12"), ("0", 1, None), (" 1 , 0 ", 0, 1)],
)
def test_visible_devices(variable: str | None, index: int, entry: int | str | None) -> None:
    assert gpus.visible_entry(variable, index) == entry
