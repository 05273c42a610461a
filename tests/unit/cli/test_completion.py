"""Completion is asked for as the shells do it: by variables, with one line of the answer for each value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.checks.catalog import catalog
from envkit.cli.main import COMMANDS, SYNONYMS, run
from envkit.facts.load import load
from envkit.ground.settings import ENGINES
from envkit.ground.state import RECORDS, LastBuilt, write_last
from envkit.plan.definition import shipped
from envkit.resolve import gpus
from envkit.resolve.model import SOURCES

Offered = Callable[[str], list[str]]
IMAGE = "schema: envkit.image/1\ntitle: one\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text(IMAGE)
    (tmp_path / "matrix.yaml").write_text("schema: envkit.matrix/1\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "eval.yml").write_text(IMAGE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for folder in ("layout", "build/image", "not/so/near"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "oci-layout").write_text("{}")


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offered:
    def complete(words: str) -> list[str]:
        """Return what bash offers for the last word of a line; a line that ends in a space has an empty one."""
        variables = {"_ENVKIT_COMPLETE": "bash_complete", "COMP_WORDS": words}
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = run([])
        told = capsys.readouterr()
        assert (code, told.err) == (0, "")
        return [line.removeprefix("plain,") for line in told.out.splitlines() if line]

    return complete


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("envkit ", set(COMMANDS)),
        ("envkit ver", {"verify", "version"}),
        ("envkit --ver", {"--version"}),
        ("envkit build ", {*shipped(), "train.yaml"}),
        ("envkit render cu", {"cu118", "cu126", "cu130"}),
        ("envkit lock sub/", {"sub/eval.yml"}),
        ("envkit build --gpu rtx50", {"RTX5090", "RTX5070Ti"}),
        ("envkit resolve --gpu au", {"auto"}),
        ("envkit resolve --gpu sm_9", {"sm_90"}),
        ("envkit build --os rocky", {"rockylinux9"}),
        ("envkit build --engine ", set(ENGINES)),
        ("envkit lock --engine emb", {"embedded"}),
        ("envkit resolve --source ", set(SOURCES)),
        ("envkit resolve --torch 2.7", {"2.7.1", "2.7.0"}),
        ("envkit resolve --cuda 11", {"11.8"}),
        ("envkit verify --only ", {entry.id for entry in catalog()}),
        ("envkit verify --skip c10,c1", {"c10,C11"}),
        ("envkit verify --tier ", {"quick", "standard", "deep"}),
        ("envkit verify --runner ", {"docker", "bubblewrap"}),
        ("envkit export gi", {"github", "gitlab"}),
        ("envkit matrix list bu", {"builds"}),
        ("envkit completion ", {"bash", "zsh", "fish"}),
        ("envkit help ", {"images", "slow-training", "resolve"}),
        ("envkit help slow", {"slow-training"}),
        ("envkit verify oci:", {"oci:layout", "oci:build/image"}),
        ("envkit verify oci:build/", {"oci:build/image"}),
    ],
)
def test_a_word_is_completed(words: str, some: set[str], offered: Offered) -> None:
    assert some - set(offered(words)) == set()


@pytest.mark.parametrize("words", ["envkit build matr", "envkit build none/", "envkit build ../none/x", "envkit up "])
def test_what_is_no_definition_is_not_offered(words: str, offered: Offered) -> None:
    assert set(offered(words)) - set(COMMANDS) == set()


def test_files_of_a_project_are_offered(offered: Offered) -> None:
    Path("pyproject.toml").touch()
    Path("notes.toml").touch()
    assert offered("envkit build py") == ["pyproject.toml"]
    assert offered("envkit build n") == []


def test_ids_that_a_list_has_are_not_offered_again(offered: Offered) -> None:
    assert "C10,C10" not in offered("envkit verify --only C10,C1")


def test_images_that_were_built_or_verified_here_are_offered(offered: Offered, tmp_path: Path) -> None:
    state = tmp_path / "state" / "envkit"
    tags = ("train:1", "registry.example.com/team/train:1")
    write_last(state, LastBuilt(image="sha256:1", tags=tags, plan="p", engine="docker", built="2026-11-23T00:00:00Z"))
    (state / "images" / "own").mkdir(parents=True)
    (state / "images" / "own" / "oci-layout").write_text("{}")
    records = {"1.json": '{"subject": {"image": "old:1"}}', "2.json": "damaged", "3.json": '{"subject": {"image": 3}}'}
    (state / RECORDS).mkdir()
    for name, text in records.items():
        (state / RECORDS / name).write_text(text)
    own = {*tags, "old:1", f"oci:{state}/images/own"}
    layouts = {"oci:layout", "oci:build/image"}
    for words in ("run", "shell", "verify", "inspect", "watch", "doctor --image", "push --image"):
        assert set(offered(f"envkit {words} ")) >= own | layouts, words
    assert "oci:not/so/near" not in offered("envkit verify ")
    assert offered("envkit verify train:") == ["train:1"]
    assert {*tags, "file,"} <= set(offered("envkit diff "))
    assert {*tags, "file,"} <= set(offered("envkit compare train:1 "))
    assert offered("envkit push ") == offered("envkit attest ") == [tags[1]]


def test_files_are_left_to_the_shell(offered: Offered) -> None:
    assert offered("envkit build --locked en") == ["file,en"]
    assert offered("envkit render --out co") == ["dir,co"]


def test_every_gpu_that_is_offered_is_known_and_needs_no_quotes(offered: Offered) -> None:
    rows = load().gpus
    names = [name for name in offered("envkit resolve --gpu ") if name != "auto"]
    assert {row.capability for row in rows} == {
        found.capability for name in names if (found := gpus.find(name, rows, short=True))
    }
    assert [name for name in names if gpus.find(name, rows, short=True) is None] == []
    assert [name for name in names if " " in name] == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_says_how_to_install_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert f"# envkit completion {shell} > ~/" in out
    assert f"_ENVKIT_COMPLETE={shell}_complete" in out
    assert shell != "zsh" or out.startswith("#compdef envkit\n")


def test_a_line_that_cannot_be_read_completes_nothing_silently(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"_ENVKIT_COMPLETE": "bash_complete", "COMP_WORDS": ""}.items():
        monkeypatch.setenv(name, value)
    assert run([]) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("typed", sorted(SYNONYMS))
def test_a_habit_is_answered_with_a_command_that_exists(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed not in COMMANDS
    assert run([typed]) == 2
    err = capsys.readouterr().err
    assert f"error: unknown command {typed!r}; did you mean `envkit {SYNONYMS[typed]}`?" in err
    hint = err.rpartition("hint: envkit ")[2].split()
    assert run(hint) == 0
    options = [word for word in SYNONYMS[typed].split() if word.startswith("-")]
    assert [word for word in options if word not in capsys.readouterr().out] == []


def test_a_word_that_is_near_to_nothing_points_at_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["xyzzy"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'xyzzy'\n\nhint: envkit --help lists the commands\n"


@pytest.mark.parametrize("words", [["-V"], ["--version"]])
def test_the_version_has_three_names(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    short = capsys.readouterr().out
    assert run(["version"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == short.strip()
