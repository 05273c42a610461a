from dataclasses import replace
from pathlib import Path

import pytest

from envkit import __version__
from envkit.engines.labels import image_labels, labels_asked, parse_label
from envkit.engines.model import BaseImage
from envkit.ground import settings
from envkit.ground.errors import UsageError
from envkit.ground.settings import Settings
from envkit.lock.model import LockedBase
from envkit.lock.store import digest_of
from envkit.render.render import render
from tests.support.locks import locked_conda
from tests.support.plans import shipped_plan

DIGEST = "sha256:" + "0" * 64
BASE = BaseImage(
    reference=f"debian@{DIGEST}", digest=DIGEST, origin="registry", name="docker.io/library/debian:bookworm-slim"
)


def test_an_image_says_what_it_is_and_what_it_needs() -> None:
    plan = shipped_plan("cu126")
    labels = image_labels(plan, BASE, (), {})
    assert labels["envkit.plan"] == plan.digest
    assert labels["envkit.version"] == __version__
    assert labels["envkit.torch"] == plan.resolution.torch
    assert labels["envkit.cuda"] == "12.6"
    assert labels["envkit.python"] == plan.resolution.python
    assert plan.resolution.driver is not None
    assert labels["envkit.driver.minimum"] == plan.resolution.driver.minimum
    assert labels["envkit.gpu.archs"].split() == list(plan.resolution.gpu_archs or ())
    assert labels["org.opencontainers.image.base.name"] == BASE.name
    assert labels["org.opencontainers.image.base.digest"] == DIGEST
    assert list(labels) == sorted(labels)


def test_equal_inputs_give_equal_labels_and_no_moment_is_in_them() -> None:
    plan = shipped_plan("cpu")
    assert image_labels(plan, BASE, (), {}) == image_labels(plan, BASE, (), {"HOSTNAME": "x"})
    assert "org.opencontainers.image.created" not in image_labels(plan, BASE, (), {})
    dated = image_labels(plan, BASE, (), {"SOURCE_DATE_EPOCH": "1735689600"})
    assert dated["org.opencontainers.image.created"] == "2025-01-01T00:00:00Z"


def test_a_bootstrapped_base_has_no_digest() -> None:
    base = BaseImage(
        reference="localhost/envkit-base:x", digest=None, origin="bootstrap", name="localhost/envkit-base:x"
    )
    assert "org.opencontainers.image.base.digest" not in image_labels(shipped_plan("cpu"), base, (), {})


@pytest.mark.parametrize(
    ("origin", "name", "digest", "told"),
    [
        ("registry", "debian:trixie", DIGEST, "docker.io/library/debian:trixie"),
        ("registry", f"quay.io/a/b@{DIGEST}", DIGEST, f"quay.io/a/b@{DIGEST}"),
        ("registry", f"quay.io/a/b:1@{DIGEST}", DIGEST, "quay.io/a/b:1"),
        ("local", "debian:trixie", DIGEST, "docker.io/library/debian:trixie"),
        ("local", "own:1", None, "own:1"),
        ("local", "Sha:", None, None),
        ("bootstrap", "localhost/envkit-base:x", None, None),
        ("none", "none", None, None),
    ],
)
def test_the_base_is_a_reference_that_can_be_pulled_or_has_no_name(
    origin: str, name: str, digest: str | None, told: str | None
) -> None:
    base = BaseImage(reference=name, digest=digest, origin=origin, name=name)
    labels = image_labels(shipped_plan("cpu"), base, (), {})
    assert labels.get("org.opencontainers.image.base.name") == told
    assert labels.get("org.opencontainers.image.base.digest") == digest


def test_a_base_of_packages_is_told_as_the_lock_has_it_by_every_engine() -> None:
    plan = shipped_plan("cpu")
    lock = replace(locked_conda(plan), base=LockedBase(kind="bootstrap", reference="bootstrap:debian/bookworm"))
    docker = BaseImage(reference="envkit-base:x", digest=None, origin="bootstrap", name="envkit-base:x")
    embedded = BaseImage(reference=lock.base.reference, digest=None, origin="bootstrap", name=lock.base.reference)
    assert image_labels(plan, docker, (), {}, lock) == image_labels(plan, embedded, (), {}, lock)
    assert image_labels(plan, docker, (), {}, lock)["envkit.base"] == "bootstrap:debian/bookworm"


def of(folder: Path, **variables: str) -> Settings:
    return settings.load({}, {f"ENVKIT_{key.upper()}": value for key, value in variables.items()}, folder)


def test_settings_say_source_revision_and_licenses_and_what_is_typed_wins(tmp_path: Path) -> None:
    given = of(tmp_path, image_source="https://git.example.com/a", image_revision="1f2e", image_licenses="apache-2.0")
    asked = labels_asked(given, ["org.opencontainers.image.revision=v1", "com.example.team=x"])
    labels = image_labels(shipped_plan("cpu"), BASE, asked, {})
    assert {key.rpartition(".")[2]: labels[key] for key, _ in asked} == {
        "source": "https://git.example.com/a",
        "revision": "v1",
        "licenses": "Apache-2.0",
        "team": "x",
    }
    assert labels_asked(of(tmp_path), []) == ()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("licenses", "Apache 2", "is not an SPDX license expression"),
        ("revision", "a\nb", "image_revision (ENVKIT_IMAGE_REVISION): 'a"),
        ("source", "git.example.com/a", "is not a URL"),
    ],
)
def test_an_odd_setting_is_refused(tmp_path: Path, name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        labels_asked(of(tmp_path, **{f"image_{name}": value}), [])
    assert message in caught.value.message
    assert f"ENVKIT_IMAGE_{name.upper()}" in caught.value.message


def test_every_engine_that_names_the_base_leaves_it_out_of_the_dockerfile() -> None:
    plan = shipped_plan("cpu")
    told = render(plan).files["Dockerfile"].decode()
    chosen = render(plan, base=f"debian@{DIGEST}").files["Dockerfile"].decode()
    assert "org.opencontainers.image.base.name" in told
    assert "org.opencontainers.image.base.name" not in chosen


def test_what_was_typed_wins() -> None:
    labels = image_labels(shipped_plan("cpu"), BASE, (("com.example.team", "a=b"),), {})
    assert labels["com.example.team"] == "a=b"


@pytest.mark.parametrize("epoch", ["soon", "9" * 30, "1.5"])
def test_an_odd_epoch_is_refused(epoch: str) -> None:
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH is"):
        image_labels(shipped_plan("cpu"), BASE, (), {"SOURCE_DATE_EPOCH": epoch})


def test_labels_are_read() -> None:
    assert parse_label("com.example.team=a=b") == ("com.example.team", "a=b")


@pytest.mark.parametrize("text", ["team", "=x", "Team=x", "a b=c", "envkit.plan=x", "com.docker.x=y", "a=x\ny"])
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--label") as caught:
        parse_label(text)
    assert caught.value.hint == "--label com.example.team=vision"


def test_an_image_names_its_lock() -> None:
    plan = shipped_plan("cpu")
    lock = locked_conda(plan)
    assert image_labels(plan, BASE, (), {}, lock)["envkit.lock"] == digest_of(lock)
    assert "envkit.lock" not in image_labels(plan, BASE, (), {})
