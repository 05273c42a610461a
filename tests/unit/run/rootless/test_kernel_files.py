"""Which arguments protect the kernel's files of a machine from a container."""

from pathlib import Path

from envkit.run.rootless.kernel_files import proc_words, sys_words


def test_everything_but_the_entries_of_processes_is_read_only_or_masked(tmp_path: Path) -> None:
    for folder in ("1", "4711", "sys", "acpi", "sysvipc"):
        (tmp_path / folder).mkdir()
    for file in ("kcore", "meminfo", "locks", "mtrr"):
        (tmp_path / file).touch()
    (tmp_path / "self").symlink_to("1")
    (tmp_path / "net").symlink_to("self/net")
    assert proc_words(tmp_path) == [
        "--tmpfs", "/proc/acpi", "--remount-ro", "/proc/acpi",
        "--ro-bind", "/dev/null", "/proc/kcore",
        "--ro-bind", f"{tmp_path}/meminfo", "/proc/meminfo",
        "--ro-bind", f"{tmp_path}/mtrr", "/proc/mtrr",
        "--ro-bind", f"{tmp_path}/sys", "/proc/sys",
    ]  # fmt: skip


def test_where_the_machine_shows_processes_alone_all_of_proc_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "self").symlink_to("1")
    assert proc_words(tmp_path) == ["--remount-ro", "/proc"]


def test_only_folders_of_sys_that_exist_are_masked(tmp_path: Path) -> None:
    assert sys_words(tmp_path) == []
    (tmp_path / "firmware").mkdir()
    assert sys_words(tmp_path) == ["--tmpfs", "/sys/firmware", "--remount-ro", "/sys/firmware"]
