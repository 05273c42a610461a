"""A good image on a machine with four busy processes per core: it takes longer, and it never fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import _machine_image
from envkit.image.name import image_name
from envkit.run.runners import make
from envkit.verify.driver import Options, verify_image
from tests.support.heard import Heard
from tests.world.places import UnavailableError

pytestmark = [pytest.mark.engine, pytest.mark.long]
pytest.importorskip("torch", reason="the image is made of this machine's torch: pip install envkit[bench]")
PROCESSES_PER_CORE = 4


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image of the Python that runs the tests. Runs through proot are another user's, who has to reach it."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="envkit-tests-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(name)
        folder.chmod(0o711)
        patch.setenv("XDG_CACHE_HOME", name)
        yield _machine_image.make(folder / "image", sys.executable).reference


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep every core busy."""
    count = PROCESSES_PER_CORE * len(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("name", ["bubblewrap", "proot"])
def test_a_good_image_does_not_fail_on_a_busy_machine(name: str, image: str) -> None:
    runner = make(name)
    reason = runner.probe()
    if reason is not None:
        raise UnavailableError(reason)
    with busy():
        record = verify_image(image_name(image), None, runner, Heard(), Options())
    bad = [item for item in record.tree["checks"] if item["verdict"] in ("FAIL", "ERROR")]
    assert bad == [], bad
    # 5: some check did not get enough of the CPUs to tell.
    assert record.exit_code in {0, 5}
