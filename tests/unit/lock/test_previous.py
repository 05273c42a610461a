"""What a new lock keeps of the old one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from envkit.ground.errors import LockError, UsageError
from envkit.ground.progress import Silent
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Lock, LockedBase, Move, RequestValue, moves_between
from envkit.lock.previous import NOTHING, previous_of, unmoved
from envkit.lock.request import request_of
from envkit.lock.solve import Options, lock_plan
from envkit.plan.model import BuildPlan
from tests.support.plans import shipped_plan
from tests.unit.lock.samples import conda, lock, wheel

PLAN = shipped_plan("cu126", source="pytorch")


def old_lock(**more: object) -> Lock:
    return lock(request=request_of(PLAN, glibc="2.36", base="none"), **more)


def test_without_an_old_lock_nothing_is_kept() -> None:
    assert previous_of(PLAN, None, ("numpy",)) == NOTHING


@pytest.mark.parametrize("name", ["typing_extensions", "typing-extensions", "Typing.Extensions"])
def test_a_name_is_that_of_a_package_in_any_spelling(name: str) -> None:
    package = conda("typing_extensions")
    assert previous_of(PLAN, old_lock(conda=(package,)), (name,)).moves(package)


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ("1.0", True),
        (f"1.0+torch{PLAN.resolution.torch.rpartition('.')[0]}", True),
        ("1.0+torch1.13", False),
        (f"1.0+cu11torch{PLAN.resolution.torch.rpartition('.')[0]}", False),
    ],
)
def test_an_extension_for_another_torch_or_cuda_is_not_kept(version: str, kept: bool) -> None:
    old = old_lock(wheels=(wheel("flash-attn", version),))
    assert ("flash-attn" in previous_of(PLAN, old, ()).wheels) is kept


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nunpy", "--update numpy"),
        ("zzz", "envkit lock --json lists its packages"),
        ("torchvision", "envkit lock without --update adds it and keeps the others"),
    ],
)
def test_a_name_that_the_lock_does_not_have_is_refused(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"--update '{name}': the lock has no such package") as caught:
        previous_of(PLAN, old_lock(), (name,))
    assert caught.value.hint == hint


def of_another_platform(old: Lock) -> Lock:
    return replace(old, platform="linux-aarch64")


def of_other_packages(old: Lock) -> Lock:
    return replace(
        old, request=(("conda", ("python=3.11", "scipy>=1", "conda-forge::polars")), ("pip", ("einops[x]",)))
    )


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (of_another_platform, "platform: linux-aarch64 in the lock, linux-64 requested"),
        (of_other_packages, "it was made for einops, polars, scipy; "),
    ],
)
def test_a_lock_of_another_image_is_not_updated(other: Callable[[Lock], Lock], why: str) -> None:
    with pytest.raises(LockError, match=f"the old lock is of another image: {why}"):
        previous_of(PLAN, other(old_lock()), ("numpy",))


def test_without_update_a_lock_of_another_image_still_has_preferred_versions() -> None:
    assert previous_of(PLAN, of_another_platform(old_lock()), ()).wheels["filelock"] == "4.2.11"


def test_an_updated_package_that_did_not_move_is_named_with_its_version() -> None:
    old = old_lock()
    new = replace(old, wheels=(wheel("filelock", "5"), *old.wheels[1:]))
    moves = moves_between(old, new)
    assert moves == (Move(name="filelock", kind="wheel", before="4.2.11", after="5"),)
    assert list(unmoved(("Torch", "filelock", "pip"), new, moves)) == [("pip", "26.3"), ("torch", "2.7.1+cu126")]


class TestBase:
    """Plans without packages, so only the base is looked up."""

    OLD = LockedBase(kind="registry", reference="docker.io/library/debian:bookworm-slim", digest=f"sha256:{'1' * 64}")
    NEW = replace(OLD, digest=f"sha256:{'2' * 64}")

    def solved(self, plan: BuildPlan, old_request: tuple[tuple[str, RequestValue], ...], *update: str) -> LockedBase:
        old = lock(request=old_request, base=self.OLD)
        options = Options(glibc="2.36", base="auto", old=old, update=update)
        return lock_plan(plan, IndexLocations(), options, resolve_base=lambda _: self.NEW, reporter=Silent()).base

    @pytest.fixture
    def plan(self) -> BuildPlan:
        return replace(PLAN, channels=(), family=(), conda=(), pip=(), constraints=())

    def test_an_update_keeps_it(self, plan: BuildPlan) -> None:
        asked = request_of(plan, glibc="2.36", base="auto")
        assert self.solved(plan, asked, "numpy") == self.OLD

    def test_without_an_update_it_is_looked_up(self, plan: BuildPlan) -> None:
        assert self.solved(plan, request_of(plan, glibc="2.36", base="auto")) == self.NEW

    @pytest.mark.parametrize("key", ["base", "os", "system"])
    def test_an_update_looks_it_up_where_its_request_changed(self, key: str, plan: BuildPlan) -> None:
        asked = dict(request_of(plan, glibc="2.36", base="auto")) | {key: ("x",) if key == "system" else "x"}
        assert self.solved(plan, tuple(asked.items()), "numpy") == self.NEW
