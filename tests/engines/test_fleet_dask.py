"""A real cluster: a scheduler and workers in processes of their own with caches of their own, and a real registry."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.engines.builder import EngineBuilder
from envkit.engines.by_name import ENGINES
from envkit.engines.model import BaseImage, BuildOptions, BuiltImage
from envkit.fleet import build_task, dask_pool, schedule
from envkit.fleet.cluster import Placement
from envkit.fleet.cluster_run import ClusterRun
from envkit.fleet.dask_pool import DaskPool
from envkit.fleet.local import LocalPool
from envkit.fleet.model import BuildTask, Outcome
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.paths import state_dir
from envkit.image.name import parse_reference
from envkit.pipeline.publish import Publication
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.certificates import authority
from tests.engines.dask_cluster import Cluster, another_version, cluster
from tests.engines.oci_images import push, registry
from tests.support.file_images import Packed, entry, packed, read_folder, write_layout
from tests.support.heard import Heard
from tests.support.pids import all_end
from tests.support.small_fleet import task_of as small_task
from tests.support.small_fleet import tasks_of
from tests.world import apt

dask = pytest.importorskip("dask", reason="the extra fleet is not installed: pip install '.[fleet]'")
pytestmark = [pytest.mark.engine, pytest.mark.long]
COUNT = 10
IN_REGISTRY = BuildOptions(output="registry:registry.example.com/x/y")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Cluster]:
    """A cluster of three workers; a test that kills one of them starts another."""
    with cluster(tmp_path_factory.mktemp("three"), {"ENVKIT_WHEEL_DIR": str(wheels)}, "one", "two", "three") as found:
        yield found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> dict[str, str | None]:
    """The digests that this machine by itself gives."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(folder / name))
        patch.setenv("ENVKIT_WHEEL_DIR", str(wheels))
        with LocalPool(2) as pool:
            found = schedule.run(tasks_of(wheels, COUNT), pool, lambda _: None)
    assert {one.status for one in found} == {"built"}, found
    return {one.name: one.digest for one in found}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own state"))


def held(where: str) -> str | None:
    reference = parse_reference(where)
    with Transport() as transport:
        found = Registry(reference.registry, transport, {}).manifest(reference)
    return found.digest if found else None


def run(address: str, tasks: list[BuildTask], heard: list[Outcome], notes: list[str]) -> list[Outcome]:
    output = tasks[0].output
    with ClusterRun(address, engine="embedded", options=BuildOptions(output=output), note=notes.append) as fleet:
        return list(fleet.run(tasks, heard.append))


def test_a_worker_is_killed_and_nothing_is_lost(
    three: Cluster, host: str, wheels: Path, alone: dict[str, str | None]
) -> None:
    place = f"{host}/team/small"
    tasks = tasks_of(wheels, COUNT, f"registry:{place}")
    notes: list[str] = []
    began: list[Outcome] = []

    def heard(outcome: Outcome) -> None:
        began.append(outcome)
        if len(began) == 2:
            three.kill("two")

    with ClusterRun(
        three.address, engine="embedded", options=BuildOptions(output=tasks[0].output), note=notes.append
    ) as fleet:
        found = fleet.run(tasks, heard)
    assert [(one.name, one.exit_code) for one in found] == [(task.name, 0) for task in tasks]
    assert {one.name: one.digest for one in found} == alone
    assert {name: held(f"{place}:{name}") for name in alone} == alone
    assert any(note.startswith("worker two (tcp://127.0.0.1:") and "was lost" in note for note in notes), notes
    assert {one.worker for one in found} <= {"one", "two", "three"}
    # `envkit verify` finds the plans here, where nothing was built.
    assert len(list(state_dir().glob("plans/*"))) == COUNT
    caches = [
        sorted(path.name for path in three.cache(name).glob("envkit/layers/blobs/*")) for name in ("one", "three")
    ]
    assert all(caches), "each worker works from a cache of its own"


def test_what_is_in_the_registry_is_not_built_again(
    three: Cluster, host: str, wheels: Path, alone: dict[str, str | None]
) -> None:
    notes: list[str] = []
    again = run(three.address, tasks_of(wheels, COUNT, f"registry:{host}/team/small"), [], notes)
    assert {(one.status, one.digest) for one in again} == {("present", digest) for digest in alone.values()}


def test_a_cancelled_task_ends_on_its_worker(three: Cluster) -> None:
    with DaskPool(three.address) as pool:
        pid = pool.submit(os.getpid).result(timeout=20)
        futures = [pool.submit(time.sleep, 600) for _ in pool.machines]
        time.sleep(1.5)
        pool.stop()
    assert all(future.cancelled() for future in futures)
    assert all_end([pid], within_s=15), "the child process that slept is still there"


