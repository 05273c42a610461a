from dataclasses import replace
from pathlib import Path

import pytest

from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.model import BuildOptions
from envkit.ground.errors import LockError, UsageError
from envkit.ground.settings import Mirrors
from envkit.lock.model import LockedBase
from envkit.render.locked import index_locations
from tests.support.file_images import read_folder
from tests.support.heard import Heard
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan


@pytest.fixture
def builder(tmp_path: Path) -> EmbeddedBuilder:
    return EmbeddedBuilder(state=tmp_path / "state", cache=tmp_path / "cache")


def test_it_is_there_and_says_so(builder: EmbeddedBuilder) -> None:
    probe = builder.probe()
    assert probe.available
    assert probe.name == builder.name == "embedded"


def test_without_a_lock_nothing_is_built(builder: EmbeddedBuilder) -> None:
    with pytest.raises(LockError) as caught:
        builder.build(shipped_plan("cu126"), None, BuildOptions(), Heard())
    assert caught.value.hint == "envkit lock"


def test_a_lock_of_another_plan_is_refused(builder: EmbeddedBuilder, tmp_path: Path) -> None:
    lock = lock_for(shipped_plan("cu126"))
    with pytest.raises(LockError, match="the lock is stale: "):
        builder.build(shipped_plan("cu126", template="wheels"), lock, BuildOptions(), Heard())
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("options", [BuildOptions(output="nowhere"), BuildOptions(tags=("No Name",))])
def test_what_was_typed_is_looked_at_first(builder: EmbeddedBuilder, options: BuildOptions, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        builder.build(shipped_plan("cu126"), None, options, Heard())
    assert not (tmp_path / "cache").exists()


def test_the_image_goes_where_the_output_says_or_below_the_state_folder(
    builder: EmbeddedBuilder, tmp_path: Path
) -> None:
    plan = replace(shipped_plan("cu126", template="wheels"), family=(), pip=())  # nothing has to be downloaded
    lock = replace(lock_for(plan), base=LockedBase(kind="none", reference="none"))
    options = BuildOptions(tags=("team/train:1.0",), base="none", mirrors=Mirrors(ca_bundle="none"))
    own = builder.build(plan, lock, options, Heard())
    named = builder.build(plan, lock, replace(options, output=f"oci:{tmp_path / 'out'}"), Heard())
    assert own.place == f"oci:{tmp_path / 'state' / 'images' / 'team_train_1.0'}"
    assert named.place == f"oci:{tmp_path / 'out'}"
    found = read_folder(tmp_path / "out")
    assert (own.id, own.digest) == (named.id, named.digest) == (found.id, found.digest)
    assert own.engine == "embedded"
    assert own.plan_digest == plan.digest
    assert dict(own.labels)["envkit.plan"] == plan.digest


def test_no_base_has_to_be_asked_for(builder: EmbeddedBuilder) -> None:
    plan = shipped_plan("cu126", template="wheels")
    lock = replace(lock_for(plan), base=LockedBase(kind="none", reference="none"))
    with pytest.raises(LockError, match="has no base image") as caught:
        builder.build(plan, lock, BuildOptions(), Heard())
    assert "--base none" in (caught.value.hint or "")


def test_mirrors_take_the_place_of_public_sources() -> None:
    plan = shipped_plan("cu126", template="wheels", source="pytorch")
    mirrors = Mirrors(pytorch_index="https://mirror.example.com/whl", conda_channel_alias="https://conda.example.com")
    places = index_locations(plan, mirrors)
    assert (
        places.fetch_url("https://conda.anaconda.org/conda-forge/x.conda")
        == "https://conda.example.com/conda-forge/x.conda"
    )
    index = plan.resolution.index
    assert index is not None
    assert places.fetch_url(f"{index.rpartition('/')[0]}/x.whl") == "https://mirror.example.com/whl/x.whl"
