from __future__ import annotations

import json
from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.ground.state import LastBuilt, read_last, write_last

LAST = LastBuilt(
    image="sha256:" + "a" * 64,
    tags=("train:1",),
    plan="sha256:" + "b" * 64,
    engine="docker",
    built="2026-01-01T00:00:00Z",
)


def test_what_was_noted_is_read_back(tmp_path: Path) -> None:
    path = write_last(tmp_path / "state", LAST)
    assert read_last(tmp_path / "state") == LAST
    assert json.loads(path.read_bytes())["schema"] == "envkit.last/1"


def test_nothing_built_yet_names_the_way_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_last(tmp_path)
    assert caught.value.message.startswith("no image was built here yet")
    assert "envkit build" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "envkit.last/2"}', '{"schema": "envkit.last/1"}', "\xff"])
def test_a_damaged_note_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "last.json").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"last\.json"):
        read_last(tmp_path)
