import pytest

from envkit import __version__
from envkit.build.labels import image_labels, parse_label
from envkit.build.model import BaseImage
from envkit.ground.errors import UsageError
from envkit.lock.store import digest_of
from tests.support.locks import locked_conda
from tests.support.plans import shipped_plan

DIGEST = "sha256:" + "0" * 64
BASE = BaseImage(
    reference=f"debian@{DIGEST}", digest=DIGEST, origin="registry", name="docker.io/library/debian:bookworm-slim"
)


def test_an_image_says_what_it_is_and_what_it_needs() -> None:
    plan = shipped_plan("cu126")
    labels = image_labels(plan, BASE, (), {})
    assert labels["io.github.envkit.plan"] == plan.digest
    assert labels["io.github.envkit.version"] == __version__
    assert labels["io.github.envkit.torch"] == plan.resolution.torch
    assert labels["io.github.envkit.cuda"] == "12.6"
    assert labels["io.github.envkit.python"] == plan.resolution.python
    assert plan.resolution.driver is not None
    assert labels["io.github.envkit.driver.minimum"] == plan.resolution.driver.minimum
    assert labels["io.github.envkit.gpu.archs"].split() == list(plan.resolution.gpu_archs or ())
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


def test_what_was_typed_wins() -> None:
    labels = image_labels(shipped_plan("cpu"), BASE, (("com.example.team", "a=b"),), {})
    assert labels["com.example.team"] == "a=b"


@pytest.mark.parametrize("epoch", ["soon", "9" * 30, "1.5"])
def test_an_odd_epoch_is_refused(epoch: str) -> None:
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH is"):
        image_labels(shipped_plan("cpu"), BASE, (), {"SOURCE_DATE_EPOCH": epoch})


def test_labels_are_read() -> None:
    assert parse_label("com.example.team=a=b") == ("com.example.team", "a=b")


@pytest.mark.parametrize(
    "text", ["team", "=x", "Team=x", "a b=c", "io.github.envkit.plan=x", "com.docker.x=y", "a=x\ny"]
)
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--label") as caught:
        parse_label(text)
    assert caught.value.hint == "--label com.example.team=vision"


def test_an_image_names_its_lock() -> None:
    plan = shipped_plan("cpu")
    lock = locked_conda(plan)
    assert image_labels(plan, BASE, (), {}, lock)["io.github.envkit.lock"] == digest_of(lock)
    assert "io.github.envkit.lock" not in image_labels(plan, BASE, (), {})
