"""Every failure of the embedded engine, through the command line: its exit code, and cache and output as they were."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.lock.store import read_lock, write_lock
from tests.engines.conformance.commands import Place, check_cache, error, files, place_at, whole
from tests.engines.conformance.sources import Sources
from tests.engines.faults import Fault, Proxy

pytestmark = pytest.mark.engine
_TORCH = r"GET .*/torch-[^/]*\.whl"


@pytest.fixture(scope="module")
def place(wheels_files: Path, tmp_path_factory: pytest.TempPathFactory, served: Sources, proxy: Proxy) -> Place:
    """With one image built."""
    folder = tmp_path_factory.mktemp("place")
    return place_at(wheels_files, folder, folder / "cache", served, proxy)


@pytest.fixture
def unharmed(place: Place) -> Iterator[Place]:
    """Afterwards the output is as it was, the cache lost nothing and holds no halves, and the next build works."""
    output, cache = files(place.output), files(place.cache)
    yield place
    assert files(place.output) == output
    assert [path.name for path in place.output.parent.iterdir()] == [place.output.name]
    check_cache(place.cache, cache)
    before = whole(place.output)
    done = place.envkit("--no-cache")
    assert done.returncode == 0, done.stderr
    assert whole(place.output) == before


@pytest.mark.parametrize(
    ("fault", "more", "code", "said"),
    [
        (Fault(_TORCH, cut=500), (), 9, "torch 2.13.0+cpu: the connection to"),
        (Fault(_TORCH, flip=200), (), 10, "has the SHA-256"),
        (Fault(_TORCH, status=404), (), 8, "answers 404"),
        pytest.param(Fault(_TORCH, silent_s=60), ("--timeout", "4"), 124, "time limit", marks=pytest.mark.long),
    ],
    ids=["cut", "flipped", "refused", "silent"],
)
def test_a_download_that_fails(  # noqa: PLR0917 - as the table has it
    unharmed: Place, proxy: Proxy, fault: Fault, more: tuple[str, ...], code: int, said: str
) -> None:
    proxy.faults.append(replace(fault))
    done = unharmed.envkit("--no-cache", *more)
    proxy.faults.clear()
    assert done.returncode == code, done.stderr
    assert said in error(done)


def test_another_hash_than_the_locks(unharmed: Place) -> None:
    lock = read_lock(unharmed.folder / "envkit.lock")
    rows = tuple(replace(one, sha256="0" * 64) if one.name == "greeting" else one for one in lock.wheels)
    write_lock(unharmed.folder / "wrong.lock", replace(lock, wheels=rows))
    done = unharmed.envkit("--locked", "wrong.lock")
    assert done.returncode == 10, done.stderr
    assert "greeting 1.0" in error(done)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_server_is_silent(unharmed: Place, proxy: Proxy, number: signal.Signals, code: int) -> None:
    proxy.faults.append(Fault(_TORCH, silent_s=60))
    before = proxy.count(_TORCH)
    with subprocess.Popen(
        unharmed.words("--no-cache"), cwd=unharmed.folder, env=unharmed.variables, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while proxy.count(_TORCH) == before:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=50)  # the server is silent for longer
    proxy.faults.clear()
    assert process.returncode == code, said
    assert "error: ended by SIG" in said
    assert "hint: run the same command again" in said


@pytest.mark.requirement("R30")
@pytest.mark.long
def test_kill_at_any_moment(place: Place) -> None:
    """Each run would replace the image by another one; what lies there is always a whole one."""
    for number in range(6):
        cache = files(place.cache / "layers" / "blobs")
        more = ("--label", f"com.example.run={number}", *(("--no-cache",) if number % 2 else ()))
        with subprocess.Popen(
            place.words(*more), cwd=place.folder, env=place.variables,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            time.sleep(random.uniform(0.3, 2.5))
            process.kill()
        whole(place.output)
        assert cache.items() <= files(place.cache / "layers" / "blobs").items()
    done = place.envkit()
    assert done.returncode == 0, done.stderr
    digest = whole(place.output)
    assert [path.name for path in place.output.parent.iterdir()] == [place.output.name]
    done = place.envkit("--no-cache")
    assert done.returncode == 0, done.stderr
    assert whole(place.output) == digest


@pytest.mark.requirement("R35")
def test_a_login_of_the_indexs_url_is_kept_nowhere(place: Place, proxy: Proxy, word: str, tmp_path: Path) -> None:
    """pip's own setting may hold a login; the lock is solved with it."""
    own = {**place.variables, "PIP_INDEX_URL": f"http://reader:{word}@{proxy.address}/simple"}
    del own["ENVKIT_PYTHON_INDEX"]
    folder = tmp_path
    (folder / "train.yaml").write_text(
        "schema: envkit.image/1\ntitle: A title\ntemplate: wheels\ncompanions: []\npip: [greeting]\n"
        'request: {torch: "2.13.0", cpu: true, source: pytorch}\n'
    )
    base = json.loads((place.folder / "envkit.lock").read_text())["base"]
    words = ["train.yaml", "--base", f"{base['reference']}@{base['digest']}"]
    for verb in (["lock", *words, "-o", "own.lock"], [
        "build", *words, "--locked", "own.lock", "--engine", "embedded", "--output", f"oci:{folder / 'own'}",
        "--no-verify", "--progress", "plain", "-v", "-o", "built.json",
    ]):  # fmt: skip
        argv = [sys.executable, "-m", "envkit", *verb]
        done = subprocess.run(argv, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert word not in done.stdout + done.stderr
    assert proxy.count("/simple/greeting/")
    files = [path for kept in (folder, place.folder) for path in kept.rglob("*") if path.is_file()]
    holding = [path for path in files if word.encode() in path.read_bytes()]
    assert not holding