def test_resources_are_honoured(three: Cluster) -> None:
    with ClusterRun(three.address, engine="embedded", options=IN_REGISTRY, note=lambda _: None):
        pass
    with pytest.raises(EnvironmentProblem, match=r"none of the \d workers of tcp://\S+ declares DOCKER") as caught:
        ClusterRun(three.address, engine="buildkit", options=IN_REGISTRY, note=lambda _: None)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f'dask worker {three.address} --resources "DOCKER=1"')
    three.add("builder", "--resources", "DOCKER=1")
    three.wait()
    try:
        with DaskPool(three.address, place=lambda _: Placement(resources={"DOCKER": 1})) as pool:
            # The parent of a child that works is the worker.
            parents = {pool.submit(os.getppid).result(timeout=20) for _ in range(3)}
        assert parents == {three.workers["builder"].pid}
    finally:
        three.end("builder")


def test_what_has_to_run_on_a_lost_worker_fails(three: Cluster) -> None:
    three.add("short")
    three.wait()
    with DaskPool(three.address) as pool:
        address = next(one.address for one in pool.machines if one.name == "short")
        pool.place = lambda _: Placement(workers=(address,), strict=True)
        future = pool.submit(time.sleep, 600)
        time.sleep(1)
        three.kill("short")
        with pytest.raises(EnvironmentProblem, match=f"worker {address} was lost, and this task had to run there"):
            future.result(timeout=20)


def test_another_version_is_named(three: Cluster, tmp_path: Path) -> None:
    three.add("old", env={"PYTHONPATH": str(another_version(tmp_path, "0.0.1"))})
    three.wait()
    try:
        with pytest.raises(
            EnvironmentProblem, match=r"versions on the cluster differ .*\(worker old: envkit 0\.0\.1, here "
        ) as caught:
            DaskPool(three.address)
        assert caught.value.hint is not None
        assert caught.value.hint.startswith("pip install envkit_gpu-")
    finally:
        three.end("old")


def test_no_scheduler_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_pool, "PATIENCE_S", 1.0)
    with pytest.raises(
        EnvironmentProblem, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9 within 1 s"
    ) as caught:
        DaskPool("tcp://127.0.0.1:9")
    assert caught.value.exit_code == 9
    assert caught.value.hint == "dask scheduler   # start it there; it prints its address"


def test_a_scheduler_that_goes_away_is_told_of(tmp_path: Path) -> None:
    with cluster(tmp_path, {}, "one") as found, DaskPool(found.address) as pool:
        futures = [pool.submit(time.sleep, 600) for _ in range(2)]
        time.sleep(0.5)
        found.scheduler.kill()
        for future in futures:
            with pytest.raises(
                EnvironmentProblem, match=f"the connection to the scheduler {found.address} was lost"
            ) as caught:
                future.result(timeout=20)
            assert caught.value.hint == "start it again; envkit build --resume builds the rest"


def test_work_for_a_scheduler_that_went_away_says_so(tmp_path: Path) -> None:
    with cluster(tmp_path, {}, "one") as found, DaskPool(found.address) as pool:
        found.scheduler.kill()
        for _ in range(6):  # the connection is given up after a while
            with pytest.raises(EnvironmentProblem, match=f"the connection to the scheduler {found.address} was lost"):
                pool.submit(str, "x").result(timeout=20)
            time.sleep(0.5)


def test_a_pool_whose_scheduler_does_not_answer_can_be_left(tmp_path: Path) -> None:
    with cluster(tmp_path, {}, "one") as found:
        pool = DaskPool(found.address)
        pool.submit(time.sleep, 600)
        found.scheduler.send_signal(signal.SIGSTOP)
        try:
            time.sleep(1.5)  # until it is asked
            leaving = threading.Thread(target=pool.stop, daemon=True)
            leaving.start()
            leaving.join(10)
            assert not leaving.is_alive()
        finally:
            found.scheduler.send_signal(signal.SIGCONT)


def test_who_else_uses_the_cluster_is_not_heard(three: Cluster) -> None:
    mine, other = list[object](), list[object]()
    task = replace(small_task(0, ()), plan="{}")
    with DaskPool(three.address, on_event=mine.append) as pool, DaskPool(three.address, on_event=other.append):
        assert pool.submit(build_task.build, task).result(timeout=20).status == "failed"
        deadline = time.monotonic() + 10
        while not mine:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # what is told goes to all who listen in the same moment
    assert mine == [("small-0", "step", ("begin",))]
    assert other == []


def test_a_worker_s_name_may_be_a_number(tmp_path: Path) -> None:
    with cluster(tmp_path, {}, "0") as found, DaskPool(found.address) as pool:
        done = pool.submit(build_task.build, replace(small_task(0, ()), plan="{}")).result(timeout=20)
        assert [one.name for one in pool.machines] == [done.worker] == ["0"]


