"""`envkit export`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from envkit.cli.export import command
from envkit.export.kinds import KINDS
from envkit.ground.errors import ConflictError, EnvkitError, UsageError
from tests.support.exports import MATRIX, PIN, REGISTRY, read_yaml


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings file and no mirror of this machine takes part."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ENVKIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ENVKIT_REQUIREMENT", PIN)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments)
    if result.exception and not isinstance(result.exception, (SystemExit, EnvkitError)):
        raise result.exception
    return result


def failure(*arguments: str) -> EnvkitError:
    error = run(*arguments).exception
    assert isinstance(error, EnvkitError)
    return error


def document(*arguments: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    assert tree["schema"] == "envkit.export/1"
    return tree


def test_one_file_goes_to_stdout() -> None:
    result = run("github", "cpu", "--registry", REGISTRY)
    assert set(read_yaml(result.stdout)["jobs"]) == {"build"}
    assert result.stderr == ""
    assert run("github", "cpu", "--registry", REGISTRY, "--out", "-").stdout == result.stdout


@pytest.mark.parametrize("kind", ["github", "gitlab", "kubernetes"])
def test_without_a_requirement_it_ends_with_the_ways(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVKIT_REQUIREMENT")
    error = failure(kind, "cpu", "--registry", REGISTRY)
    assert (error.exit_code, len(error.details)) == (2, 3)
    assert "--requirement 'https://" in str(error.hint)


def test_the_requirement_of_a_flag_of_a_variable_and_of_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PIN.replace("1.2.3", "4.5.6")
    assert PIN in run("github", "cpu").stdout
    assert other in run("github", "cpu", "--requirement", other).stdout
    (tmp_path / "envkit.toml").write_text(f'requirement = "{other}"\n')
    assert PIN in run("github", "cpu").stdout
    monkeypatch.delenv("ENVKIT_REQUIREMENT")
    assert failure("github", "cpu").exit_code == 2


@pytest.mark.parametrize("text", ["envkit", "envkit==0.2.0", "envkit-gpu==0.2.0", "git+https://git.example/e@main"])
def test_a_requirement_that_can_be_someone_elses_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure("github", "cpu", "--requirement", text).message.startswith(f"--requirement {text!r}")
    monkeypatch.setenv("ENVKIT_REQUIREMENT", text)
    assert failure("github", "cpu").message.startswith(f"ENVKIT_REQUIREMENT {text!r}")


def test_of_several_files_the_main_one_goes_to_stdout_and_a_note_names_the_rest() -> None:
    result = run("bake", "cpu")
    assert 'target "cpu" {' in result.stdout
    note = "note: only docker-bake.hcl is shown; envkit export bake --out DIR/ also writes the 14 other files"
    assert note in result.stderr


def test_without_a_definition_it_is_the_default_image() -> None:
    assert "- cell: default\n" in run("github").stdout


def test_all_are_the_shipped_ones() -> None:
    cells = read_yaml(run("github", "--all").stdout)["jobs"]["build"]["strategy"]["matrix"]["include"]
    assert {row["cell"] for row in cells} >= {"default", "cpu", "cu118", "cu126", "jupyter"}


def test_a_matrix_file_gives_the_cells(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    cells = read_yaml(run("github", "--matrix", "matrix.yaml").stdout)["jobs"]["build"]["strategy"]["matrix"]["include"]
    assert [row["cell"] for row in cells][:1] == ["cpu-python3.11-torch2.6"]


def test_an_impossible_cell_stops_it_unless_it_may_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(
        'schema: envkit.matrix/1\nimage: cu126\naxes:\n  torch: ["1.13", "2.7"]\n  python: ["3.11"]\n'
    )
    error = failure("github", "--matrix", "matrix.yaml")
    assert isinstance(error, ConflictError)
    assert error.message == "matrix.yaml: 1 of its images are impossible"
    assert error.details[0].startswith("cu126-torch1.13-python3.11: ")
    assert error.hint == "exclude them in the matrix, or --skip-impossible"
    result = run("github", "--matrix", "matrix.yaml", "--skip-impossible")
    assert "skipped: cu126-torch1.13-python3.11: " in result.stderr
    assert "cell: cu126-torch2.7-python3.11" in result.stdout


def test_a_folder_takes_every_file_where_it_belongs(tmp_path: Path) -> None:
    result = run("github", "cpu", "--out", "repo/")
    assert (tmp_path / "repo" / ".github" / "workflows" / "envkit.yml").is_file()
    assert result.stdout == ""
    assert result.stderr == "repo/.github/workflows/envkit.yml\n"
    assert run("bake", "cpu", "--out", "here").stderr == "here/docker-bake.hcl and 14 other files in here\n"
    assert (tmp_path / "here" / "contexts" / "cpu" / "Dockerfile").is_file()


def test_a_file_takes_the_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["envkit", "export", "github", "cpu", "--out", "ci.yml"])
    run("github", "cpu", "--out", "ci.yml")
    assert (tmp_path / "ci.yml").read_text().startswith("# Generated by: envkit export github cpu")


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "ci.yml"
    place.write_text("mine\n")
    error = failure("github", "cpu", "--out", "ci.yml")
    assert error.message == "ci.yml exists and differs"
    assert error.hint == "--force replaces it"
    assert place.read_text() == "mine\n"
    run("github", "cpu", "--out", "ci.yml", "--force")
    assert place.read_text() != "mine\n"


def test_the_same_file_may_be_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert run("github", "cpu", "--out", "ci.yml").exit_code == 0
    assert (tmp_path / "ci.yml").is_file()


def test_nothing_is_written_where_one_file_of_several_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "contexts").write_text("a file")
    (tmp_path / "out" / "docker-bake.hcl").write_text("mine\n")
    assert failure("bake", "cpu", "--out", "out/").message == "out/docker-bake.hcl exists and differs"
    assert (tmp_path / "out" / "docker-bake.hcl").read_text() == "mine\n"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "else.yml").write_text("mine\n")
    (tmp_path / "ci.yml").symlink_to("else.yml")
    assert failure("github", "cpu", "--out", "ci.yml", "--force").message == "ci.yml is a symbolic link"
    (tmp_path / "repo").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "repo" / ".github").symlink_to("../elsewhere")
    assert failure("github", "cpu", "--out", "repo/").message == "repo/.github is a symbolic link"
    assert (tmp_path / "else.yml").read_text() == "mine\n"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_json_has_every_file() -> None:
    tree = document("bake", "cpu")
    assert tree["kind"] == "bake"
    assert {"docker-bake.hcl", "contexts/cpu/Dockerfile"} <= set(tree["files"])


def test_the_list_has_every_kind_with_its_options() -> None:
    text = run("--list").stdout
    for name, kind in KINDS.items():
        assert f"\n{name} " in f"\n{text}"
        assert kind.file in text
    assert "  --set branch=        branch whose images are published [main]\n" in text
    kinds = document("--list")["kinds"]
    assert set(kinds) == set(KINDS)
    assert kinds["github"]["options"]["branch"] == {"default": "main", "about": "branch whose images are published"}


def test_an_option_of_the_kind_is_set() -> None:
    assert "branches: [dev]" in run("github", "cpu", "--set", "branch=dev").stdout
    assert failure("github", "--set", "branch").message == "--set 'branch' is not NAME=VALUE"


def test_where_it_goes_is_not_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["export", "github", "cpu", "--out", "a b/", "--force", "--set", "branch=dev"]
    monkeypatch.setattr("sys.argv", ["envkit", *arguments])
    assert run("github", "cpu").stdout.startswith("# Generated by: envkit export github cpu --set branch=dev\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing KIND"),
        (("githb",), "unknown export kind 'githb'"),
        (("github", "cpu", "--all"), "--all already selects the images"),
        (("github", "cpu", "--matrix", "m.yaml"), "--matrix already selects the images"),
        (("github", "--all", "--matrix", "m.yaml"), "--matrix and --all contradict each other"),
        (("github", "--matrix", "m.yaml"), "m.yaml: no such file or directory"),
        (("github", "nothing"), "unknown image definition 'nothing'"),
        (("github", "cpu", "cpu"), "two images have the name 'cpu'"),
        (("github", "--registry", "registry.example.com/x:1"), "--registry 'registry.example.com/x:1' names one image"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    error = failure(*arguments)
    assert isinstance(error, UsageError)
    assert error.message.startswith(message)


def test_the_authorities_are_read_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN\n")
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", "ca.pem")
    assert document("bake", "cpu")["files"]["contexts/cpu/ca-bundle.pem"] == "-----BEGIN\n"
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", "none.pem")
    assert failure("bake", "cpu").message == "ca_bundle: none.pem: No such file or directory"
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", "none")
    assert "contexts/cpu/ca-bundle.pem" not in document("bake", "cpu")["files"]
