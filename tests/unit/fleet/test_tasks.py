"""Cells into tasks, and the order in which they share most."""

import json
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest

from envkit.engines.model import BuildOptions
from envkit.fleet.build_task import further, options_of
from envkit.fleet.tasks import in_order, output_of, task_of
from envkit.ground.errors import UsageError
from envkit.ground.settings import load
from envkit.plan.store import plan_from_json
from tests.unit.fleet.samples import cell


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (None, None),
        ("registry:registry.example.com:5000/team/train", "registry:registry.example.com:5000/team/train:a"),
        ("registry:docker.io/team/train", "registry:docker.io/team/train:a"),
        ("oci:out", "oci:out/a"),
        ("docker-archive:out", "docker-archive:out/a.tar"),
        ("docker-daemon", "docker-daemon"),
    ],
)
def test_every_image_has_a_place_of_its_own(output: str | None, found: str | None) -> None:
    assert output_of(BuildOptions(output=output), "a") == found


@pytest.mark.parametrize(
    ("output", "message", "hint"),
    [
        (
            "registry:registry.example.com/team/train:1",
            "--output 'registry:registry.example.com/team/train:1' names a tag, but each image needs its own",
            "--output registry:registry.example.com/team/train",
        ),
        (
            "oci:out:train",
            "--output 'oci:out:train' names one image, but each image needs its own",
            "--output oci:PATH",
        ),
    ],
)
def test_a_place_for_one_image_is_refused(output: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        output_of(BuildOptions(output=output), "a")
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_task_says_all_and_travels_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "secret").write_text("x")
    options = BuildOptions(
        labels=(("a", "b"),), base="debian:12", timeout_s=9.0, secrets=(("id", tmp_path / "secret"),),
        mount_from=("team/base",), compression="zstd", replace_tag=True, network="none", no_cache=True,
    )  # fmt: skip
    made = task_of(cell("train-a"), "embedded", options, verify=True, allow_cpu=True)
    assert json.loads(json.dumps(asdict(made))) == json.loads(json.dumps(asdict(pickle.loads(pickle.dumps(made)))))
    assert made.tags == ("envkit/cpu:train-a",)
    assert plan_from_json(json.loads(made.plan), "x") == cell("train-a").plan
    back = options_of(made, load({}, {}, tmp_path))
    for name in (
        "labels",
        "base",
        "timeout_s",
        "secrets",
        "mount_from",
        "compression",
        "replace_tag",
        "network",
        "no_cache",
    ):
        assert getattr(back, name) == getattr(options, name)
    assert back.log_file is not None
    assert back.log_file.parent == tmp_path / "state" / "envkit" / "logs"


def test_a_cell_has_its_own_base() -> None:
    made = task_of(cell("a", (("base", "debian:12"),)), "embedded", BuildOptions(base="typed"), verify=True)
    assert made.options["base"] == "debian:12"


def test_images_with_equal_packages_do_not_begin_together() -> None:
    torches, bases = ("2.7.1", "2.8.0"), ("x", "y", "z")
    cells = [cell(f"{torch}{base}", (("base", base),), torch=torch) for torch in torches for base in bases]
    tasks = [task_of(one, "embedded", BuildOptions(), verify=False) for one in cells]
    found = [one.name for one, _ in in_order(cells, tasks)]
    assert found == ["2.7.1x", "2.8.0x", "2.7.1y", "2.8.0y", "2.7.1z", "2.8.0z"]


def test_what_else_decides_the_bytes_is_in_the_hash() -> None:
    assert further(BuildOptions(), {}) == ()
    options = BuildOptions(labels=(("b", "2"), ("a", "1")), compression="zstd")
    assert further(options, {"SOURCE_DATE_EPOCH": "1"}) == ("label a=1", "label b=2", "compression zstd", "created 1")