def test_a_secure_cluster(tmp_path: Path) -> None:
    signer = authority(tmp_path / "authority")
    certificate, key = signer.sign()
    settings = {"ca-file": str(signer.bundle), "require-encryption": "true"} | {
        f"{who}.{what}": str(file)
        for who in ("client", "scheduler", "worker")
        for what, file in (("cert", certificate), ("key", key))
    }
    names = {f"DASK_DISTRIBUTED__COMM__TLS__{key.upper().replace('.', '__').replace('-', '_')}": text
             for key, text in settings.items()}  # fmt: skip
    with (
        cluster(tmp_path, names, "one", protocol="tls") as found,
        dask.config.set({f"distributed.comm.tls.{name}": text for name, text in settings.items()}),
        DaskPool(found.address) as pool,
    ):
        assert found.address.startswith("tls://")
        assert pool.machines[0].address.startswith("tls://")
        assert pool.submit(os.getppid).result(timeout=20) == found.workers["one"].pid


def test_a_secure_address_needs_certificates(three: Cluster) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot connect to tls") as caught:
        DaskPool(three.address.replace("tcp:", "tls:"))
    assert caught.value.hint is not None
    assert "distributed.comm.tls.ca-file" in caught.value.hint


def test_without_certificates_the_error_is_all_that_is_said() -> None:
    """The client's finalizer printed a traceback after the error, and took 20 seconds."""
    code = (
        "from envkit.ground.errors import EnvironmentProblem as E\nfrom envkit.fleet.dask_pool import DaskPool as P\n"
        "try:\n P('tls://127.0.0.1:9')\nexcept E as e:\n print(e.message)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "cannot connect to tls://127.0.0.1:9: no certificates in Dask's configuration\n"
    assert done.stderr == ""


def shell() -> Packed:
    """A layer with this machine's own shell, and nothing else: no Python."""
    said = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    files = ["/bin/sh", *(word for word in said.split() if word.startswith("/"))]
    folders = sorted({str(parent)[1:] for file in files for parent in Path(file).parents} - {""})
    rows = [(entry(folder, tarfile.DIRTYPE, mode=0o755), b"") for folder in (*folders, "tmp", "run", "proc", "dev")]
    return packed([*rows, *((entry(file[1:], mode=0o755), Path(file).read_bytes()) for file in files)])


def test_two_images_on_three_machines_are_one_matrix(three: Cluster, host: str, tmp_path: Path) -> None:
    apt.require("bwrap", "bubblewrap")
    if "two" not in three.workers:
        three.add("two again")
        three.wait()
    images = []
    for name in ("a", "b"):
        write_layout(tmp_path / name, [shell()], {"Env": ["PATH=/bin", f"NAME={name}"]})
        with Transport() as transport:
            reference = parse_reference(f"{host}/team/{name}:1")
            push(read_folder(tmp_path / name), reference, Registry(host, transport, {}), Heard())
        images.append(f"registry:{reference}")
    argv = [sys.executable, "-m", "envkit", "verify", *images, "--scheduler", three.address, "-o", "matrix.json"]
    own = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env = {**three.env, **own}
    refused = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 9, refused.stderr
    assert "error: none of the 3 workers of tcp://127.0.0.1:" in refused.stderr
    assert not (tmp_path / "matrix.json").exists()
    done = subprocess.run(
        [*argv, "--workers", "all"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    # The image holds no Python, which no machine can fix.
    assert done.returncode == 6, done.stderr
    tree = json.loads((tmp_path / "matrix.json").read_text())
    machines = [one["name"] for one in tree["machines"]]
    assert len(machines) == 3
    assert [(one["image"], one["machine"]) for one in tree["proofs"]] == [(i, m) for i in images for m in machines]
    assert {one["verdict"] for one in tree["proofs"]} == {"FAIL"}
    assert {one["record"]["run"]["runner"] for one in tree["proofs"]} == {"bubblewrap"}
    assert all(Path(one["kept"]).is_file() for one in tree["proofs"])
    digests = {one["record"]["subject"]["image"].partition("@")[2] for one in tree["proofs"]}
    assert len(digests) == 2
    head, *rows = done.stdout.splitlines()[:3]
    assert head.split()[0] == "image"
    assert [row.split()[0] for row in rows] == images
    assert all(row.count("FAIL") == 3 for row in rows)


def test_what_an_engine_built_goes_to_the_registry(
    host: str, images: Callable[[str], str], heard: Heard, tmp_path: Path
) -> None:
    ident = images("docker")
    made = BaseImage(reference="x", digest=None, origin="local", name="x")
    built = BuiltImage(
        id=ident, tags=(), engine="docker", size=1, base=made, plan_digest="sha256:0", labels=(), duration_s=0,
        log_file=None,
    )  # fmt: skip
    builder = EngineBuilder(ENGINES["docker"]("docker"), state=tmp_path)
    assert Publication(builder, BuildOptions(), own_tag="abc", state=tmp_path).end(built, heard) == built
    options = BuildOptions(output=f"registry:{host}/team/docker:1")
    sent = Publication(builder, options, own_tag="abc", state=tmp_path).end(built, heard)
    assert sent.pushed == f"{host}/team/docker@{sent.digest}"
    assert held(sent.pushed) == sent.digest
    assert held(f"{host}/team/docker:1") == held(f"{host}/team/docker:abc") == sent.digest
