from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from envkit.engines.base import Bases, mirrored
from envkit.engines.debian_root import layer_key
from envkit.engines.log import BuildLog
from envkit.engines.model import BuildOptions, Engine, LocalImage
from envkit.ground.errors import EngineError, EnvironmentProblem, LockError, UsageError
from envkit.ground.progress import Silent
from envkit.ground.settings import Mirrors
from envkit.image.name import split_tag
from envkit.lock.model import LockedBase
from tests.support.locks import debian_base

DIGEST = "sha256:" + "1" * 64
DEBIAN = "docker.io/library/debian:bookworm-slim"


@dataclass
class Storage:
    """As much of an engine as a base image is looked up in."""

    registry: dict[str, str] | None = None  # None: no registry answers
    images: dict[str, LocalImage] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def digest(self, reference: str) -> str:
        self.asked.append(reference)
        if self.registry is None:
            raise EnvironmentProblem("no registry")
        if reference not in self.registry:
            raise EngineError("no such image")
        return self.registry[reference]

    def local(self, reference: str) -> LocalImage | None:
        return self.images.get(reference)


def bases(storage: Storage, **mirrors: str) -> Bases:
    options = BuildOptions(mirrors=Mirrors(**mirrors))
    return Bases(cast("Engine", storage), options, BuildLog(None, Silent()), Silent(), Path("/nonexistent"))


def image(*digests: str) -> LocalImage:
    return LocalImage(id="sha256:" + "2" * 64, digests=digests, size=1, labels={}, created="2025-01-01T00:00:00Z")


def test_a_registry_gives_the_digest_once() -> None:
    storage = Storage(registry={DEBIAN: DIGEST})
    finder = bases(storage)
    found = finder.find(DEBIAN, requested="auto", system="debian12")
    assert found == finder.find(DEBIAN, requested="auto", system="debian12")
    assert found.reference == f"{DEBIAN}@{DIGEST}"
    assert (found.digest, found.origin, found.name) == (DIGEST, "registry", DEBIAN)
    assert storage.asked == [DEBIAN]


def test_a_mirror_serves_docker_hubs_images_under_their_own_name() -> None:
    mirror = "127.0.0.1:5000/library/debian:bookworm-slim"
    found = bases(Storage(registry={mirror: DIGEST}), registry="127.0.0.1:5000").find(
        DEBIAN, requested="auto", system="debian12"
    )
    assert found.reference == f"{mirror}@{DIGEST}"
    assert found.name == DEBIAN


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("docker.io/library/debian:12", "127.0.0.1:5000/library/debian:12"),
        ("debian:12", "127.0.0.1:5000/library/debian:12"),
        (f"debian@{DIGEST}", f"127.0.0.1:5000/library/debian@{DIGEST}"),
        ("nvidia/cuda:12.6.3-base", "127.0.0.1:5000/nvidia/cuda:12.6.3-base"),
        ("registry.example.com/x:1", "registry.example.com/x:1"),
        ("localhost/x:1", "localhost/x:1"),
    ],
)
def test_the_mirror_of_docker_hub_serves_its_names_short_or_long(name: str, asked: str) -> None:
    assert mirrored(name, Mirrors(registry="127.0.0.1:5000")) == asked
    assert mirrored(name, Mirrors()) == name


def test_without_a_registry_an_image_at_hand_will_do() -> None:
    storage = Storage(images={DEBIAN: image(f"debian@{DIGEST}")})
    found = bases(storage).find(DEBIAN, requested="auto", system="debian12")
    assert (found.reference, found.digest, found.origin) == (f"{DEBIAN}@{DIGEST}", DIGEST, "local")


def test_a_registry_that_says_no_is_believed() -> None:
    with pytest.raises(EngineError, match="no such image"):
        bases(Storage(registry={}, images={DEBIAN: image()})).find(DEBIAN, requested="auto", system="debian12")


def test_another_system_cannot_be_bootstrapped() -> None:
    with pytest.raises(EnvironmentProblem, match="no registry"):
        bases(Storage()).find("docker.io/library/ubuntu:22.04", requested="auto", system="ubuntu22.04")


def test_a_named_image_is_taken_from_this_machine_first() -> None:
    storage = Storage(registry={"mine:1": DIGEST}, images={"mine:1": image()})
    found = bases(storage).find(DEBIAN, requested="mine:1", system="debian12")
    assert (found.reference, found.origin, found.name) == ("mine:1", "local", "mine:1")
    assert storage.asked == []


def test_a_named_image_is_else_looked_up() -> None:
    found = bases(Storage(registry={"mine:1": DIGEST})).find(DEBIAN, requested="mine:1", system="debian12")
    assert found.reference == f"mine:1@{DIGEST}"


def test_a_digest_needs_no_registry() -> None:
    storage = Storage()
    found = bases(storage).find(DEBIAN, requested=f"mine@{DIGEST}", system="debian12")
    assert (found.reference, found.digest) == (f"mine@{DIGEST}", DIGEST)
    assert storage.asked == []


@pytest.mark.parametrize("asked", ["--privileged", "a b", "a\nRUN x"])
def test_what_is_no_name_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="is not an image's name"):
        bases(Storage()).find(DEBIAN, requested=asked, system="debian12")


@pytest.mark.parametrize("asked", ["bootstrap:", "bootstrap:debian", "bootstrap:debian/sid", "bootstrap:ubuntu/jammy"])
def test_what_cannot_be_bootstrapped_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="cannot be bootstrapped") as caught:
        bases(Storage()).find(DEBIAN, requested=asked, system="debian12")
    assert "bootstrap:debian/bookworm" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("debian", ("debian", None)),
        ("debian:12", ("debian", "12")),
        ("127.0.0.1:5000/debian", ("127.0.0.1:5000/debian", None)),
        ("127.0.0.1:5000/debian:12", ("127.0.0.1:5000/debian", "12")),
    ],
)
def test_split_tag(reference: str, expected: tuple[str, str | None]) -> None:
    assert split_tag(reference) == expected


def test_a_locked_image_is_taken_from_the_mirror_under_its_own_name() -> None:
    locked = LockedBase(kind="registry", reference=DEBIAN, digest=DIGEST)
    found = bases(Storage(), registry="127.0.0.1:5000").locked(locked)
    mirror = "127.0.0.1:5000/library/debian:bookworm-slim"
    assert (found.reference, found.digest, found.name) == (f"{mirror}@{DIGEST}", DIGEST, DEBIAN)


def test_the_root_of_a_lock_is_known_by_its_packages() -> None:
    lock = debian_base("bash", "tini")
    name = f"localhost/envkit-base:debian-bookworm-{layer_key(lock)[:12]}"
    found = bases(Storage(images={name: image()})).locked(lock)
    assert (found.reference, found.origin, found.digest) == (name, "bootstrap", None)


@pytest.mark.requirement("R10")
def test_a_lock_without_a_digest_is_no_base() -> None:
    with pytest.raises(LockError, match=r"the lock's base debian:12 has no digest"):
        bases(Storage()).locked(LockedBase(kind="registry", reference="debian:12"))
