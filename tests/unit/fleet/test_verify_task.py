"""Which machines verify, which images can be verified there, and that verifications on one host take turns."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from envkit.fleet import verify_task
from envkit.fleet.cluster import Placement
from envkit.fleet.verify_task import (
    Machine,
    Verification,
    VerifyTask,
    machines_of,
    not_made,
    placed,
    subject_of,
    verification_of,
    verify,
    verify_all,
)
from envkit.ground.errors import EnvironmentProblem, InterruptedRun, UsageError
from envkit.image.name import image_name
from envkit.registry.remote import Remote
from tests.unit.fleet import test_cluster as cluster

WORKERS = (cluster.machine("a"), cluster.machine("b", resources={"GPU": 2}))


def task(image: str, machine: Machine) -> VerifyTask:
    return VerifyTask(image=image, target=image, machine=machine)


def test_the_machines_with_gpus_verify() -> None:
    (found,) = machines_of(WORKERS, None, "tcp://s:1", allow_cpu=False)
    assert found == Machine(name="b", host="b", address="tcp://b:1", gpus=2)
    assert placed(task("i", found)) == Placement(workers=("tcp://b:1",), strict=True, resources={"GPU": 2})
    assert machines_of(WORKERS, "gpu", "tcp://s:1", allow_cpu=True) == (found,)
    assert [one.name for one in machines_of(WORKERS, "all", "tcp://s:1", allow_cpu=False)] == ["a", "b"]


def test_where_no_machine_has_a_gpu_that_is_said() -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        machines_of(WORKERS[:1], None, "tcp://s:1", allow_cpu=False)
    assert caught.value.message == "none of the 1 workers of tcp://s:1 declares a GPU"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith('dask worker tcp://s:1 --resources "GPU=1"')
    with pytest.raises(EnvironmentProblem):
        machines_of(WORKERS[:1], "gpu", "tcp://s:1", allow_cpu=True)
    assert len(machines_of(WORKERS[:1], None, "tcp://s:1", allow_cpu=True)) == 1


def test_machines_have_names_of_their_own() -> None:
    rows = [cluster.machine(f"tcp://h:{port}", address=f"tcp://h:{port}", host="h") for port in (1, 2)]
    found = machines_of([*rows, cluster.machine("x")], "all", "tcp://s:1", allow_cpu=False)
    assert [one.name for one in found] == ["h h:1", "h h:2", "x"]


@pytest.mark.parametrize(
    ("image", "hint"),
    [("oci:out", "push it with `envkit push`, then name it as "), ("train:1", "name it as ")],
)
def test_images_that_machines_do_not_share_are_refused(tmp_path: Path, image: str, hint: str) -> None:
    with pytest.raises(UsageError, match="is not in a registry; --scheduler verifies images from") as caught:
        subject_of(image_name(image), Remote(tmp_path), tmp_path)
    assert caught.value.hint == f"{hint}registry:HOST/NAME:TAG, such as registry:registry.example.com/team/train:1"


class Machines(Executor):
    """Ends every task in a thread of its own, the first ones when two have begun; notes when each begins and ends."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []  # begin or end, host
        self.two_began = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, kwargs
        future: Future[Any] = Future()
        self.log.append(("begin", args[0].machine.host))
        if len(self.log) > 1:
            self.two_began.set()
        threading.Thread(target=self._end, args=(args[0], future)).start()
        return future

    def _end(self, given: VerifyTask, future: Future[Any]) -> None:
        assert self.two_began.wait(30)
        self.log.append(("end", given.machine.host))
        if given.image == "lost":
            future.set_exception(EnvironmentProblem("worker was lost", hint="again"))
            return
        made = Verification(image=given.image, machine=given.machine.name, verdict="PASS", exit_code=0, duration_s=1)
        future.set_result(made)


def test_verifications_on_one_host_take_turns_and_a_loss_stops_nothing() -> None:
    machines = [Machine(name=name, host=host) for name, host in (("1", "h"), ("2", "h"), ("3", "g"))]
    tasks = [task(image, machine) for image in ("a", "lost") for machine in machines]
    executor, heard = Machines(), list[str]()
    found = verify_all(tasks, executor, lambda done: heard.append(f"{done.image} {done.machine}"))
    assert [(one.image, one.machine) for one in found] == [(one.image, one.machine.name) for one in tasks]
    assert sorted(heard) == sorted(f"{one.image} {one.machine.name}" for one in tasks)
    assert executor.log[:2] == [("begin", "h"), ("begin", "g")]
    for host in ("h", "g"):
        words = [word for word, where in executor.log if where == host]
        assert words == ["begin", "end"] * (len(words) // 2)
    lost = {(one.exit_code, one.error, one.hint, one.verdict) for one in found if one.image == "lost"}
    assert lost == {(9, "worker was lost", "again", "ERROR")}


def test_a_signal_ends_the_verifications_that_would_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        del given
        raise InterruptedRun(2)

    monkeypatch.setattr(verify_task, "_record", interrupted)
    monkeypatch.setattr(Future, "result", interrupted)
    asked = task("i", Machine(name="m", host="m"))
    with pytest.raises(InterruptedRun):
        verify(asked)
    with pytest.raises(InterruptedRun):
        verification_of(asked, Future())


def test_what_the_system_refuses_stops_no_other_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> None:
        del given
        raise PermissionError(13, "Permission denied", "/state")

    monkeypatch.setattr(verify_task, "_record", refused)
    found = verify(task("i", Machine(name="m", host="m")))
    assert (found.verdict, found.exit_code, found.error) == ("ERROR", 9, "Permission denied: /state")


def test_what_cannot_be_verified_keeps_its_reason() -> None:
    error = EnvironmentProblem("no engine", hint="install one", details=("a", "b"))
    found = not_made(task("i", Machine(name="m", host="m")), error)
    assert (found.exit_code, found.error, found.hint, found.details) == (9, "no engine", "install one", ("a", "b"))
