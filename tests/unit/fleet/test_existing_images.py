"""Whether an image is there already, as far as no registry is needed to tell."""

from pathlib import Path

import pytest

from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.model import BuildOptions
from envkit.fleet import existing_images
from envkit.lock.store import digest_of
from tests.support.file_images import Packed, write_layout
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan

PLAN = shipped_plan("cpu")
LOCK = lock_for(PLAN)
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
