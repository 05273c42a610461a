from pathlib import Path

import pytest
import yaml

from envkit.facts.model import Facts
from envkit.ground.errors import ConflictError
from envkit.resolve.gpus import Card, capability, find, is_amd, nearest
from envkit.resolve.rules import code
from envkit.resolve.wanted import card


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("A100", "8.0"),
        ("a100", "8.0"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA A100 80GB PCIe", "8.0"),
        ("Tesla V100", "7.0"),
        ("Tesla V100-PCIE-16GB", "7.0"),
        ("V100", "7.0"),
        ("Tesla T4", "7.5"),
        ("RTX 4090", "8.9"),
        ("rtx 4090", "8.9"),
        ("NVIDIA GeForce RTX 4090", "8.9"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "8.6"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("H200", "9.0"),
        ("RTX 5090", "12.0"),
        ("RTX PRO 6000", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0"),
        ("GB10", "12.1"),
        ("DGX Spark", "12.1"),
        ("sm_86", "8.6"),
        ("SM_90a", "9.0"),
        ("compute_120", "12.0"),
        ("8.6", "8.6"),
        ("10.3", "10.3"),
    ],
)
def test_names_of_gpus(typed: str, expected: str, facts: Facts) -> None:
    found = find(typed, facts.gpus)
    assert found is not None
    assert found.capability == expected


@pytest.mark.parametrize("typed", ["", "NVIDIA", "A1001", "sm_1", "8.8", "sm_999", "86", "H20x", "RX 7900"])
def test_what_is_not_known_is_not_guessed(typed: str, facts: Facts) -> None:
    assert find(typed, facts.gpus) is None


@pytest.mark.parametrize("typed", ["RTX 4090; rm -rf", "A100\nB200", "V100$(id)", "H100 \u202e"])
def test_a_name_is_written_in_plain_signs(typed: str, facts: Facts) -> None:
    assert find(typed, facts.gpus) is None


def test_unknown_names_have_neighbors(facts: Facts) -> None:
    assert "RTX 4090" in nearest("RTX 4095", facts.gpus)
    assert nearest("sm_88", facts.gpus)[0] == "sm_87"
    assert nearest("zzzz", facts.gpus) == ()


def test_a_card_says_what_was_typed_and_its_capability(facts: Facts) -> None:
    gpu = find("V100", facts.gpus)
    assert gpu is not None
    assert str(Card("V100", gpu)) == "V100 (sm_70)"
    assert str(Card("7.0", gpu)) == "sm_70"
    assert capability("V100") is None


PRINTED: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("gpu_names.yaml").read_text())


@pytest.mark.parametrize("row", PRINTED)
def test_every_name_that_nvidia_smi_prints_is_known(row: str, facts: Facts) -> None:
    found = {name: find(name, facts.gpus) for name in PRINTED[row]}
    assert {name: gpu and gpu.capability for name, gpu in found.items()} == dict.fromkeys(PRINTED[row], row)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("RTX2080", "7.5"),
        ("RTX2080Ti", "7.5"),
        ("rtx-4090", "8.9"),
        ("rtx_4090", "8.9"),
        ("4090", "8.9"),
        ("4090D", "8.9"),
        ("4070 ti super", "8.9"),
        ("3080ti", "8.6"),
        ("3060 laptop", "8.6"),
        ("1080ti", "6.1"),
        ("gtx1660super", "7.5"),
        ("A6000", "8.6"),
        ("RTXA6000", "8.6"),
        ("RTX6000Ada", "8.9"),
        ("5090", "12.0"),
        ("pro 6000", "12.0"),
        ("a100-80g", "8.0"),
        ("v100s", "7.0"),
    ],
)
def test_names_as_people_shorten_them(typed: str, expected: str, facts: Facts) -> None:
    found = find(typed, facts.gpus, short=True)
    assert found is not None
    assert found.capability == expected


@pytest.mark.parametrize(
    "typed",
    [
        "NVIDIA RTX 4000 XYZ Ada Generation",  # no shorter name of another family
        "RTX 5000 Blackwell",
        "RTX 4000 SFF",
        "L40X",
        "H2000",
        "A100Z",
        "GTX 960X",
        "6000",  # Quadro RTX 6000, RTX 6000 Ada, RTX PRO 6000: it could be any
        "40",
    ],
)
def test_another_product_is_not_a_shorter_one(typed: str, facts: Facts) -> None:
    assert find(typed, facts.gpus, short=True) is None


@pytest.mark.parametrize("typed", ["4090", "1080ti", "2080"])
def test_numbers_in_an_inventory_are_no_gpus(typed: str, facts: Facts) -> None:
    assert find(typed, facts.gpus) is None


@pytest.mark.parametrize(
    "typed", ["MI300X", "AMD Instinct MI250X", "Radeon RX 7900 XTX", "RX 7900 XTX", "gfx1100", "W7900"]
)
def test_amd_gpus_are_told_apart(typed: str, facts: Facts) -> None:
    assert is_amd(typed)
    with pytest.raises(ConflictError, match=r"is an AMD GPU\. AMD GPUs are not supported"):
        card(typed, facts)


@pytest.mark.parametrize("typed", ["RTX 4090", "MX450", "T4", "W100", "M40", "zzzz"])
def test_other_names_are_not_taken_for_amd(typed: str) -> None:
    assert not is_amd(typed)


def test_a_jetson_module_runs_its_own_code_only(facts: Facts) -> None:
    gpus = {gpu.capability: gpu for gpu in facts.gpus}
    thor = [build for build in facts.builds if code(build, gpus["11.0"])]
    assert {build.platform for build in thor} == {"linux-aarch64"}
    assert all(build.cuda and build.cuda.startswith("13.") for build in thor)
    assert not [build for build in facts.builds if code(build, gpus["8.7"])]
    assert [build for build in facts.builds if code(build, gpus["8.6"]) and build.platform == "linux-aarch64"]


def test_every_product_of_the_facts_is_found(facts: Facts) -> None:
    lost = [
        product
        for gpu in facts.gpus
        for product in gpu.products
        if (found := find(product, facts.gpus)) is None or found.capability != gpu.capability
    ]
    assert lost == []
