"""The comparator tried on real launches, as people type it: silent where nothing changed, loud where work was added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.broken_worlds import Sound
from tests.engines.torch_breaks import CODE
from tests.support.payloads import module

cpu_bf16 = module("amp_bench").cpu_bf16
pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture
def check() -> str:
    """One timed check; the cheaper of two needs a processor with instructions for bfloat16."""
    return "C15" if cpu_bf16(Path("/proc/cpuinfo").read_text()) else "C14"


def test_the_comparator_is_silent_without_a_change_and_loud_with_one(sound: Sound, check: str, tmp_path: Path) -> None:
    argv = ["verify", sound.name, "--runner", "docker", "--allow-cpu", "--self-test", "--only", check]
    code, found, err = envkit(tmp_path, *argv)
    if code != 0:  # launches of the same image may differ by chance, in five of a hundred cases
        code, found, err = envkit(tmp_path, *argv)
    assert (code, found["silent"], found["noticed"]) == (0, True, True), err
    kept = json.loads((tmp_path / "state/envkit/self-test.json").read_text())
    assert kept["machines"][found["hw"]]["trusted"] is True


def test_an_image_with_a_slower_torch_is_no_equal(sound: Sound, check: str, tmp_path: Path) -> None:
    slower = sound.layer_of({}, "ENV BREAK=slow", base=sound.broken(CODE))
    argv = ["compare", sound.name, slower, "--runner", "docker", "--only", check, "--launches", "5"]
    code, found, err = envkit(tmp_path, *argv)
    # On a machine that is never quiet nothing is said; "no slower" would be wrong.
    assert (code, found["verdict"]) in ((7, "REGRESSION"), (5, "INCONCLUSIVE")), err
    assert all(metric["first"] and metric["second"] for metric in found["metrics"]), found["notes"]
    assert "IMPROVEMENT" not in {metric["change"] for metric in found["metrics"]}


def envkit(folder: Path, *argv: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the document of -o, and what was said."""
    env = os.environ | {"XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}
    made = folder / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "envkit", *argv, "-o", str(made)],
        env=env, cwd=folder, check=False, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert made.exists(), done.stderr
    return done.returncode, json.loads(made.read_text()), done.stderr
