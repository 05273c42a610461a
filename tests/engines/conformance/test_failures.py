"""What goes wrong ends alike with every builder: by the same kind of error, soon, and with nothing left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from envkit.engines.by_name import ENGINES
from envkit.ground.errors import (
    Ending,
    EngineError,
    EnvironmentProblem,
    EnvkitError,
    IntegrityError,
    InterruptedRun,
    LockError,
    TimeLimitError,
    UsageError,
)
from envkit.lock.model import Lock
from tests.engines.conformance.conftest import BUILDERS, Bench, Subject
from tests.engines.conftest import containers, quick_with
from tests.engines.faults import Fault, Proxy
from tests.support.heard import Heard

pytestmark = pytest.mark.engine
_TORCH = r"GET .*/torch-[^/]*\.whl"


@pytest.fixture
def clean(bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    """A builder with folders of its own; afterwards there is no container, no note, no image and no half layer."""
    own = bench.fresh(tmp_path / "own")
    storage = {"podman": "podman", "embedded": None}.get(bench.name, "docker")
    before = containers(storage) if storage else {}
    yield own
    # Other tests may use the same Docker engine at the same time; those containers carry another's command.
    left = {ident: row for ident, row in (containers(storage) if storage else {}).items() if ident not in before}
    assert not [row for row in left.values() if "torch.txt" in row or storage == "podman"]
    assert not list(own.folder.glob("state/runs/*"))
    assert not list(own.folder.glob("cache/layers/new/*"))


def _absent(bench: Bench, tag: str) -> bool:
    """Whether there is no image of that name."""
    if bench.name in ENGINES:
        engine = getattr(bench.builder, "engine", None)
        assert engine is not None
        return engine.local(tag) is None
    return not list(bench.folder.glob("state/images/*"))


def _fails(bench: Bench, subject: Subject, kind: type[Ending], word: str, **options: object) -> Ending:
    tag = f"localhost/envkit-test/fails:{word}"
    with pytest.raises(kind) as caught:
        bench.build(subject, Heard(), tags=(tag,), fresh=word, log_file=bench.folder / "build.log", **options)
    assert _absent(bench, tag)
    return caught.value


def _with_wheel(lock: Lock, name: str, **changes: object) -> Lock:
    rows = tuple(replace(one, **changes) if one.name == name else one for one in lock.wheels)  # type: ignore[arg-type]
    return replace(lock, wheels=rows)


def test_the_lock_of_another_plan_is_refused(
    clean: Bench, wheels: Subject, solved: Callable[[str], Subject], word: str
) -> None:
    error = _fails(clean, Subject(wheels.plan, solved("conda").lock), LockError, word)
    assert error.exit_code == 4
    assert "stale" in error.message
    assert error.hint


@pytest.mark.requirement("R15")
@pytest.mark.parametrize("bench", quick_with(BUILDERS, "embedded"), indirect=True)
def test_bytes_that_are_not_the_locks_are_refused(clean: Bench, wheels: Subject, word: str) -> None:
    wrong = _with_wheel(wheels.lock, "greeting", sha256="0" * 64)
    error = _fails(clean, Subject(wheels.plan, wrong), IntegrityError, word)
    assert error.exit_code == 10
    assert "greeting" in error.message
    assert "0" * 64 in error.message


@pytest.mark.requirement("R15")
@pytest.mark.parametrize("bench", ["docker", "embedded"], indirect=True)  # all that call pip compare alike
def test_a_flipped_byte_is_noticed(clean: Bench, wheels: Subject, proxy: Proxy, word: str) -> None:
    proxy.faults.append(Fault(_TORCH, flip=200))
    error = _fails(clean, wheels, IntegrityError, word)
    assert error.exit_code == 10
    assert "torch" in error.message


@pytest.mark.requirement("R20")
@pytest.mark.long
def test_a_cut_download_is_an_error_and_the_next_build_works(
    clean: Bench, wheels: Subject, proxy: Proxy, word: str
) -> None:
    proxy.faults.append(Fault(_TORCH, cut=500))
    error = _fails(clean, wheels, EnvkitError, word)
    # pip takes the half of a file for the whole, and then its hash is another one.
    kinds = (EnvironmentProblem,) if clean.name == "embedded" else (EngineError, EnvironmentProblem, IntegrityError)
    assert isinstance(error, kinds)
    proxy.faults.clear()
    tag = f"localhost/envkit-test/conformance-{clean.name}:1"
    assert clean.build(wheels, Heard(), tags=(tag,), fresh=word).plan_digest == wheels.plan.digest


@pytest.mark.long
@pytest.mark.requirement("R28")
def test_the_time_limit_holds_while_a_server_is_silent(clean: Bench, wheels: Subject, proxy: Proxy, word: str) -> None:
    limit_s = 10.0 if clean.name == "embedded" else 30.0  # the others have steps to run before the download
    proxy.faults.append(Fault(_TORCH, silent_s=120))
    began, before = time.monotonic(), proxy.count(_TORCH)
    error = _fails(clean, wheels, TimeLimitError, word, timeout_s=limit_s)
    assert limit_s - 1 < time.monotonic() - began < 120  # as long as the server is silent
    assert error.exit_code == 124
    assert proxy.count(_TORCH) > before, "the limit came before the download"


@pytest.mark.requirement("R29")
def test_a_signal_ends_it_while_a_server_is_silent(clean: Bench, wheels: Subject, proxy: Proxy, word: str) -> None:
    proxy.faults.append(Fault(_TORCH, silent_s=120))
    before = proxy.count(_TORCH)
    with _stopped_when(lambda: proxy.count(_TORCH) > before) as began:
        error = _fails(clean, wheels, InterruptedRun, word)
    assert time.monotonic() - began[0] < 120  # as long as the server is silent
    assert error.exit_code == 130


def test_a_login_in_a_mirrors_url_is_refused_and_not_shown(clean: Bench, wheels: Subject, word: str) -> None:
    usual = clean.mirrors("")
    assert usual.pytorch_index
    closed = usual.pytorch_index.replace("://", f"://reader:{word}@")
    bench = Bench(clean.builder, lambda _: replace(usual, pytorch_index=closed), clean.folder)
    error = _fails(bench, wheels, UsageError, "x")
    assert "pytorch_index: the URL contains a login" in error.message
    assert word not in " ".join([error.message, error.hint or "", *error.details])
    assert not [path for path in clean.folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


@contextmanager
def _stopped_when(ready: Callable[[], bool]) -> Iterator[list[float]]:
    """Raise InterruptedRun in this thread, as the command line does at SIGINT, once something has happened."""
    at: list[float] = []

    def look(number: int, frame: FrameType | None) -> None:
        del number, frame
        if ready() and not at:
            at.append(time.monotonic())
            raise InterruptedRun(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        yield at
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
