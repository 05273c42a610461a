from __future__ import annotations

import json
from pathlib import Path

import pytest

from envkit.cli.main import run
from envkit.lock.store import to_text
from tests.unit.lock import samples

GOOD = "schema: envkit.image/1\ntitle: one\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("image.yaml").write_text(GOOD)
    Path("envkit.lock").write_text(to_text(samples.lock()))
    Path("matrix.yaml").write_text("# comment\nschema: envkit.matrix/1\naxes: {python: ['3.11']}\n")
    Path("envkit.toml").write_text('engine = "podman"\n')
    Path("pyproject.toml").write_text('[tool.envkit]\nrunner = "docker"\n')
    Path("other.yaml").write_text("schema: another/1\n")


FILES = ("image.yaml", "envkit.lock", "matrix.yaml", "envkit.toml", "pyproject.toml", "other.yaml")


def test_every_kind_of_file_is_read_by_its_own_reader(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", *FILES, "--json"]) == 0
    found = [(one["file"], one["kind"], one["state"]) for one in json.loads(capsys.readouterr().out)["files"]]
    kinds = ("image", "lock", "matrix", "settings", "settings")
    assert found == [(file, kind, "valid") for file, kind in zip(FILES, kinds, strict=False)] + [
        ("other.yaml", None, "skipped")
    ]


def test_errors_of_all_files_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("image.yaml").write_text(f"{GOOD}flavor: huge\npip: [torch]\n")
    Path("envkit.toml").write_text('engine = "rocket"\n')
    assert run(["validate", *FILES]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "invalid  image.yaml      image definition"
    assert out.splitlines()[-1] == "skipped  other.yaml"
    for part in ("image.yaml: flavor: 'huge'", "image.yaml: pip[0]: 'torch'", "envkit.toml: engine 'rocket'", "hint: "):
        assert part in err


def test_a_lock_that_was_modified_counts_most(capsys: pytest.CaptureFixture[str]) -> None:
    Path("image.yaml").write_text("schema: envkit.image/1\n")
    tree = samples.lock().to_json()
    Path("envkit.lock").write_text(json.dumps(tree | {"seal": "sha256:" + "0" * 64}))
    assert run(["validate", "image.yaml", "envkit.lock"]) == 10
    err = capsys.readouterr().err
    assert err.startswith("error: envkit.lock was modified after it was written")
    assert "  image.yaml: title: missing" in err


@pytest.mark.parametrize(("file", "text"), [("none.yaml", "no such file"), (".", "is a directory")])
def test_what_cannot_be_read_is_named(file: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", file]) == 2
    assert f"error: {file}: {text}" in capsys.readouterr().err
