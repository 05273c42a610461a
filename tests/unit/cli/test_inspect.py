import json
from pathlib import Path

import pytest

from envkit.cli import main
from tests.support.attestations import LABELS
from tests.support.file_images import entry, packed, write_layout


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def layout(tmp_path: Path) -> str:
    return f"oci:{write_layout(tmp_path / 'image', [packed([(entry('a'), b'1')])], {'Labels': LABELS})}"


def test_a_folder_tells_what_its_labels_say(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", layout], capsys)
    assert code == 0
    assert (
        f"{layout}\n  torch 2.7.1, CUDA 12.6, cuDNN 9.5.1, Python 3.12 on docker.io/library/debian:bookworm-slim\n"
        in out
    )
    assert "not verified here: a folder has no attached records" in out
    assert "  on sm_120  (" in out


def test_a_folder_as_json(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", layout, "--json"], capsys)
    tree = json.loads(out)
    assert (code, tree["schema"], tree["verdict"]) == (0, "envkit.inspect/1", "not proved")
    assert (tree["attestations"], tree["packages"], tree["layers"]) == (None, None, 1)


def test_a_key_asks_for_signatures_that_a_folder_has_not(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["attest", "--new-key", str(tmp_path / "k")], capsys)[0] == 0
    code, _, err = run(["inspect", layout, "--key", str(tmp_path / "k.pub")], capsys)
    assert code == 5
    assert "no document is attached" in err


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (["oci:/nowhere"], 8, "/nowhere"),
        (["train"], 2, "'train' is neither HOST/NAME:TAG in a registry nor oci:DIR"),
        (["registry.example.com/a:1", "--require", "proved"], 2, "--require proved needs --key or --identity"),
        (["registry.example.com/a:1", "--key", "/nowhere"], 2, "/nowhere: No such file"),
    ],
)
def test_what_cannot_be_looked_at(typed: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, _, err = run(["inspect", *typed], capsys)
    assert found == code
    assert said in err
    assert "\nhint: " in err


def test_json_is_written_whatever_the_image_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = LABELS | {"org.opencontainers.image.title": "\ud800\x9b\u202e"}
    folder = write_layout(tmp_path / "image", [packed([(entry("a"), b"1")])], {"Labels": labels})
    code, out, _ = run(["inspect", f"oci:{folder}", "--json"], capsys)
    assert (code, json.loads(out)["title"], out.isascii()) == (0, "\ud800\x9b\u202e", True)


def test_a_file_of_authorities_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", "/nowhere.pem")
    code, _, err = run(["inspect", "registry.example.com/a:1"], capsys)
    assert code == 2
    assert "ca_bundle: /nowhere.pem: No such file or directory" in err
