"""Files of the JSON cache are shortcuts: a damaged one is as good as none."""

from pathlib import Path

from envkit.ground import json_cache

SCHEMA = "envkit.example/1"
SAYS = {"opt/env/ü": "1 abc", "opt/env/y": None}
SHA256 = "0" * 64


def test_a_file_is_read_back(tmp_path: Path) -> None:
    json_cache.write(tmp_path / "notes", SHA256, SCHEMA, SAYS)
    assert json_cache.read(tmp_path / "notes", SHA256, SCHEMA) == SAYS
    assert json_cache.read(tmp_path / "notes", "1" * 64, SCHEMA) is None
    assert [one.name for one in (tmp_path / "notes").iterdir()] == [f"{SHA256}.json"]


def test_no_damaged_file_is_believed(tmp_path: Path) -> None:
    json_cache.write(tmp_path, SHA256, SCHEMA, SAYS)
    note = tmp_path / f"{SHA256}.json"
    whole = note.read_bytes()
    for at in range(len(whole)):
        note.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert json_cache.read(tmp_path, SHA256, SCHEMA) is None
        note.write_bytes(whole[:at])
        assert json_cache.read(tmp_path, SHA256, SCHEMA) is None
    note.rename(tmp_path / f"{'1' * 64}.json")
    assert json_cache.read(tmp_path, "1" * 64, SCHEMA) is None


def test_a_file_behind_a_link_is_not_read(tmp_path: Path) -> None:
    json_cache.write(tmp_path / "elsewhere", SHA256, SCHEMA, SAYS)
    (tmp_path / f"{SHA256}.json").symlink_to(tmp_path / "elsewhere" / f"{SHA256}.json")
    assert json_cache.read(tmp_path, SHA256, SCHEMA) is None


def test_a_file_of_another_schema_is_not_read(tmp_path: Path) -> None:
    json_cache.write(tmp_path, SHA256, SCHEMA, SAYS)
    assert json_cache.read(tmp_path, SHA256, "envkit.example/2") is None
