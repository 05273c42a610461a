import pytest

from envkit.facts.model import Facts
from envkit.resolve.gpus import Card, capability, find, nearest


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


def test_unknown_names_have_neighbours(facts: Facts) -> None:
    assert "RTX 4090" in nearest("RTX 4095", facts.gpus)
    assert nearest("sm_88", facts.gpus)[0] == "sm_87"
    assert nearest("zzzz", facts.gpus) == ()


def test_a_card_says_what_was_typed_and_its_capability(facts: Facts) -> None:
    gpu = find("V100", facts.gpus)
    assert gpu is not None
    assert str(Card("V100", gpu)) == "V100 (sm_70)"
    assert str(Card("7.0", gpu)) == "sm_70"
    assert capability("V100") is None


def test_every_product_of_the_facts_is_found(facts: Facts) -> None:
    lost = [
        product
        for gpu in facts.gpus
        for product in gpu.products
        if (found := find(product, facts.gpus)) is None or found.capability != gpu.capability
    ]
    assert lost == []
