"""The benchmark that types README.md: which of its commands belong to which place."""

import pytest

from benchmarks.readme import commands
from tests.world.places import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("place", "sandbox"), [("machine", "bubblewrap"), ("container", "proot")])
def test_a_place_has_its_own_packages(place: str, sandbox: str) -> None:
    first, *others = commands(README, place)
    assert first.endswith(f"mmdebstrap {sandbox}")
    assert not any("apt-get" in command for command in others)


def test_all_commands_but_the_first_are_those_of_both_places() -> None:
    assert commands(README, "machine")[1:] == commands(README, "container")[1:]


def test_comments_are_left_out_and_what_needs_a_file_of_the_reader() -> None:
    readme = "$ pip install .   # or a wheel\n$ envkit run -- python train.py\n$ envkit verify x --label a#b # now\n"
    assert commands(readme, "machine") == ["pip install .", "envkit verify x --label a#b"]
