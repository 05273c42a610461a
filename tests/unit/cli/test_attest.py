import json
from pathlib import Path

import pytest

from envkit.attest.keys import read_private, read_public
from envkit.cli import main
from tests.support.attestations import record


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_new_pair_is_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["attest", "--new-key", str(tmp_path / "team.key")], capsys)
    assert code == 0
    assert out.endswith(f"key id {read_public(tmp_path / 'team.key.pub').id}\n")
    code, _, err = run(["attest", "--new-key", str(tmp_path / "team.key")], capsys)
    assert code == 2
    assert "already exists, and a key is never overwritten" in err


def test_a_new_pair_with_a_passphrase_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words").write_text("open sesame\nmore\n")
    argv = ["attest", "--new-key", str(tmp_path / "k"), "--passphrase-file", str(tmp_path / "words"), "--json"]
    code, out, _ = run(argv, capsys)
    tree = json.loads(out)
    assert (code, tree["schema"], tree["kind"]) == (0, "envkit.key/1", "Ed25519")
    assert read_private(tmp_path / "k", b"open sesame").public.id == tree["id"]


@pytest.mark.parametrize("text", ["", "\nsecond\n"])
def test_an_empty_passphrase_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "words").write_text(text)
    code, _, err = run(
        ["attest", "--new-key", str(tmp_path / "k"), "--passphrase-file", str(tmp_path / "words")], capsys
    )
    assert (code, (tmp_path / "k").exists()) == (2, False)
    assert "the first line is empty" in err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "missing IMAGE"),
        (["registry.example.com/a:1"], "missing --record"),
        (["registry.example.com/a:1", "--record", "r"], "missing --key"),
        (["registry.example.com/a:1", "--record", "r", "--key", "k", "--unsigned"], "contradict each other"),
        (["registry.example.com/a:1", "--new-key", "k"], "--new-key only creates a key pair"),
        (["UPPER/a:1", "--record", "r", "--unsigned"], "is not a valid image name"),
        (["train:1", "--record", "r", "--unsigned"], "'train:1' is not in a registry"),
        (["team/train:1", "--record", "r", "--unsigned"], "'team/train:1' is not in a registry"),
        (["oci:out", "--record", "r", "--unsigned"], "'oci:out' is not in a registry"),
        (["oci:out"], "'oci:out' is not in a registry"),
        (["registry.example.com/a:1", "--record", "nothing", "--unsigned"], "nothing: no such file"),
    ],
)
def test_what_is_missing_or_contradicts_itself(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(["attest", *typed], capsys)
    assert code == 2
    assert said in err
    assert "\nhint: " in err


def test_a_record_that_was_changed_is_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = record()
    tree["summary"]["verdict"] = "FAIL"
    (tmp_path / "r.json").write_text(json.dumps(tree))
    argv = ["attest", "registry.example.com/a:1", "--record", str(tmp_path / "r.json"), "--unsigned"]
    code, _, err = run(argv, capsys)
    assert code == 10
    assert "the record was changed after it was written" in err


def test_an_encrypted_key_without_a_person_names_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words").write_text("open sesame")
    Path("r.json").write_text(json.dumps(record()))
    assert run(["attest", "--new-key", "k", "--passphrase-file", "words"], capsys)[0] == 0
    code, _, err = run(["attest", "registry.example.com/a:1", "--record", "r.json", "--key", "k"], capsys)
    assert (code, err) == (2, "error: k is encrypted\n\nhint: --passphrase-file FILE\n")


def test_a_file_of_authorities_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(record()))
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", "/nowhere.pem")
    argv = ["attest", "registry.example.com/a:1", "--record", str(tmp_path / "r.json"), "--unsigned"]
    code, _, err = run(argv, capsys)
    assert code == 2
    assert "ca_bundle: /nowhere.pem: No such file or directory" in err
