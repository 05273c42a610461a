"""One plan, one lock: what every builder makes of them is the same image, and holds what the lock says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from envkit.lock.store import digest_of
from envkit.plan.copying import merged
from tests.engines.conformance.conftest import BUILDERS, IMAGES, Bench, Made, Subject, quick_images
from tests.engines.conformance.differences import unexplained
from tests.engines.conftest import quick_with
from tests.support.heard import Heard

pytestmark = pytest.mark.engine
_METADATA = re.compile(r"opt/env/lib/python3\.11/site-packages/([^/]+\.dist-info)/METADATA")
_OF_CONDA = re.compile(r"opt/env/conda-meta/[^/]+\.json")
_OF_BUILDAH = "io.buildah.version"  # podman's own


def test_it_says_what_it_built(made: Made) -> None:
    built, subject = made.built, made.subject
    assert built.engine == made.bench.name
    assert built.id == made.image.id
    assert built.plan_digest == subject.plan.digest
    assert built.lock == digest_of(subject.lock)
    assert (built.base.reference.partition("@")[0], built.base.digest) == (
        subject.lock.base.reference,
        subject.lock.base.digest,
    )
    assert built.tags == (f"localhost/envkit-test/conformance-{made.bench.name}:1",)
    assert built.size is not None
    assert 1_000_000 < built.size < 1_000_000_000
    assert 0 < built.duration_s < 600
    assert built.log_file is not None
    assert built.log_file.exists()
    assert made.heard.steps
    assert all(total is None or done <= total for done, total in made.heard.progress)


def test_it_runs_as_the_plan_says(made: Made) -> None:
    plan, runtime = made.subject.plan, made.image.runtime()
    labels = runtime.pop("Labels")
    assert runtime == {
        "User": "1234:4321",
        "Env": dict(plan.env),
        "Entrypoint": list(plan.entrypoint),
        "Cmd": list(plan.cmd),
        "WorkingDir": plan.workdir,
        "StopSignal": "SIGTERM",
        "ExposedPorts": {"8080/tcp": {}, "53/udp": {}},
        "Volumes": {"/data": {}},
    }
    assert {key: text for key, text in labels.items() if key != _OF_BUILDAH} == dict(made.built.labels)
    assert labels["envkit.plan"] == plan.digest
    assert labels["envkit.lock"] == digest_of(made.subject.lock)
    assert labels["com.example.run"] == "1"
    assert dict(plan.labels).items() <= labels.items()


def test_it_holds_the_files_of_the_project(made: Made) -> None:
    files = {path: made.tree[path] for path in merged(made.subject.plan)}
    assert {path: (node.kind, node.mode, node.owner) for path, node in files.items()} == {
        "workspace/code/start.sh": ("file", 0o755, (0, 0)),
        "workspace/code/deep/déjà vu.txt": ("file", 0o644, (0, 0)),
        "srv/start.sh": ("file", 0o755, (0, 0)),
    }
    assert made.tree["data"].mode == 0o1777


def test_it_holds_the_packages_of_the_lock_and_no_others(made: Made) -> None:
    lock = made.subject.lock
    rows = [json.loads(node.note) for path, node in made.tree.items() if _OF_CONDA.fullmatch(path)]
    conda = {(row["name"], row["version"], row["build"], row["sha256"]) for row in rows}
    assert conda == {(one.name, one.version, one.build, one.sha256) for one in lock.conda}
    of_conda = {path.split("/")[-2] for row in rows for path in row["files"] if path.endswith(".dist-info/METADATA")}
    found = {match[1] for path in made.tree if (match := _METADATA.fullmatch(path))} - of_conda
    parts = [name.removesuffix(".dist-info").rpartition("-") for name in found]
    wheels = {(canonicalize_name(name), version) for name, _, version in parts}
    assert wheels == {(canonicalize_name(wheel.name), wheel.version) for wheel in lock.wheels}


@pytest.mark.parametrize(
    "made", quick_images(pair for pair in IMAGES if pair[0] != "embedded"), ids="-".join, indirect=True
)
def test_an_assembled_image_is_the_installed_one(made: Made, making: Callable[[str, Subject], Made]) -> None:
    """Path by path: kind, mode, owner and contents of the whole file system, but for what `differences` explains."""
    assert unexplained(made.tree, making("embedded", made.subject).tree) == []


@pytest.mark.parametrize("bench", quick_with(BUILDERS, "embedded"), indirect=True)
def test_equal_inputs_give_the_same_image(
    bench: Bench, wheels: Subject, making: Callable[[str, Subject], Made]
) -> None:
    first = making(bench.name, wheels).built
    again = bench.build(wheels, Heard(), labels=(("com.example.run", "1"),))
    assert again.id == first.id
    assert again.digest == first.digest


@pytest.mark.requirement("R38")
def test_an_empty_cache_gives_the_same_bytes(
    subject: Subject, making: Callable[[str, Subject], Made], tmp_path: Path
) -> None:
    made = making("embedded", subject)
    again = made.bench.fresh(tmp_path).build(subject, Heard(), labels=(("com.example.run", "1"),))
    assert (again.digest, again.id) == (made.built.digest, made.built.id)
