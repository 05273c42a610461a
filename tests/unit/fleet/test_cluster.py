"""Addresses, outputs, versions, resources, and which worker an image goes to."""

import json

import pytest

from envkit.engines.model import BuildOptions
from envkit.fleet.cluster import (
    Affinity,
    Machine,
    Placement,
    check_address,
    check_output,
    heaviest,
    needs,
    require_engine,
    require_same,
    version_differences,
    with_resource,
)
from envkit.fleet.model import BuildTask
from envkit.ground.errors import EnvironmentProblem, UsageError


def machine(name: str, **more: object) -> Machine:
    row: dict[str, object] = {"address": f"tcp://{name}:1", "name": name, "host": name, "pid": 7, "threads": 1}
    return Machine(**row | more)  # type: ignore[arg-type]


def task(name: str = "a", *, cuda: str | None = None, lock: object = None, **more: object) -> BuildTask:
    row: dict[str, object] = {"engine": "embedded", "output": None}
    plan = json.dumps({"resolution": {"cuda": cuda}})
    return BuildTask(name=name, plan=plan, lock=lock and json.dumps(lock), **row | more)  # type: ignore[arg-type]


def locked(*wheels: tuple[str, int]) -> object:
    return {"conda": [], "wheels": [{"sha256": name, "size": size} for name, size in wheels]}


@pytest.mark.parametrize("text", ["tcp://host:8786", "tls://10.0.0.1:1", "tcp://[::1]:8786"])
def test_addresses(text: str) -> None:
    assert check_address(text) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("host", "--scheduler tcp://host:8786"),
        ("host:99", "--scheduler tcp://host:99"),
        ("http://host:99", "--scheduler tcp://host:99"),
        ("tcp://host", "--scheduler tcp://host:8786"),
        ("", "--scheduler tcp://HOST:8786"),
    ],
)
def test_other_texts_are_no_addresses(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=r"is not tcp://HOST:PORT or tls://HOST:PORT") as caught:
        check_address(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (None, "the default output is a folder on one machine"),
        ("oci:out", "--output oci:out is on one machine"),
        ("docker-daemon", "--output docker-daemon is on one machine"),
    ],
)
def test_many_machines_share_a_registry_and_no_disk(output: str | None, told: str) -> None:
    with pytest.raises(UsageError, match="images must go to a registry, because the workers share no disk") as caught:
        check_output(BuildOptions(output=output))
    assert caught.value.message.endswith(told)
    assert caught.value.hint == "--output registry:HOST/NAME"
    check_output(BuildOptions(output="registry:registry.example.com/team/train"))


def test_versions_that_differ_are_named() -> None:
    own = {"dask": "2", "distributed": "2", "numpy": "1"}
    assert version_differences(own, own, {"w": own}) == ()
    assert version_differences(own, own, {"w": own | {"numpy": "9"}}) == ()
    found = version_differences(own, own | {"dask": "1"}, {"w": {"dask": "2", "distributed": None}})
    assert found == ("the scheduler: dask 1, here 2", "worker w: distributed missing, here 2")
    with pytest.raises(EnvironmentProblem) as caught:
        require_same(found, "dask==2 distributed==2")
    assert caught.value.message == (
        "versions on the cluster differ from this machine (the scheduler: dask 1, here 2 and 1 more)"
    )
    assert caught.value.hint == "pip install dask==2 distributed==2   # on the worker"
    assert caught.value.details == found
    require_same((), "anything")


def test_what_a_build_needs() -> None:
    plain, gpu = (machine("a"),), (machine("a"), machine("b", resources={"GPU": 2}))
    assert needs(task(), gpu) == {}
    assert needs(task(engine="buildkit"), plain) == {"DOCKER": 1}
    assert needs(task(cuda="12.6"), plain) == {}
    assert needs(task(cuda="12.6"), gpu) == {"GPU": 1}
    assert needs(task(cuda="12.6", verify=False), gpu) == {}
    assert with_resource(gpu, "GPU") == gpu[1:]


def test_an_engine_that_no_worker_has_is_refused() -> None:
    workers = (machine("a"), machine("b", resources={"GPU": 1}))
    require_engine("embedded", workers, "tcp://s:1")
    require_engine("docker", (machine("c", resources={"DOCKER": 1}),), "tcp://s:1")
    with pytest.raises(EnvironmentProblem) as caught:
        require_engine("docker", workers, "tcp://s:1")
    assert caught.value.message == (
        "--engine docker needs a worker with a Docker daemon, and none of the 2 workers of tcp://s:1 declares DOCKER"
    )
    assert caught.value.hint == (
        'dask worker tcp://s:1 --resources "DOCKER=1"   # on a machine with Docker, or --engine embedded'
    )


def test_images_that_share_their_largest_package_go_to_one_worker() -> None:
    affinity = Affinity((machine("a"), machine("b")))
    big, other, small = ("x", 900), ("y", 800), ("z", 1)
    places = [
        affinity.place(task(lock=locked(*rows))) for rows in ((big, small), (other, small), (small, big), (other,))
    ]
    assert places[0] == places[2] != places[1] == places[3]
    assert not any(place.strict for place in places)


def test_a_faster_worker_gets_more() -> None:
    affinity = Affinity((machine("slow"), machine("fast", threads=3)))
    given = [affinity.place(task(lock=locked((str(number), 100)))).workers[0] for number in range(8)]
    assert (given.count("tcp://slow:1"), given.count("tcp://fast:1")) == (2, 6)


def test_only_workers_with_the_resources_are_asked() -> None:
    affinity = Affinity((machine("a"), machine("b", resources={"GPU": 1})))
    assert affinity.place(task(cuda="12.6")) == Placement(workers=("tcp://b:1",), resources={"GPU": 1})
    # No worker can do it now; one that comes may.
    assert affinity.place(task(engine="docker")) == Placement(resources={"DOCKER": 1})


def test_the_heaviest_package() -> None:
    assert heaviest(None) == ("", 0)
    assert heaviest(json.dumps(locked())) == ("", 0)
    assert heaviest(json.dumps(locked(("a", 1), ("b", 2)))) == ("b", 2)
