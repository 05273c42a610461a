from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.ground.state import BUILT, LastBuilt, read_last, was_built, write_built, write_last

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


class TestBuiltImages:
    def test_an_image_that_was_built_is_known_by_its_id(self, tmp_path: Path) -> None:
        write_built(tmp_path, (LAST.image,))
        assert was_built(tmp_path, LAST.image)
        assert not was_built(tmp_path, LAST.plan)

    @pytest.mark.parametrize(
        "text",
        ["oci:build/train", "registry:index.example/team/train:1", "train:1", "", ".", "../last.json", "sha256:../../x",
         "sha256:" + "A" * 64, "sha256:" + "a" * 63, "host:/usr/bin/python3"],
    )  # fmt: skip
    def test_a_name_is_no_id(self, text: str, tmp_path: Path) -> None:
        write_built(tmp_path, (text,))
        write_last(tmp_path, LAST)
        assert not was_built(tmp_path, text)
        assert not (tmp_path / BUILT).exists()

    def test_the_oldest_are_forgotten(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("envkit.ground.state._KEPT", 2)
        ids = [f"sha256:{digit * 64}" for digit in "123"]
        for age, ident in enumerate(ids):
            write_built(tmp_path, (ident,))
            os.utime(tmp_path / BUILT / ident[7:], (1000 + age, 1000 + age))
        write_built(tmp_path, (ids[2],))
        assert [was_built(tmp_path, ident) for ident in ids] == [False, True, True]
