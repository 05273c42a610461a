from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.assemble.layer_plan import ALONE_FROM, groups
from envkit.ground.errors import UsageError


@dataclass(frozen=True)
class Package:
    name: str
    size: int


_PACKAGES = st.dictionaries(st.text("abcdef", min_size=1, max_size=6), st.integers(1, 4 * ALONE_FROM), max_size=80).map(
    lambda sizes: [Package(name=name, size=size) for name, size in sizes.items()]
)


@given(_PACKAGES, st.integers(1, 60))
def test_every_package_has_one_layer_whatever_the_order(packages: list[Package], budget: int) -> None:
    found = groups(packages, budget)
    assert len(found) <= budget
    assert sorted(package.name for group in found for package in group) == sorted(p.name for p in packages)
    assert all(found)
    assert groups(packages[::-1], budget) == found


@given(_PACKAGES, st.data())
def test_a_new_version_of_a_small_package_changes_one_layer(packages: list[Package], draw: st.DataObject) -> None:
    small = [package for package in packages if package.size < ALONE_FROM - 1]
    if not small:
        return
    chosen = draw.draw(st.sampled_from(small))
    newer = Package(name=chosen.name, size=chosen.size + 1)
    changed = [newer if package == chosen else package for package in packages]
    before, after = groups(packages, 40), groups(changed, 40)
    assert len([group for group in after if group not in before]) == 1


def test_large_packages_are_alone_with_the_largest_below() -> None:
    packages = [Package(name=name, size=size << 20) for name, size in (("a", 10), ("torch", 800), ("b", 1), ("c", 10))]
    assert [[package.name for package in group] for group in groups(packages, 40)] == [["torch"], ["a"], ["c"], ["b"]]


def test_no_layer_left() -> None:
    with pytest.raises(UsageError, match="0 layers are left for packages"):
        groups([Package("a", 1)], 0)
