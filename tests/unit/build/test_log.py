from pathlib import Path

import pytest

from envkit.build.log import BuildLog
from envkit.progress import Silent
from tests.support.heard import Heard


def test_lines_go_to_the_file_and_the_reporter_made_safe(tmp_path: Path) -> None:
    heard, path = Heard(), tmp_path / "logs" / "x.log"
    with BuildLog(path, heard) as log:
        log.write("\x1b[31mred\x1b[0m")
        log.write("two")
    assert path.read_text() == "red\ntwo\n"
    assert heard.lines == ["red", "two"]


def test_the_last_thirty_lines_and_the_path_are_details(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "x.log", Silent()) as log:
        for number in range(100):
            log.write(str(number))
            log.write("  ")
    assert log.details() == (*map(str, range(70, 100)), f"full log: {tmp_path / 'x.log'}")


def test_without_a_file_there_is_no_path() -> None:
    with BuildLog(None, Silent()) as log:
        log.write("a")
    assert log.details() == ("a",)


def test_the_file_is_bounded_and_keeps_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    with BuildLog(path, Silent(), limit_bytes=1000) as log:
        for number in range(5000):
            log.write(f"line {number}")
    lines = path.read_text().splitlines()
    assert lines[0] == "line 0"
    assert lines[-1] == "line 4999"
    assert any("lines left out" in line for line in lines)
    assert path.stat().st_size < 20_000
    kept = [int(line.split()[1]) for line in lines if line.startswith("line ")]
    assert kept == sorted(set(kept))


def test_a_log_that_cannot_be_written_is_a_remark(tmp_path: Path) -> None:
    heard = Heard()
    (tmp_path / "file").write_text("")
    with BuildLog(tmp_path / "file" / "x.log", heard) as log:
        log.write("a")
    assert len(heard.notes) == 1
    assert heard.notes[0].startswith(f"no build log: {tmp_path / 'file' / 'x.log'}: ")
    assert log.details() == ("a",)


def test_a_full_disk_ends_the_log_and_not_the_build() -> None:
    heard = Heard()
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with BuildLog(Path("/dev/full"), heard) as log:
        for _ in range(5000):
            log.write("x" * 100)
    assert heard.notes == ["no build log: /dev/full: No space left on device"]
