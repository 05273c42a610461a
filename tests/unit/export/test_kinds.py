from pathlib import Path

import pytest

from envkit.export.kinds import KINDS, kind, options
from envkit.ground.errors import UsageError
from tests.support.exports import exported, main_file

EVERY = pytest.mark.parametrize("name", list(KINDS))


@EVERY
def test_the_main_file_is_first_and_lies_inside(name: str) -> None:
    files = exported(name, ("cu126",))
    assert next(iter(files)) == KINDS[name].file
    for path in files:
        assert not Path(path).is_absolute()
        assert ".." not in Path(path).parts


@EVERY
def test_equal_orders_give_equal_files(name: str) -> None:
    assert exported(name, ("cu126",)) == exported(name, ("cu126",))


@EVERY
def test_the_first_lines_say_what_made_the_file(name: str) -> None:
    head = main_file(exported(name, ("cu126",), command="envkit export this --exactly")).splitlines()[:4]
    assert any("envkit export this --exactly" in line for line in head)


@EVERY
def test_defaults_match_their_own_patterns(name: str) -> None:
    assert options(name, {}) == {key: option.default for key, option in kind(name).options().items()}


def test_an_unknown_kind_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="unknown export kind 'githb'") as caught:
        kind("githb")
    assert caught.value.hint == "did you mean `envkit export github`?"
    with pytest.raises(UsageError) as caught:
        kind("jenkins")
    assert caught.value.hint == "envkit export --list"


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="--set 'brnch': unknown option of github") as caught:
        options("github", {"brnch": "x"})
    assert caught.value.hint == "did you mean --set branch=main?"


def test_a_given_option_wins() -> None:
    assert options("github", {"branch": "release"})["branch"] == "release"
