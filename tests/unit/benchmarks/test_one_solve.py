"""What the benchmarks of one solve count."""

from benchmarks.lock_update import moved
from benchmarks.one_solve import Answer, compared


def test_packages_of_both_tools_are_compared_and_those_of_one_are_not() -> None:
    own = Answer(versions={"torch": "2.9.0", "numpy": "2.2", "torchvision": "0.24"}, seconds=1)
    other = Answer(versions={"torch": "2.9.0", "numpy": "2.3"}, seconds=1)
    assert compared(own, other) == (1, ["numpy 2.2 / 2.3"])


def test_a_package_moves_where_it_changes_joins_or_leaves() -> None:
    assert moved({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == {"b", "c", "d"}
