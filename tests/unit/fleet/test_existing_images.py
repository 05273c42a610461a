"""Whether an image is there already, as far as no registry is needed to tell."""

from pathlib import Path

import pytest

from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.model import BaseImage, BuildOptions, BuiltImage
from envkit.fleet import existing_images
from envkit.lock.store import digest_of
from tests.support.file_images import Packed, write_layout
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan

PLAN = shipped_plan("cpu")
LOCK = lock_for(PLAN)
BUILT = BuiltImage(
    id="x", tags=(), engine="embedded", size=1, base=BaseImage(reference="x", digest=None, origin="local", name="x"),
    plan_digest=PLAN.digest, labels=(), duration_s=0, log_file=None,
)  # fmt: skip
LABELS = {"envkit.plan": PLAN.digest, "envkit.lock": digest_of(LOCK)}


def found(folder: Path, options: BuildOptions) -> existing_images.ExistingImage | None:
    builder = EmbeddedBuilder(state=folder, cache=folder / "cache")
    return existing_images.find(builder, PLAN, LOCK, options=options, own_tag="0" * 12, state=folder)


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """A layout of this plan and lock."""
    write_layout(tmp_path / "out", [Packed(b"", "sha256:" + "0" * 64)], {"Labels": LABELS})
    return tmp_path / "out"


def test_a_layout_with_the_labels_of_plan_and_lock_is_the_image(layout: Path, tmp_path: Path) -> None:
    options = BuildOptions(output=f"oci:{layout}")
    one = found(tmp_path, options)
    assert one is not None
    assert one.place == f"oci:{layout}"
    assert str(one.digest).startswith("sha256:")
    assert found(tmp_path, BuildOptions(output=f"oci:{layout}", labels=(("run", "2"),))) is None
    assert found(tmp_path, BuildOptions(output=f"oci:{tmp_path}/other")) is None
    assert found(tmp_path, BuildOptions(output=f"docker-archive:{layout}.tar")) is None
    builder = EmbeddedBuilder(state=tmp_path, cache=tmp_path / "cache")
    assert existing_images.find(builder, PLAN, None, options=options, own_tag="0" * 12, state=tmp_path) is None


def test_the_state_folder_is_looked_at_where_no_output_is_named(layout: Path, tmp_path: Path) -> None:
    options = BuildOptions(tags=("envkit/cpu:train",))
    assert found(tmp_path, options) is None
    (tmp_path / "images").mkdir()
    layout.rename(tmp_path / "images" / "envkit_cpu_train")
    one = found(tmp_path, options)
    assert one is not None
    assert one.place == f"oci:{tmp_path}/images/envkit_cpu_train"


def test_a_layout_that_lacks_a_layer_is_built_again(layout: Path, tmp_path: Path) -> None:
    for blob in (layout / "blobs" / "sha256").iterdir():
        blob.unlink()
    assert found(tmp_path, BuildOptions(output=f"oci:{layout}")) is None


def test_an_image_is_owed_its_verification_until_that_ends_well(tmp_path: Path) -> None:
    builder = EmbeddedBuilder(state=tmp_path, cache=tmp_path / "cache")
    for output, mark in (
        (f"oci:{tmp_path}/out/a", tmp_path / "out" / "a.unproved"),
        (None, tmp_path / "images" / "envkit_cpu_a.unproved"),
        (f"docker-archive:{tmp_path}/a.tar", None),
        ("registry:registry.example.com/team/a:1", None),
    ):
        options = BuildOptions(tags=("envkit/cpu:a",), output=output)
        pending = existing_images.PendingImage(builder, options, own_tag="012", state=tmp_path)
        assert not pending.is_marked
        assert pending.begin().tags == ("envkit/cpu:a", "envkit/cpu:012")
        assert pending.is_marked == (mark is not None and mark.is_file())
        assert pending.is_marked == (mark is not None)
        unasked = existing_images.PendingImage(builder, options, own_tag="012", state=tmp_path, verify=False)
        assert not unasked.is_marked
        unasked.end(BUILT)
        assert pending.is_marked == (mark is not None)
        pending.end(BUILT)
        assert not pending.is_marked


def test_names_in_an_engine() -> None:
    assert existing_images.with_hash((), "0" * 12) == ()
    assert existing_images.with_hash(("envkit/cpu:a", "b"), "012") == ("envkit/cpu:a", "b", "envkit/cpu:012")
    assert (
        existing_images.with_hash(("registry.example.com:5000/cpu",), "012")[1] == "registry.example.com:5000/cpu:012"
    )
    assert existing_images.with_hash(("cpu:1",), "012")[1] == "cpu:012"
