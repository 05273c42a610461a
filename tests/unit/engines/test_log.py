import os
import re
from pathlib import Path

import pytest

from envkit.engines.log import BuildLog, new_log
from envkit.ground.progress import Silent
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
    assert any("lines omitted" in line for line in lines)
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


def _old(folder: Path, count: int) -> list[str]:
    names = [f"20250101T0000{number:02}-a-1.log" for number in range(count)]
    for name in names:
        (folder / name).touch()
    return names


def test_the_oldest_logs_go(tmp_path: Path) -> None:
    names = _old(tmp_path, 40)
    path = new_log(tmp_path, "train" * 40, keep=20)
    assert sorted(one.name for one in tmp_path.iterdir()) == names[21:]
    assert path.parent == tmp_path
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}-{'train' * 16}-{os.getpid()}\.log", path.name)
    assert new_log(tmp_path / "absent", "x", keep=20).parent == tmp_path / "absent"


def test_files_that_are_no_logs_of_builds_stay(tmp_path: Path) -> None:
    """A folder of other programs' logs was emptied of all but the last nineteen by name."""
    names = _old(tmp_path, 3)
    foreign = [f"u{number}.log" for number in range(30)]
    foreign += ["20250101-a-1.log", "20250101T000000.log", "20250101T000000-a.log", "20250101T000000-a-1.log.gz"]
    for name in foreign:
        (tmp_path / name).touch()
    (tmp_path / "target").touch()
    (tmp_path / "20240101T000000-link-1.log").symlink_to(tmp_path / "target")
    (tmp_path / "20240101T000000-folder-1.log").mkdir()
    new_log(tmp_path, "x", keep=1)
    left = {one.name for one in tmp_path.iterdir()}
    assert left == {*foreign, "target", "20240101T000000-link-1.log", "20240101T000000-folder-1.log"}
    assert not left & set(names)


def test_the_logs_of_another_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = _old(tmp_path, 3)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    new_log(tmp_path, "x", keep=1)
    assert sorted(one.name for one in tmp_path.iterdir()) == names


def test_a_folder_that_another_user_linked_to_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    names = _old(tmp_path / "logs", 3)
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    real = Path.lstat
    forged = os.stat_result([0o120777, 0, 0, 0, 4321, 4321, 0, 0, 0, 0])
    monkeypatch.setattr(Path, "lstat", lambda path: forged if path.name == "link" else real(path))
    new_log(tmp_path / "link", "x", keep=1)
    assert sorted(one.name for one in (tmp_path / "logs").iterdir()) == names
