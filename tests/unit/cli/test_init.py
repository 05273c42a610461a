"""`envkit init`."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envkit.cli.init import command
from envkit.cli.resolve import command as resolve
from envkit.facts.load import load
from envkit.fleet.expand import expand
from envkit.fleet.matrix import parse
from envkit.ground.errors import EnvkitError, UsageError
from envkit.pipeline.resolving import asked, definition_of
from tests.golden.cases import FOLDER
from tests.golden.projects import NAMES, PROJECTS

SCHEMA = "envkit.matrix/1"
LINES = "torch==2.3.1\n--extra-index-url https://wheels.example.com/whl/cu121\neinops\n-e .\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _ignore(_note: str) -> None:
    """What is not taken over plays no part."""


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments)
    if result.exception and not isinstance(result.exception, (SystemExit, EnvkitError)):
        raise result.exception
    return result


def failure(*arguments: str) -> EnvkitError:
    error = run(*arguments).exception
    assert isinstance(error, UsageError)
    return error


@pytest.mark.parametrize("name", NAMES)
def test_a_project_becomes_the_kept_definition(name: str, tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / name, tmp_path, dirs_exist_ok=True)
    result = run()
    assert (tmp_path / "image.yaml").read_bytes() == (FOLDER / "init" / f"{name}.yaml").read_bytes()
    assert result.stdout.endswith(
        "wrote image.yaml, and .envkit/image-1.schema.json for editors\nnext: envkit build image.yaml\n"
    )


@pytest.mark.parametrize(
    "arguments", [("docker/requirements.txt",), ("docker",), ("--from", "docker/requirements.txt")]
)
def test_a_file_or_a_folder_can_be_named(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/requirements.txt").write_text(LINES)
    assert run(*arguments).stdout.startswith("read docker/requirements.txt\n")
    assert (tmp_path / "docker/image.yaml").is_file()


def test_a_file_is_named_once() -> None:
    error = failure("a.txt", "--from", "b.txt")
    assert (error.message, error.hint) == ("FILE and --from contradict each other", "give one of them")


@pytest.mark.parametrize("name", NAMES)
def test_resolve_takes_the_definition(name: str, tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / name, tmp_path, dirs_exist_ok=True)
    run()
    result = CliRunner().invoke(resolve, ["image.yaml", "--json"])
    assert json.loads(result.stdout)["schema"] == "envkit.resolution/1"


def test_what_is_taken_and_left_is_listed(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    shown = run().stdout
    assert "read requirements.txt\n" in shown
    assert "request.torch  ==2.3.1" in shown
    assert "requirements.txt:4: -e .: an editable install is not locked" in shown


def test_the_definition_names_each_origin_and_loss(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    run()
    text = (tmp_path / "image.yaml").read_text()
    assert '  torch: "==2.3.1"  # requirements.txt:1\n  cuda: "12.1"  # requirements.txt:2\n' in text
    assert "# Left out:\n#   requirements.txt:4: -e .: an editable install" in text


def test_a_requirements_file_without_losses_is_referred_to(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES.replace("-e .\n", ""))
    run()
    text = (tmp_path / "image.yaml").read_text()
    assert 'requirements:\n  - "requirements.txt"\n' in text
    assert "pip:" not in text


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    (tmp_path / "image.yaml").write_text("mine")
    error = failure()
    assert error.message == "image.yaml exists and is never overwritten"
    assert (error.hint or "").startswith("-o NAME")
    assert (tmp_path / "image.yaml").read_text() == "mine"


def test_dry_run_prints_the_definition_alone_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    result = run("--dry-run")
    assert "\n# Written by `envkit init` from requirements.txt." in f"\n{result.stdout}"
    assert result.stdout.startswith("# yaml-language-server: $schema=")
    assert "an editable install" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requirements.txt"]


def test_the_file_that_names_torch_is_taken_and_the_others_are_told(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["einops"]\n')
    (tmp_path / "requirements.txt").write_text("torch\n")
    shown = run().stdout
    assert shown.startswith(
        "read requirements.txt\nignored pyproject.toml; to read it instead: envkit init pyproject.toml\n"
    )


def test_from_another_folder_the_definition_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "requirements-gpu.txt").write_text("torch==2.3.1\n")
    assert "next: envkit build sub/gpu.yaml" in run("--from", "sub/requirements-gpu.txt", "-o", "gpu.yaml").stdout
    assert (tmp_path / "sub" / "gpu.yaml").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "has none of cog.yaml, pixi.toml"),
        (("nosuch.txt",), "nosuch.txt: the file does not exist"),
        (("--from", "setup.py"), "setup.py: the file does not exist"),
    ],
)
def test_nothing_to_begin_with_is_one_error_and_a_hint(arguments: tuple[str, ...], message: str) -> None:
    error = failure(*arguments)
    assert message in error.message
    assert error.hint


def test_a_request_without_an_answer_is_written_and_explained(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.3.1+cu130\n")
    result = run()
    assert result.exit_code == 0
    assert "warning: " in result.stderr
    assert result.stdout.endswith("next: envkit resolve image.yaml\n")


def test_the_document(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    tree = json.loads(run("--json").stdout)
    assert tree["schema"] == "envkit.init/1"
    assert (tree["from"], tree["file"], tree["next"]) == ("requirements.txt", "image.yaml", "envkit build image.yaml")
    assert {"key": "request.cuda", "value": "12.1", "where": "requirements.txt:2"} in tree["taken"]
    assert [row["where"] for row in tree["left"] if not row["harmless"]] == ["requirements.txt:4"]


def test_logins_in_addresses_are_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch\ngit+https://me:s3cret@code.example.com/a.git\n")
    result = run()
    assert "s3cret" not in result.output + (tmp_path / "image.yaml").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_projects_file_takes_the_place_of_the_definition(name: str, tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / name, tmp_path, dirs_exist_ok=True)
    file = json.loads(run("--json").stdout)["from"]
    wanted, *found = (
        json.loads(CliRunner().invoke(resolve, [name, "--json"]).stdout)
        for name in ("image.yaml", file, f"./{file}", ".")
    )
    for one in found:
        assert {key for key in wanted if one[key] != wanted[key]} <= {"reasons"}  # they name the file


def test_what_a_projects_file_loses_is_noted(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    result = CliRunner().invoke(resolve, ["requirements.txt"])
    assert "note: requirements.txt:4: -e . is left out: " in result.stderr


def test_flags_override_a_projects_file(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch\n")
    result = CliRunner().invoke(resolve, ["requirements.txt", "--cuda", "11.8", "--json"])
    assert json.loads(result.stdout)["cuda"].startswith("11.8")


@pytest.mark.parametrize(
    ("pyproject", "folder", "name"),
    [
        (None, "My Trainer_2", "my-trainer-2"),
        ('[project]\nname = "Vision.Train"\n', "src", "vision-train"),
        ('[tool.poetry]\nname = "poems"\n', "src", "poems"),
        ("[project\n", "src", "src"),
        ("[project]\nname = 3\n", "src", "src"),
        (None, "日本", "image"),
    ],
)
def test_a_projects_image_has_the_name_of_the_project(
    pyproject: str | None, folder: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "requirements.txt").write_text("torch\n")
    if pyproject is not None:
        (tmp_path / folder / "pyproject.toml").write_text(pyproject)
    words = [f"{folder}/requirements.txt", f"{folder}/"]
    assert [asked(word, {"cpu": True}, load(), _ignore).plan().name for word in words] == [name, name]
    monkeypatch.chdir(folder)
    assert asked("requirements.txt", {"cpu": True}, load(), _ignore).plan().name == name


def test_two_projects_are_two_images_of_one_matrix(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requirements.txt").write_text("torch\n")
    text = f"schema: {SCHEMA}\nimages: [./one, ./two/requirements.txt]\n"
    found = expand(
        parse(text, where="m.yaml"), {"cpu": True}, load(), lambda name: definition_of(name, load(), _ignore)
    )
    assert [cell.name for cell in found.cells] == ["one", "two"]


def test_a_pipe_is_not_read_as_a_file() -> None:
    os.mkfifo("requirements.txt")
    error = failure("requirements.txt")
    assert error.message == "requirements.txt: is a pipe, not a regular file"
    assert error.hint == "ls -l requirements.txt"


def test_a_projects_file_that_is_not_there() -> None:
    error = CliRunner().invoke(resolve, ["requirements-gpu.txt"]).exception
    assert isinstance(error, UsageError)
    assert error.message == "requirements-gpu.txt: the file does not exist"


@pytest.mark.requirement("R11")
@pytest.mark.parametrize("link", [".envkit/image-1.schema.json", ".envkit"])
@pytest.mark.parametrize("target", ["victim", "new", "victim/.."])
def test_a_schema_is_not_written_through_a_link(link: str, target: str, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "checkout"
    for made in (victim, folder, folder / ".envkit"):
        made.mkdir()
    (victim / "image-1.schema.json").write_text("ORIGINAL")
    (folder / "requirements.txt").write_text(LINES)
    if link == ".envkit":
        (folder / link).rmdir()
        (folder / link).symlink_to(tmp_path / target)
    else:
        (folder / link).symlink_to(tmp_path / target / "image-1.schema.json")
    error = failure(str(folder))
    assert error.message == f"{folder / link} is a symbolic link"
    assert error.hint
    assert (victim / "image-1.schema.json").read_text() == "ORIGINAL"
    assert sorted(item.name for item in victim.iterdir()) == ["image-1.schema.json"]
    assert not (tmp_path / "new").exists()
    assert not (folder / "image.yaml").exists()  # nothing is written in part


def test_a_schema_does_not_replace_a_file_of_someone_else(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    (tmp_path / ".envkit").mkdir()
    (tmp_path / ".envkit" / "image-1.schema.json").write_text("{}")
    assert "was not written by envkit" in failure().message
    assert (tmp_path / ".envkit" / "image-1.schema.json").read_text() == "{}"


def test_an_older_schema_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    (tmp_path / ".envkit").mkdir()
    schema = tmp_path / ".envkit" / "image-1.schema.json"
    schema.write_text('{"properties": {"schema": {"const": "envkit.image/1"}}}')
    assert run().exit_code == 0
    assert "An image definition" in schema.read_text()
