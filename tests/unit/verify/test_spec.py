from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from envkit.checks.observed import promises
from envkit.plan.labels import plan_labels
from envkit.verify.spec import EMPTY, spec_of_labels, spec_of_plan, start_of
from tests.support.judging import plan
from tests.support.plans import plan_from


def test_a_plan_promises_what_it_resolved() -> None:
    spec = spec_of_plan(plan(shm_mb=256), allow_cpu=True)
    assert spec["gpu"] is True
    assert spec["allow_cpu"] is True
    assert (spec["torch"], spec["local_version"], spec["cuda"], spec["python"]) == ("2.7.1", "cu126", "12.6", "3.12")
    assert spec["driver"] == {"native": "560.28", "minimum": "525.60.13"}
    assert (spec["gpu_archs"], spec["ptx"], spec["prefix"]) == (["8.0", "9.0"], ["9.0"], "/opt/env")
    assert spec["loader"] == {
        "num_workers": 2,
        "prefetch_factor": 2,
        "batch_bytes": 16 * 1024 * 1024,
        "pin_memory": True,
    }
    assert spec["shm_mb"] == 256
    assert spec["nonce"] is None
    assert promises(spec)
    assert json.loads(json.dumps(spec)) == spec


def test_a_plan_promises_each_package_that_it_names_once_and_by_its_own_kind() -> None:
    conda = plan_from("pip: [einops, 'onnxruntime-gpu[x]==1.22', numpy<3]\ncompanions: [numpy]\n", source="conda-forge")
    named = {item["name"]: item["conda"] for item in spec_of_plan(conda)["packages"]}
    assert named == {
        "pytorch": True,
        "cuda-version": True,
        "tini": True,
        "setuptools": True,
        "numpy": True,
        "einops": False,
        "onnxruntime-gpu": False,
    }
    wheels = spec_of_plan(replace(plan(), pip=("Pillow>=9", "pillow", "zope.interface ; python_version>'3'")))
    assert wheels["packages"] == [
        {"name": name, "conda": False} for name in ("torch", "torchvision", "Pillow", "zope.interface")
    ]


def test_a_plan_says_what_its_image_starts() -> None:
    started = spec_of_plan(replace(plan(), entrypoint=("/bin/tini", "--"), volumes=("/data",)))["start"]
    assert started == {
        "entrypoint": ["/bin/tini", "--"],
        "command": ["python"],
        "workdir": "/srv/train",
        "volumes": ["/data"],
    }
    assert start_of((), (), "/") is None
    assert start_of((), ("sh",), "") == {"entrypoint": [], "command": ["sh"], "workdir": "/", "volumes": []}


def test_a_plan_promises_its_torchaudio() -> None:
    assert spec_of_plan(plan())["torchaudio"] == "2.7.1"


def test_a_cpu_plan_promises_no_gpu() -> None:
    spec = spec_of_plan(plan(cuda=None))
    assert (spec["gpu"], spec["cuda"], spec["driver"], spec["gpu_archs"]) == (False, None, None, None)


def test_every_source_gives_the_same_keys() -> None:
    keys = set(EMPTY)
    assert set(spec_of_plan(plan())) == keys
    assert set(spec_of_labels({})) == keys
    assert set(spec_of_labels(plan_labels(plan()))) == keys


@given(st.sampled_from([None, "11.8", "12.6"]), st.integers(min_value=1, max_value=1 << 16))
def test_labels_promise_nothing_that_their_plan_does_not(cuda: str | None, shm_mb: int) -> None:
    made = plan(cuda=cuda, shm_mb=shm_mb)
    of_plan, of_labels = spec_of_plan(made), spec_of_labels(plan_labels(made))
    assert {key: value for key, value in of_labels.items() if value is not None and value != of_plan[key]} in (
        {},
        {"ptx": []},
    )
    for key in ("torch", "python", "cuda", "cudnn", "gpu", "driver", "gpu_archs", "shm_mb", "plan"):
        assert of_labels[key] == of_plan[key], key


def test_labels_of_others_promise_nothing() -> None:
    assert spec_of_labels({"org.opencontainers.image.title": "x", "envkit.torch": "2.7.1"}) == EMPTY
    assert not promises(EMPTY)
