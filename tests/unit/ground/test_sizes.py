"""Sizes as people write them."""

import pytest

from envkit.ground.errors import UsageError
from envkit.ground.sizes import parse_size, shown_pair, shown_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("20GB", 20_000_000_000), ("1.5 MiB", 3 << 19), ("7k", 7000), ("3g", 3_000_000_000), ("12B", 12)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "x") == size


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2_994_502_404, "2.99 GB"),
        (10**9, "1.00 GB"),
        (539_172_785, "539 MB"),
        (53_917_279, "53.9 MB"),
        (539_172, "539 kB"),
        (4_168, "4.2 kB"),
        (999, "999 B"),
        (0, "0 B"),
    ],
)
def test_sizes_for_people(number: int, text: str) -> None:
    assert shown_size(number) == text


def test_sizes_beside_each_other_have_one_unit() -> None:
    assert (shown_size(3 << 20, "MiB"), shown_size(45_168, "MB", 1)) == ("3 MiB", "0.0 MB")
    assert shown_pair(12_000_000, 3_027_000_000, "MB") == "12 of 3027 MB"


@pytest.mark.parametrize("text", ["", "GB", "-1", "1XB", "1e9", "20 apples", "inf"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text, "--keep")
    assert caught.value.message == f"--keep: {text!r} is not a size"
    assert caught.value.hint == "write a number and a unit: 20GB, 512MiB, 0"


@pytest.mark.parametrize("text", ["20", "1", "0.5", " 20 "])
def test_a_number_without_a_unit_is_refused(text: str) -> None:
    """20 meant 20 bytes, and everything was removed."""
    with pytest.raises(UsageError) as caught:
        parse_size(text, "--keep")
    assert caught.value.message == f"--keep: {text.strip()!r} has no unit"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"write {text.strip()}GB, ")


def test_hundreds_of_digits_are_no_size() -> None:
    """They were infinite, and no integer is: a traceback."""
    with pytest.raises(UsageError, match="is not a size"):
        parse_size("9" * 400 + "GB", "--keep")
