"""The loop that makes layers: the largest first, what another process makes is waited for, and failures end all."""

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from envkit.assemble.layer import LayerWriter
from envkit.assemble.layer_pool import Made, Progress, make_layers
from envkit.engines.layer_cache import LayerCache
from envkit.ground.cache import UNFINISHED_LAYERS
from envkit.ground.errors import IntegrityError, TimeLimitError
from envkit.ground.process import StoppedError
from envkit.image.spec import LayerDigest
from tests.support.heard import Heard


@dataclass(frozen=True)
class Package:
    """A package of one file."""

    name: str
    size: int = 1
    version: str = "1.0"


Group = tuple[Package, ...]


@dataclass
class Files:
    """A kind of packages whose file is its name; `work` runs while a layer is written."""

    work: Callable[[Group, Progress], None] = lambda _group, _progress: None
    fetch: Callable[[Progress], None] = lambda _progress: None
    name: str = "files"
    threaded_from: int = 1 << 30
    written: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def key(self, group: Group) -> str:
        return group[0].name * 64

    def provide(self, groups: Sequence[Group], progress: Progress, ready: Callable[[Group], object]) -> None:
        for group in groups:
            ready(group)
        self.fetch(progress)

    def write(self, group: Group, layer: LayerWriter, progress: Progress) -> None:
        self.written.append(group[0].name)
        self.work(group, progress)
        layer.add_bytes(group[0].name, b"contents")

    def made(self, group: Group) -> None:
        self.released.append(group[0].name)


def groups(**sizes: int) -> list[Group]:
    return [(Package(name, size),) for name, size in sizes.items()]


def run(kind: Files, wanted: Sequence[Group], folder: Path, **options: object) -> tuple[Made[Package], ...]:
    heard = Heard()
    given = {"cache": LayerCache(folder), "progress": Progress(heard), "reporter": heard, **options}
    return make_layers(kind, wanted, **given)  # type: ignore[arg-type]


def test_layers_come_in_the_order_of_their_groups_and_the_largest_is_made_first(tmp_path: Path) -> None:
    kind = Files()
    found = run(kind, groups(a=1, b=3, c=2), tmp_path, workers=1)
    assert [made.packages[0].name for made in found] == ["a", "b", "c"]
    assert kind.written == kind.released == ["b", "c", "a"]


def test_a_layer_of_the_cache_is_not_made_again_unless_asked(tmp_path: Path) -> None:
    first = run(Files(), groups(a=1, b=1), tmp_path)
    warm, again = Files(), Files()
    assert run(warm, groups(a=1, b=1, c=1), tmp_path)[:2] == first
    assert warm.written == ["c"]
    assert run(again, groups(a=1, b=1), tmp_path, no_cache=True) == first
    assert sorted(again.written) == ["a", "b"]


def test_what_another_build_makes_is_waited_for_and_taken(tmp_path: Path) -> None:
    theirs, mine, heard = Files(), Files(), Heard()
    cache = LayerCache(tmp_path)
    waiting = threading.Event()

    def wait(text: str) -> None:
        heard.steps.append(text)
        waiting.set()

    heard.step = wait  # type: ignore[method-assign]

    def other() -> None:
        with cache.flights.free([theirs.key(group) for group in groups(a=1)]):
            begun.set()
            assert waiting.wait(10)
            cache.make(theirs.key(groups(a=1)[0]), _write_a)

    begun = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(10)
    found = run(mine, groups(a=1, b=1), tmp_path, reporter=heard)
    thread.join()
    assert mine.written == ["b"]
    assert len(found) == 2
    assert heard.steps == ["wait for 1 layer of files that another build is making"]


def _write_a(sink: IO[bytes]) -> LayerDigest:
    with LayerWriter(sink) as layer:
        layer.add_bytes("a", b"contents")
        return layer.close()


def test_the_first_failure_ends_the_rest_and_is_the_one_that_is_told(tmp_path: Path) -> None:
    begun = threading.Event()

    def work(group: Group, progress: Progress) -> None:
        if group[0].name == "b":
            assert begun.wait(10)
            raise IntegrityError("damaged")
        begun.set()
        while True:
            progress.add(1)
            time.sleep(0.001)

    kind = Files(work)
    with pytest.raises(IntegrityError, match="damaged"):
        run(kind, groups(a=3, b=2, c=1), tmp_path, workers=2)
    assert "c" not in kind.written
    assert kind.released == []
    assert not list(UNFINISHED_LAYERS.at(tmp_path).iterdir())


def test_a_failed_layer_ends_the_download_and_is_the_one_that_is_told(tmp_path: Path) -> None:
    def work(_group: Group, _progress: Progress) -> None:
        raise IntegrityError("damaged")

    def fetch(progress: Progress) -> None:
        while True:
            progress.check()
            time.sleep(0.001)

    with pytest.raises(IntegrityError, match="damaged"):
        run(Files(work, fetch), groups(a=1), tmp_path)


def test_a_failed_download_ends_the_making(tmp_path: Path) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(_group: Group, progress: Progress) -> None:
        begun.set()
        try:
            while True:
                progress.add(1)
                time.sleep(0.001)
        except StoppedError:
            ended.set()
            raise

    def fetch(_progress: Progress) -> None:
        assert begun.wait(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Files(work, fetch), groups(a=1), tmp_path)
    assert ended.is_set()


def test_a_failure_outside_ends_the_making(tmp_path: Path) -> None:
    outside: list[Exception] = []

    def work(_group: Group, progress: Progress) -> None:
        outside.append(IntegrityError("elsewhere"))
        progress.add(1)

    def check() -> None:
        if outside:
            raise outside[0]

    with pytest.raises(IntegrityError, match="elsewhere"):
        run(Files(work), groups(a=1), tmp_path, progress=Progress(Heard(), check))


def test_the_time_limit_ends_work() -> None:
    with pytest.raises(TimeLimitError, match="time limit") as caught:
        Progress(Heard(), deadline=time.monotonic() - 1).add(1)
    assert "--timeout" in (caught.value.hint or "")


def test_bytes_are_told_once_it_may_speak_and_never_exceed_their_total() -> None:
    heard = Heard()
    progress = Progress(heard, quiet=True)
    progress.expect(10)
    progress.add(4)
    assert heard.progress == []
    progress.unmute()
    progress.add(4)
    progress.add(4)
    assert heard.progress == [(8, 10), (12, 12)]


def test_bytes_without_an_expectation_have_no_total() -> None:
    heard = Heard()
    Progress(heard).add(4)
    assert heard.progress == [(4, None)]


def test_no_groups(tmp_path: Path) -> None:
    assert run(Files(), [], tmp_path) == ()


def test_nothing_keeps_the_cache_alive_afterwards(tmp_path: Path) -> None:
    def work(_group: Group, _progress: Progress) -> None:
        raise IntegrityError("damaged")

    gc.disable()
    try:
        for kind in (Files(), Files(work)):
            cache = LayerCache(tmp_path)
            known = weakref.ref(cache)
            with contextlib.suppress(IntegrityError):
                run(kind, groups(a=1), tmp_path, cache=cache, no_cache=True)
            del cache
            assert known() is None
    finally:
        gc.enable()
