"""The host as a runner: no cage, yet the same ends, limits and files."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError, TimeLimitError
from envkit.image.name import image_name
from envkit.run.host import HostRunner
from envkit.run.model import DATA, RunLimits, RunResult
from tests.support.clocks import before
from tests.support.heard import Heard


def run(*argv: str, files: dict[str, bytes] | None = None, gpus: str | None = None, **limits: Any) -> RunResult:
    given: dict[str, Any] = {"timeout_s": 30.0, **limits}
    return HostRunner().run(image_name(""), argv, files or {}, gpus=gpus, limits=RunLimits(**given), reporter=Heard())


def test_python_means_the_running_one() -> None:
    result = run("python", "-c", "import sys; print(sys.executable)")
    assert result.stdout.decode().strip() == sys.executable
    assert result.image_id == f"host:{sys.executable}"


@pytest.mark.parametrize("code", [0, 3, 137])
def test_exit_codes_come_through(code: int) -> None:
    assert run("python", "-c", f"raise SystemExit({code})").exit_code == code


def test_files_are_moved_below_an_empty_folder_that_goes_away() -> None:
    script = "import os, sys; print(open(sys.argv[1]).read(), os.listdir('.'), os.getcwd())"
    result = run("python", "-c", script, "/run/envkit/a", files={"/run/envkit/a": b"A"})
    text, listed, folder = result.stdout.decode().split()
    assert (text, listed) == ("A", "[]")
    assert not os.path.exists(folder)  # noqa: PTH110


def test_the_users_folder_is_named_by_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    result = run("python", "-c", "import sys; print(open(sys.argv[1] + '/a').read())", DATA, data=tmp_path)
    assert result.stdout == b"A\n"


def test_the_time_limit_ends_it() -> None:
    with before(60), pytest.raises(TimeLimitError):
        run("python", "-c", "import time; time.sleep(60)", timeout_s=1.0)


def test_memory_is_limited() -> None:
    result = run("python", "-c", "x = bytearray(400 << 20)", memory_mb=200)
    assert result.exit_code == 1
    assert b"MemoryError" in result.stderr


def test_output_is_limited() -> None:
    result = run("python", "-c", "while True: print('y' * 100)", output_bytes=10_000)
    assert result.output_cut
    assert len(result.stdout) == 10_000


def test_gpus_are_chosen_by_their_numbers() -> None:
    script = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    assert run("python", "-c", script, gpus="1,0").stdout == b"1,0\n"


def test_another_python_is_named_by_its_path() -> None:
    assert HostRunner().inspect(image_name(sys.executable))["id"] == f"host:{sys.executable}"
    with pytest.raises(EngineError, match="is not a Python on this machine"):
        HostRunner().inspect(image_name("/absent/python"))


def test_a_relative_path_is_one_of_the_folder_it_was_typed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert HostRunner().inspect(image_name("bin/python"))["id"] == f"host:{tmp_path}/bin/python"
