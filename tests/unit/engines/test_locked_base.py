from dataclasses import replace

import pytest

from envkit.engines import locked_base
from envkit.engines.model import LocalImage
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.progress import Silent
from envkit.ground.settings import Mirrors
from envkit.lock.model import LockedBase
from envkit.plan.model import BuildPlan
from envkit.registry.transport import Transport
from tests.support.heard import Heard
from tests.support.locks import DIGEST, lock_for
from tests.support.plans import shipped_plan


def _wheels() -> BuildPlan:
    return shipped_plan("cu126", template="wheels")


@pytest.mark.parametrize(
    ("template", "asked", "chosen"),
    [
        ("wheels", "auto", "bootstrap:debian/bookworm"),
        ("wheels", "debian:12", "debian:12"),
        ("miniconda", "auto", "auto"),
    ],
)
def test_an_image_with_system_packages_stands_on_a_bootstrapped_base(template: str, asked: str, chosen: str) -> None:
    assert locked_base.preferred_base(shipped_plan("cu126", template=template), asked) == chosen


def test_another_machines_packages_cannot_be_installed_here() -> None:
    lock = lock_for(_wheels())
    locked_base.check_platform(lock, "aarch64")
    lock = replace(lock, base=LockedBase(kind="bootstrap", reference="bootstrap:debian/bookworm", suite="bookworm"))
    locked_base.check_platform(lock, "x86_64")
    with pytest.raises(EnvironmentProblem, match="for linux-64 cannot be built on aarch64"):
        locked_base.check_platform(lock, "aarch64")


@pytest.mark.parametrize(
    ("asked", "kind", "reference", "digest"),
    [
        ("none", "none", "none", None),
        (f"registry.example.com/debian:12@{DIGEST}", "registry", "registry.example.com/debian:12", DIGEST),
    ],
)
def test_a_base_that_says_all_needs_no_asking(asked: str, kind: str, reference: str, digest: str | None) -> None:
    with Transport() as transport:
        found = locked_base.to_lock(_wheels(), asked, mirrors=Mirrors(), transport=transport, reporter=Silent())
    assert (found.kind, found.reference, found.digest) == (kind, reference, digest)


@pytest.mark.parametrize("asked", ["bootstrap:debian/trixie", "No Image"])
def test_what_can_be_no_base_is_refused(asked: str) -> None:
    with Transport() as transport, pytest.raises(UsageError, match="--base"):
        locked_base.to_lock(_wheels(), asked, mirrors=Mirrors(), transport=transport, reporter=Silent())


def _image(*digests: str) -> LocalImage:
    return LocalImage(id="sha256:" + "2" * 64, digests=digests, size=1, labels={}, created="2025-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("digests", "found"),
    [
        ((f"team/base@{DIGEST}",), LockedBase(kind="registry", reference="team/base:1", digest=DIGEST)),
        ((), LockedBase(kind="none", reference="none")),
    ],
)
def test_an_image_that_is_named_is_the_engines_own_first(digests: tuple[str, ...], found: LockedBase) -> None:
    notes, plan = Heard(), shipped_plan("cpu")
    with Transport() as transport:
        made = locked_base.to_lock(
            plan, "team/base:1", mirrors=Mirrors(), transport=transport, reporter=notes,
            local=lambda _: _image(*digests),
        )  # fmt: skip
    assert made == found
    said = [] if digests else ["base image: team/base:1 was not pulled from a registry, so it is not in the lock"]
    assert notes.notes == said


def test_where_no_registry_answers_the_engines_own_copy_will_do() -> None:
    plan, seen, notes = _wheels(), [], Heard()

    def local(name: str) -> LocalImage:
        seen.append(name)
        return _image(f"mirror.example.com/library/debian@{DIGEST}")

    made = locked_base._without_registry(
        plan,
        EnvironmentProblem("mirror.example.com does not answer"),
        mirrors=Mirrors(registry="mirror.example.com"),
        reporter=notes,
        local=local,
    )
    assert made == LockedBase(kind="registry", reference=plan.base, digest=DIGEST)
    assert seen == [plan.base.replace("docker.io", "mirror.example.com")]
    assert notes.notes == [f"mirror.example.com does not answer; using the local {seen[0]} as the base"]


def test_a_system_that_cannot_be_bootstrapped_needs_its_registry() -> None:
    plan = shipped_plan("cpu", os="ubuntu22.04")
    away = EnvironmentProblem("the registry does not answer")
    for local in (None, lambda _: None):
        with pytest.raises(EnvironmentProblem, match="the registry does not answer"):
            locked_base._without_registry(plan, away, mirrors=Mirrors(), reporter=Silent(), local=local)
