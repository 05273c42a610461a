from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

versions: Any = import_module("envkit.smoke.versions")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (7605, "7.6.5"),
        (8902, "8.9.2"),
        (8907, "8.9.7"),
        (90000, "9.0.0"),
        (90100, "9.1.0"),
        (91002, "9.10.2"),
        (91300, "9.13.0"),
        (92199, "9.21.99"),
        (None, None),
        (0, None),
    ],
)
def test_cudnn_is_decoded_by_magnitude_and_keeps_two_digit_parts(number: int | None, text: str | None) -> None:
    assert versions.decode_cudnn(number) == text


@pytest.mark.parametrize(("number", "text"), [(2708, "2.7.8"), (21003, "2.10.3"), (22105, "2.21.5"), (None, None)])
def test_nccl_is_decoded_by_magnitude(number: int | None, text: str | None) -> None:
    assert versions.decode_nccl(number) == text


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\n", "470.57.02"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC 12", "580.95.05"),
        ("", None),
        ("no such file", None),
    ],
)
def test_the_driver_is_read_from_the_kernel_modules_text(text: str, driver: str | None) -> None:
    assert versions.parse_kernel_module(text) == driver


def test_a_distribution_that_is_not_installed_has_no_version() -> None:
    assert versions.distribution("envkit-no-such-distribution") is None
    assert versions.distribution("pytest") is not None
