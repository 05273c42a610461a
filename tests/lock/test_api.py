"""`envkit.api`: the answers are those of the command line, and its notebook runs from the top."""

import dataclasses
import json
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from envkit import api
from tests.lock.commands import envkit, serve_images
from tests.lock.served import Site

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "choose-and-lock.ipynb"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ENVKIT_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--cuda", "11.8"], {"cuda": "11.8"}),
        (["--gpu", "A100", "--gpu", "sm_89", "--driver", "550.54.15"], {"gpu": ["A100", "8.9"], "driver": "550.54.15"}),
        (["--gpu", "A100", "--gpu", "A100"], {"gpu": "A100"}),
        (["--cpu", "--template", "wheels"], {"cpu": True, "template": "wheels"}),
        (["--supported-only", "--python", "3.12"], {"supported_only": True, "python": "3.12"}),
        (["--gpu", "H100", "--driver", "535.54.03", "--allow-forward-compat"],
         {"gpu": "H100", "driver": "535.54.03", "allow_forward_compat": True}),
    ],
)  # fmt: skip
def test_resolve_answers_as_the_command_does(words: list[str], given: api.Wanted, tmp_path: Path) -> None:
    printed = json.loads(envkit(tmp_path, "resolve", *words, "--json").stdout)
    del printed["facts"], printed["download"], printed["support"]
    assert api.resolve(**given).to_json() == printed


def test_a_definition_is_a_name_or_a_file_and_arguments_override_it(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("schema: envkit.image/1\ntitle: t\nrequest: {cuda: '12.6'}\n")
    (tmp_path / "cu118").write_text("schema: envkit.image/1\ntitle: t\nrequest: {cuda: '12.4'}\n")
    assert api.resolve("train.yaml").cuda == "12.6"
    assert api.resolve(Path("train.yaml"), cuda="12.4").cuda == "12.4"
    assert api.resolve("cu118").cuda == "11.8"
    assert api.resolve(Path("cu118")).cuda == "12.4"
    shown = envkit(tmp_path, "render", "train.yaml", "--only", "plan").stdout
    assert api.plan("train.yaml").canonical().decode() == shown


def test_a_file_of_a_project_takes_the_place_of_a_definition(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.7.1+cu118\n--trusted-host a.example.com\nnumpy\n")
    with pytest.warns(UserWarning, match=r"requirements\.txt:2: --trusted-host a\.example\.com is left out"):
        plan = api.plan("requirements.txt")
    assert (plan.resolution.torch, plan.resolution.cuda) == ("2.7.1", "11.8")
    shown = envkit(tmp_path, "render", "requirements.txt", "--only", "plan").stdout
    assert plan.canonical().decode() == shown


def test_rows_of_the_facts_setting_count(tmp_path: Path) -> None:
    rows = "schema: 1\nsources: {own: {kind: internal, what: rows}}\nsystems: []\n"
    (tmp_path / "own.yaml").write_text(rows)
    with pytest.raises(api.UsageError, match=r"own\.yaml: systems"):
        api.plan(settings={"facts": tmp_path / "own.yaml"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cuda": 12.6}, "--cuda: 12.6 is not a string"),
        ({"gpu": ["A100", 86]}, "--gpu: ['A100', 86] is not a string"),
        ({"cuda": "12.x"}, "--cuda: '12.x' is not a version"),
        ({"template": "docker"}, "--template: 'docker' "),
        ({"definition": "nosuch"}, "unknown image definition 'nosuch'"),
        ({"settings": {"engin": "podman"}}, "unknown setting 'engin'"),
        ({"settings": {"engine": "dokcer"}}, "'dokcer' is not one of"),
    ],
)
def test_what_is_wrong_is_told_as_by_the_command_line(given: dict[str, object], message: str) -> None:
    with pytest.raises(api.UsageError) as caught:
        api.resolve(**given)  # type: ignore[arg-type]
    assert message in caught.value.message


def test_an_argument_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TypeError, match="'cude'"):
        api.plan(cude="12.6")  # type: ignore[call-arg]


def test_a_conflict_carries_changes_that_resolve() -> None:
    with pytest.raises(api.ConflictError) as caught:
        api.resolve(torch="2.12", gpu="V100", cuda="12.8")
    assert isinstance(caught.value, api.Unresolvable)
    assert caught.value.exit_code == 3
    assert caught.value.conflict.suggestions


def test_a_build_is_refused_before_any_engine_is_asked(tmp_path: Path) -> None:
    plan = api.plan("cpu")
    with pytest.raises(api.LockError, match=r"there is no lock at absent\.lock"):
        api.build(plan, locked="absent.lock", settings={"engine": "docker"})
    with pytest.raises(api.UsageError, match="needs the embedded engine, not podman"):
        api.build(plan, options=api.BuildOptions(output="oci:out"), settings={"engine": "podman"})
    with pytest.raises(api.UsageError, match="compression 'xz'"):
        api.build(plan, options=api.BuildOptions(compression="xz"))
    with pytest.raises(api.UsageError, match="--label 'torch "):
        api.build(plan, options=api.BuildOptions(labels=(("torch ", "1"),)))
    assert not list(tmp_path.glob("out"))


def test_a_verification_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(api.UsageError, match="contradict each other"):
        api.verify("x", options=api.VerifyOptions(allow_cpu=True, require_gpu=True))
    with pytest.raises(api.UsageError, match="unknown check C00X"):
        api.verify("x", options=api.VerifyOptions(only=("C00X",)))
    with pytest.raises(api.UsageError, match="unknown tier 'fast'"):
        api.verify("x", tier="fast")
    with pytest.raises(api.UsageError, match="built"):
        api.verify()


@pytest.mark.long
def test_this_machine_is_verified_and_the_record_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    record = api.verify(settings={"runner": "host"}, options=api.VerifyOptions(only=("C08",)))
    assert record.tree["run"]["selected"] == ["C08"]
    assert {check["id"][:3] for check in record.tree["checks"] if check["status"] == "ran"} == {"C08"}
    (kept,) = (tmp_path / "state").rglob("records/*.json")
    assert json.loads(kept.read_bytes()) == json.loads(record.to_bytes())
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.tree = {}  # type: ignore[misc]


def test_a_lock_is_the_one_of_the_command(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in serve_images(site).items():
        monkeypatch.setenv(name, value)
    lock = api.lock(api.plan("cpu"), base="none")
    assert api.write_lock(lock, "own.lock")
    assert api.read_lock("own.lock") == lock
    done = envkit(tmp_path, "lock", "cpu", "--base", "none", "-o", "typed.lock", env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "typed.lock").read_bytes() == (tmp_path / "own.lock").read_bytes()


@pytest.mark.long
def test_the_notebook_runs_from_the_top(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in serve_images(site).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.reads(NOTEBOOK.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", ()))
    assert "torch    " in printed
    assert "clash: --torch 2.12 --cuda 12.8" in printed
    assert api.plan("cpu").digest in printed
    assert "conda packages, 0 wheels" in printed
    assert api.read_lock(tmp_path / "envkit.lock").plan == api.plan("cpu").digest
