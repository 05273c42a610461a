import threading

import pytest

from envkit.assemble import pool
from envkit.ground.errors import IntegrityError
from envkit.ground.progress import Silent
from tests.support.heard import Heard


def test_results_come_in_the_order_of_the_jobs_and_bytes_are_counted() -> None:
    heard = Heard()
    meter = pool.Meter(heard, None)

    def work(job: int) -> int:
        meter.add(job)
        return job * 10

    assert pool.run([1, 3, 2], work, size=lambda job: job, meter=meter) == [10, 30, 20]
    counted = [done for done, _ in heard.progress]
    assert counted[-1] == 6
    assert counted == sorted(counted)


def test_the_largest_job_starts_first() -> None:
    started: list[int] = []
    pool.run([1, 3, 2], started.append, size=lambda job: job, meter=pool.Meter(Silent(), None), workers=1)
    assert started == [3, 2, 1]


def test_a_failure_ends_the_rest() -> None:
    meter = pool.Meter(Silent(), None)
    began = threading.Event()
    done: list[int] = []

    def work(job: int) -> None:
        if job == 9:
            began.wait(10)
            raise IntegrityError("nine")
        began.set()
        for _ in range(10_000_000):
            meter.add(1)
        done.append(job)

    with pytest.raises(IntegrityError, match="nine"):
        pool.run([8, 9, 1, 2], work, size=lambda job: job, meter=meter, workers=2)
    assert done == []


def test_no_jobs() -> None:
    assert pool.run([], str, size=int, meter=pool.Meter(Silent(), None)) == []
    assert pool.cores() >= 1
