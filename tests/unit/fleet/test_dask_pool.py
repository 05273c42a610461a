"""What can be said of a cluster before anything connects."""

import logging
import sys

import pytest

from envkit.engines.model import BuildOptions
from envkit.fleet import dask_pool
from envkit.fleet.cluster_run import ClusterRun
from envkit.fleet.dask_pool import DaskPool
from envkit.ground.errors import EnvironmentProblem, IntegrityError, UsageError


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EnvironmentProblem, match="--scheduler needs the package distributed") as caught:
        DaskPool("tcp://127.0.0.1:8786")
    assert (caught.value.exit_code, caught.value.hint) == (9, "pip install 'distributed>=2024.8'")


def test_what_is_wrong_with_the_command_line_is_said_before_anything_connects() -> None:
    with pytest.raises(UsageError, match="is not tcp://HOST:PORT"):
        DaskPool("127.0.0.1:8786")
    with pytest.raises(UsageError, match="images must go to a registry, because the workers share no disk"):
        ClusterRun(
            "tcp://127.0.0.1:8786", engine="embedded", options=BuildOptions(output="oci:out"), note=lambda _: None
        )


def test_what_the_cluster_raises_is_translated() -> None:
    class KilledWorker(Exception):  # noqa: N818 - named as distributed names it
        """As distributed raises it when a task has taken several workers with it."""

    found = dask_pool._translated(KilledWorker("Attempted to run task on 4 different workers"))
    assert isinstance(found, EnvironmentProblem)
    assert found.message == "every worker that ran this task was lost, usually because memory ran out"
    assert found.details == ("Attempted to run task on 4 different workers",)
    own, other = IntegrityError("x"), ValueError("y")
    assert dask_pool._translated(own) is own
    assert dask_pool._translated(other) is other


def test_its_loggers_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the extra fleet is not installed: pip install '.[fleet]'")
    logger = logging.getLogger("distributed.client")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    dask_pool._library()
    assert logger.level == logging.CRITICAL
