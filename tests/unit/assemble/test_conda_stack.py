from pathlib import Path

import pytest

from envkit.assemble import conda_notes
from envkit.assemble.conda_listing import Listing
from envkit.assemble.conda_listing import Path as Row
from envkit.assemble.conda_stack import contained

FOLDER = Path("/var/cache/staging/0")
LISTING = Listing(paths=(Row(path="lib/a", kind="file", content="abc", size=3),), entry_points=())
SHA256 = "0" * 64


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("libz.so.1", "libz.so.1"),
        ("../share/x", "../share/x"),
        ("../", "../"),
        ("../bin/../lib/y", "../bin/../lib/y"),
        ("/opt/env/lib/x", "/opt/env/lib/x"),
        ("/var/cache/staging/0/lib/x", "/opt/env/lib/x"),
        ("/var/cache/staging/0", "/opt/env"),
        ("/var/cache/staging/01/x", None),
        ("../../x", None),
        ("..", ".."),
        ("../..", None),
        ("a/../../../x", None),
        ("/etc/passwd", None),
        ("/opt/environment", None),
        ("/opt/env/../x", None),
        ("", None),
        ("a\nb", None),
    ],
)
def test_a_link_stays_in_the_environment(target: str, found: str | None) -> None:
    assert contained(target, "lib/link", folder=FOLDER, prefix="/opt/env") == found


def test_a_note_is_read_back(tmp_path: Path) -> None:
    conda_notes.write(tmp_path / "notes", SHA256, LISTING)
    assert conda_notes.read(tmp_path / "notes", SHA256) == LISTING
    assert conda_notes.read(tmp_path / "notes", "1" * 64) is None
    assert [one.name for one in (tmp_path / "notes").iterdir()] == [f"{SHA256}.json"]


def test_no_damage_to_a_note_is_believed(tmp_path: Path) -> None:
    conda_notes.write(tmp_path, SHA256, LISTING)
    note = tmp_path / f"{SHA256}.json"
    whole = note.read_bytes()
    for at in range(len(whole)):
        note.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert conda_notes.read(tmp_path, SHA256) is None
        note.write_bytes(whole[:at])
        assert conda_notes.read(tmp_path, SHA256) is None
    note.rename(tmp_path / f"{'1' * 64}.json")
    assert conda_notes.read(tmp_path, "1" * 64) is None


def test_a_note_behind_a_link_is_not_read(tmp_path: Path) -> None:
    conda_notes.write(tmp_path / "elsewhere", SHA256, LISTING)
    (tmp_path / f"{SHA256}.json").symlink_to(tmp_path / "elsewhere" / f"{SHA256}.json")
    assert conda_notes.read(tmp_path, SHA256) is None
