from __future__ import annotations

import gzip
import io
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from envkit.cli.main import run
from tests.support.file_images import entry, packed, write_layout
from tests.support.schema import faults

LOG = (
    "\x1b[31mRuntimeError: No CUDA GPUs are available\x1b[0m\n"
    "::set-output name=x::y\n"
    "Error: Process completed with exit code 1.\n"
)


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads((resources.files("envkit.doctor") / "doctor.schema.json").read_text(encoding="utf-8"))
    assert not faults(tree, schema, closed=True)
    return tree


def test_a_log_is_diagnosed_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text(LOG)
    assert run(["doctor", "--log", str(tmp_path / "train.log")]) == 0
    out = capsys.readouterr().out
    seen = "         seen    line 1: RuntimeError: No CUDA GPUs are available\n"
    assert f"error  No GPU is available to the program\n{seen}" in out
    assert "then    A step ended with an exit code (line 3)" in out
    assert "source  " not in out
    assert out.endswith("No GPU is available to the program (line 1) (1 error)\n")
    assert run(["doctor", "--log", str(tmp_path / "train.log"), "-v"]) == 0
    assert "source  containers/podman#10420" in capsys.readouterr().out


def test_stdin_is_a_log_and_json_follows_the_schema(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(LOG.encode()))))
    assert run(["doctor", "--log", "-", "--json"]) == 0
    tree = document(capsys)
    assert (tree["subject"], tree["name"], tree["counts"]) == ("log", "stdin", {"error": 1, "warn": 0, "info": 0})
    assert tree["sections"][0]["findings"][0]["evidence"] == [
        {"line": 1, "text": "RuntimeError: No CUDA GPUs are available"}
    ]


def test_faults_that_are_not_known_end_with_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("zoo.LionError: ::error::out\n")
    assert run(["doctor", "--log", str(tmp_path / "log")]) == 5
    assert "line 1  zoo.LionError:" in capsys.readouterr().out


def test_an_image_is_diagnosed_from_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = [packed([(entry(f"{folder}/libcudnn.so.9"), b"x")]) for folder in ("usr/lib", "opt/lib")]
    write_layout(tmp_path, layers, {"User": "1:1"})
    assert run(["doctor", "--image", f"oci:{tmp_path}", "--json"]) == 6
    tree = document(capsys)
    assert [one["id"] for one in tree["sections"][0]["findings"]] == ["two-cudnn"]


def test_a_record_is_diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"schema": "envkit.verify/1", "checks": []}')
    assert run(["doctor", "--record", str(path), "--json"]) == 0
    tree = document(capsys)
    assert [one["id"] for one in tree["sections"][1]["findings"]] == ["not-measured"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--log", "x", "--image", "y"], "--log and --image contradict each other"),
        (["--runner", "docker"], "--runner needs --image"),
        (["--log", "/nothing/here"], "/nothing/here: no such file or directory"),
        (["--log", "/"], "/: is a directory"),
        (["--record", "/nothing/here"], "/nothing/here: no such file or directory"),
        (["--image", "oci:/nothing/here"], "there is no image"),
    ],
)
def test_what_cannot_be_looked_at_is_said(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", *arguments]) in (2, 8)
    assert words in capsys.readouterr().err


def test_a_compressed_log_that_is_cut_off_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"line\n" * 1000)[:-8])
    assert run(["doctor", "--log", str(tmp_path / "log.gz")]) == 2
    assert "ended before" in capsys.readouterr().err
