"""The words of pip and conda are theirs, as a build log holds them."""

import pytest

from envkit.engines.log import hash_mismatch

A, B = "a" * 64, "b" * 64
PIP = [
    "Collecting einops==0.8.1",
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated",
    "    einops==0.8.1 from https://files.example.com/einops-0.8.1.whl (from -r requirements.txt (line 2)):",
    f"        Expected sha256 {A}",
    f"             Got        {B}",
    "",
]
CONDA = [
    "ChecksumMismatchError: Conda detected a mismatch between the expected content and downloaded content",
    "for url 'https://conda.example.com/conda-forge/linux-64/numpy-2.4.6-py311_0.conda'.",
    "  download saved to: /opt/conda/pkgs/numpy-2.4.6-py311_0.conda",
    f"  expected sha256: {A}",
    f"  actual sha256: {B}",
]


@pytest.mark.parametrize(("log", "name"), [(PIP, "einops==0.8.1"), (CONDA, "numpy-2.4.6-py311_0")])
def test_the_package_is_named_with_both_hashes(log: list[str], name: str) -> None:
    assert hash_mismatch(log) == f"{name}: expected sha256 {A}, got {B}"
    assert hash_mismatch([f"#12 3.456 {line}" for line in log]) == f"{name}: expected sha256 {A}, got {B}"


@pytest.mark.parametrize("log", [[], PIP[:3], PIP[3:], CONDA[:4], ["ERROR: No matching distribution found for einops"]])
def test_another_failure_is_no_mismatch(log: list[str]) -> None:
    assert hash_mismatch(log) is None
