from dataclasses import replace
from pathlib import Path

import pytest

from envkit.assemble import base_stage
from envkit.build.model import LocalImage
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.progress import Silent
from envkit.ground.settings import Mirrors
from envkit.image import spec
from envkit.lock.model import LockedBase
from envkit.plan.model import BuildPlan
from envkit.registry.transport import Transport
from tests.support.file_images import digest, entry, packed
from tests.support.heard import Heard
from tests.support.locks import DIGEST, lock_for
from tests.support.plans import shipped_plan

DPKG = "".join(f"Package: {name}\nStatus: install ok installed\n\n" for name in ("bash", "python3", "tini"))


def _base(folder: Path, *paths: str, dpkg: str = "") -> spec.Base:
    layer = packed([
        *((entry(path, mode=0o755), b"") for path in paths),
        *([(entry("var/lib/dpkg/status"), dpkg.encode())] if dpkg else []),
    ])  # fmt: skip
    (folder / "blob").write_bytes(layer.data)
    described = spec.Descriptor(media_type=spec.LAYER_GZIP, digest=digest(layer.data), size=len(layer.data))
    return spec.Base(
        name="debian",
        layers=(spec.Layer(descriptor=described, diff_id=layer.diff_id, made_by="", blob=folder / "blob"),),
    )


def _wheels() -> BuildPlan:
    return shipped_plan("cu126", template="wheels")


def test_a_base_with_all_that_is_wanted_is_taken(tmp_path: Path) -> None:
    plan = _wheels()
    base = _base(tmp_path, "bin/bash", "usr/bin/python3.11", "usr/bin/tini", dpkg=DPKG)
    assert base_stage.files_of(base, lock_for(plan), plan).find("/usr/bin/tini") is not None


def test_missing_packages_are_named_with_the_base_that_has_them(tmp_path: Path) -> None:
    plan = _wheels()
    base = _base(tmp_path, "bin/bash", dpkg="Package: bash\nStatus: install ok installed\n")
    with pytest.raises(UsageError) as caught:
        base_stage.files_of(base, lock_for(plan), plan)
    assert f"the base {plan.base} lacks python3, tini, and nothing is installed" in caught.value.message
    assert (caught.value.hint or "").startswith("--base bootstrap:debian/bookworm or --base IMAGE")
    assert "--engine docker" in (caught.value.hint or "")


def test_without_a_list_of_packages_the_programs_count(tmp_path: Path) -> None:
    plan = _wheels()
    with pytest.raises(UsageError, match=r"lacks /usr/bin/tini, /usr/bin/python3\.11, and"):
        base_stage.files_of(_base(tmp_path, "bin/bash"), lock_for(plan), plan)
    base_stage.files_of(_base(tmp_path, "bin/bash", "usr/bin/tini", "usr/bin/python3.11"), lock_for(plan), plan)


def test_a_conda_image_needs_a_shell_alone(tmp_path: Path) -> None:
    plan = shipped_plan("cu126", template="miniconda")
    base_stage.files_of(_base(tmp_path, "bin/bash"), lock_for(plan), plan)
    with pytest.raises(UsageError, match="lacks /bin/bash"):
        base_stage.files_of(_base(tmp_path, "bin/sh"), lock_for(plan), plan)


@pytest.mark.parametrize(
    ("template", "asked", "chosen"),
    [
        ("wheels", "auto", "bootstrap:debian/bookworm"),
        ("wheels", "debian:12", "debian:12"),
        ("miniconda", "auto", "auto"),
    ],
)
def test_an_image_with_system_packages_stands_on_a_bootstrapped_base(template: str, asked: str, chosen: str) -> None:
    assert base_stage.preferred_base(shipped_plan("cu126", template=template), asked) == chosen


def test_another_machines_packages_cannot_be_installed_here() -> None:
    lock = lock_for(_wheels())
    base_stage.check_platform(lock, "aarch64")
    lock = replace(lock, base=LockedBase(kind="bootstrap", reference="bootstrap:debian/bookworm", suite="bookworm"))
    base_stage.check_platform(lock, "x86_64")
    with pytest.raises(EnvironmentProblem, match="for linux-64 cannot be made on aarch64"):
        base_stage.check_platform(lock, "aarch64")


@pytest.mark.parametrize(
    ("asked", "kind", "reference", "digest"),
    [
        ("none", "none", "none", None),
        (f"registry.example.com/debian:12@{DIGEST}", "registry", "registry.example.com/debian:12", DIGEST),
    ],
)
def test_a_base_that_says_all_needs_no_asking(asked: str, kind: str, reference: str, digest: str | None) -> None:
    with Transport() as transport:
        found = base_stage.to_lock(_wheels(), asked, mirrors=Mirrors(), transport=transport, reporter=Silent())
    assert (found.kind, found.reference, found.digest) == (kind, reference, digest)


@pytest.mark.parametrize("asked", ["bootstrap:debian/trixie", "No Image"])
def test_what_can_be_no_base_is_refused(asked: str) -> None:
    with Transport() as transport, pytest.raises(UsageError, match="--base"):
        base_stage.to_lock(_wheels(), asked, mirrors=Mirrors(), transport=transport, reporter=Silent())


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
        made = base_stage.to_lock(
            plan, "team/base:1", mirrors=Mirrors(), transport=transport, reporter=notes,
            at_hand=lambda _: _image(*digests),
        )  # fmt: skip
    assert made == found
    said = [] if digests else ["base image: team/base:1 is in no registry, so the lock does not hold it"]
    assert notes.notes == said


def test_where_no_registry_answers_the_engines_own_copy_will_do() -> None:
    plan, seen, notes = _wheels(), [], Heard()

    def at_hand(name: str) -> LocalImage:
        seen.append(name)
        return _image(f"mirror.example.com/library/debian@{DIGEST}")

    made = base_stage._without_registry(
        plan,
        EnvironmentProblem("mirror.example.com does not answer"),
        mirrors=Mirrors(registry="mirror.example.com"),
        reporter=notes,
        at_hand=at_hand,
    )
    assert made == LockedBase(kind="registry", reference=plan.base, digest=DIGEST)
    assert seen == [plan.base.replace("docker.io", "mirror.example.com")]
    assert notes.notes == [f"mirror.example.com does not answer; the base is {seen[0]} as it is here"]


def test_a_system_that_cannot_be_bootstrapped_needs_its_registry() -> None:
    plan = shipped_plan("cpu", os="ubuntu22.04")
    away = EnvironmentProblem("the registry does not answer")
    for at_hand in (None, lambda _: None):
        with pytest.raises(EnvironmentProblem, match="the registry does not answer"):
            base_stage._without_registry(plan, away, mirrors=Mirrors(), reporter=Silent(), at_hand=at_hand)
