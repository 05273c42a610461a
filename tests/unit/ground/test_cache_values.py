"""JSON values in the cache are shortcuts: a damaged file is as good as none."""

from pathlib import Path

from envkit.ground.cache import LISTINGS

SCHEMA = "envkit.example/1"
SAYS = {"opt/env/ü": "1 abc", "opt/env/y": None}
SHA256 = "0" * 64


def test_a_file_is_read_back(tmp_path: Path) -> None:
    LISTINGS.write(tmp_path, SHA256, SCHEMA, SAYS)
    assert LISTINGS.read(tmp_path, SHA256, SCHEMA) == SAYS
    assert LISTINGS.read(tmp_path, "1" * 64, SCHEMA) is None
    assert [one.name for one in LISTINGS.at(tmp_path).iterdir()] == [f"{SHA256}.json"]


def test_no_damaged_file_is_believed(tmp_path: Path) -> None:
    LISTINGS.write(tmp_path, SHA256, SCHEMA, SAYS)
    note = LISTINGS.at(tmp_path, f"{SHA256}.json")
    whole = note.read_bytes()
    for at in range(len(whole)):
        note.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert LISTINGS.read(tmp_path, SHA256, SCHEMA) is None
        note.write_bytes(whole[:at])
        assert LISTINGS.read(tmp_path, SHA256, SCHEMA) is None
    note.rename(note.with_name(f"{'1' * 64}.json"))
    assert LISTINGS.read(tmp_path, "1" * 64, SCHEMA) is None


def test_a_file_behind_a_link_is_not_read(tmp_path: Path) -> None:
    LISTINGS.write(tmp_path / "elsewhere", SHA256, SCHEMA, SAYS)
    LISTINGS.at(tmp_path).mkdir()
    LISTINGS.at(tmp_path, f"{SHA256}.json").symlink_to(LISTINGS.at(tmp_path / "elsewhere", f"{SHA256}.json"))
    assert LISTINGS.read(tmp_path, SHA256, SCHEMA) is None


def test_a_file_of_another_schema_is_not_read(tmp_path: Path) -> None:
    LISTINGS.write(tmp_path, SHA256, SCHEMA, SAYS)
    assert LISTINGS.read(tmp_path, SHA256, "envkit.example/2") is None


def test_a_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    LISTINGS.at(tmp_path).mkdir()
    LISTINGS.at(tmp_path, f"{SHA256}.json").write_bytes(
        b'{"check":"82d40d04942dff637911047d26a501611918ae73c6025a379ca85cf366c28383","name":"' + SHA256.encode() +
        b'","says":{"opt/env/y":null,"opt/env/\\u00fc":"1 abc"},"schema":"envkit.example/1"}'
    )  # fmt: skip
    assert LISTINGS.read(tmp_path, SHA256, SCHEMA) == SAYS
