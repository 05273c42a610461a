from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

c22: Any = import_module("envkit.checks.c22_storage.observe")


MOUNTS = """overlay / overlay rw 0 0
tmpfs /tmp tmpfs rw,nosuid 0 0
/dev/sdb1 /tmp/my\\040data ext4 rw 0 0
/dev/sda1 /opt xfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/env/lib", "xfs"),
        ("/tmp/x", "tmpfs"),
        ("/tmp/my data/x", "ext4"),
        ("/optional", "overlay"),
        ("/opt", "xfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_deepest_mount(path: str, kind: str) -> None:
    assert c22.filesystem(path, MOUNTS) == kind
    assert c22.filesystem(path, "") is None


def test_the_largest_file_is_read_if_it_is_large_enough(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(bytes(10))
    (tmp_path / "large").write_bytes(bytes(20))
    (tmp_path / "folder").mkdir()
    assert c22.largest_file(tmp_path, least=15) == [tmp_path / "large"]
    assert c22.largest_file(tmp_path, least=30) == []
    assert c22.largest_file(tmp_path / "absent") == []
