"""A lock is complete: what was asked for is in it, and what that depends on."""

from dataclasses import replace

import pytest

from envkit.lock import closure
from envkit.lock.model import Lock
from tests.unit.lock.samples import conda, lock, wheel

REQUEST = (
    ("python", "3.11"),
    ("conda", ("python=3.11", "pip", "pytorch=2.7.1=cpu*", "numpy >=2", "conda-forge::tini")),
    ("wheels", ("torchaudio==2.7.1+cu126",)),
    ("pip", ("Einops", "jupyterlab[x]>=4,<5", "matplotlib")),
)
WHOLE = lock(
    request=REQUEST,
    conda=(
        conda("libtorch"), conda("matplotlib-base"),
        conda("numpy", "2.4.6", depends=("python 3.11.*", "__glibc >=2.17")),
        conda("pip"), conda("python", "3.11.7"),
        conda("pytorch", "2.7.1", depends=("libtorch 1.0 cpu_0", "numpy>=2", "conda-forge::pip", "__unix")),
        conda("tini"),
    ),
    wheels=(wheel("einops"), wheel("jupyterlab", "4.2.0rc1"), wheel("torchaudio", "2.7.1+cu126")),
)  # fmt: skip


def without(name: str) -> Lock:
    rows = [one for one in WHOLE.conda if one.name != name]
    return replace(WHOLE, conda=tuple(rows), wheels=tuple(one for one in WHOLE.wheels if one.name != name))


def test_a_whole_lock_lacks_nothing() -> None:
    assert closure.gaps(WHOLE) == ()


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("libtorch", ("pytorch depends on libtorch, but the lock has no such conda package",)),
        ("tini", ("tini is requested, but the lock has no such conda package",)),
        ("einops", ("einops is requested, but the lock has no such wheel",)),
        ("torchaudio", ("torchaudio is requested, but the lock has no such wheel",)),
        ("matplotlib-base", ("matplotlib is requested, but the lock has no such wheel",)),
        (
            "pytorch",
            ("pytorch is requested, but the lock has no such conda package",),
        ),
        (
            "pip",
            (
                "pip is requested, but the lock has no such conda package",
                "pytorch depends on pip, but the lock has no such conda package",
            ),
        ),
    ],
)
def test_each_missing_package_is_named(name: str, lines: tuple[str, ...]) -> None:
    assert closure.gaps(without(name)) == lines


def test_an_empty_lock_lacks_all_and_says_so_in_bounds() -> None:
    many = tuple(f"p{number}" for number in range(40))
    empty = replace(WHOLE, conda=(), wheels=(), request=(("conda", many),))
    lines = closure.gaps(empty)
    assert lines[0] == "p0 is requested, but the lock has no such conda package"
    assert (len(lines), lines[-1]) == (11, "30 more packages are missing")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            replace(WHOLE, wheels=(*WHOLE.wheels[:2], wheel("torchaudio", "2.7.1+cpu"))),
            "torchaudio==2.7.1+cu126 is requested, but the lock has torchaudio 2.7.1+cpu",
        ),
        (
            replace(WHOLE, wheels=(WHOLE.wheels[0], wheel("jupyterlab", "5.0"), WHOLE.wheels[2])),
            "jupyterlab[x]<5,>=4 is requested, but the lock has jupyterlab 5.0",
        ),
        (
            replace(WHOLE, conda=(*WHOLE.conda[:4], conda("python", "3.1.1"), *WHOLE.conda[5:])),
            "python 3.11 is requested, but the lock has 3.1.1",
        ),
        (replace(WHOLE, request=(("pip", ("a b c",)),)), "'a b c' is requested, but it is not a requirement"),
    ],
)
def test_another_version_than_asked_for_is_named(changed: Lock, line: str) -> None:
    assert closure.gaps(changed) == (line,)
