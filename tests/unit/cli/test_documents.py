"""`--json` is a flag of every command; a file is named by -o."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import envkit as envkit_package
from envkit.cli.main import COMMANDS, envkit, run
from envkit.cli.options import DocumentOptions
from envkit.cli.output import write_document
from envkit.ground.errors import EnvironmentProblem, UsageError
from tests.support.records import cpu_record


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def commands() -> list[click.Command]:
    context = click.Context(envkit)
    found = [command for verb in COMMANDS if (command := envkit.get_command(context, verb)) is not None]
    inner = [one for group in found if isinstance(group, click.Group) for one in group.commands.values()]
    return [*found, *inner]


def test_json_is_a_flag_everywhere() -> None:
    options = {command.name: option for command in commands() for option in command.params if "--json" in option.opts}
    assert len(options) >= len(COMMANDS)
    for name, option in options.items():
        assert isinstance(option, click.Option)
        assert option.is_flag, name


def test_the_name_after_json_is_the_image(capsys: pytest.CaptureFixture[str]) -> None:
    """Before, the image's name was taken for the file, and another image was verified."""
    assert run(["verify", "--runner", "host", "--json", "/absent/python"]) == 8
    assert "/absent/python" in capsys.readouterr().err


def test_records_are_compared_with_the_flag_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--json", "a.json", "b.json"]) == 2
    assert "a.json" in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_comparison_takes_two(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *("img",) * count]) == 2
    assert capsys.readouterr().err == (
        f"error: compare takes two images or two records, not {count}\n\nhint: envkit compare A B\n"
    )


def test_one_place_for_a_document(tmp_path: Path) -> None:
    def target(out_file: str | None, *, as_json: bool = False) -> str | None:
        return DocumentOptions(as_json=as_json, out_file=out_file).target()

    assert target(None) is None
    assert (target(None, as_json=True), target("x.json")) == ("-", "x.json")
    with pytest.raises(UsageError, match="--json prints to stdout and -o x writes a file"):
        target("x", as_json=True)
    with pytest.raises(UsageError, match="is a folder"):
        target(str(tmp_path))


def test_a_file_that_cannot_be_written_says_what_stands_all_the_same() -> None:
    Path("file").write_text("x")
    with pytest.raises(EnvironmentProblem, match=r"-o file/r\.json: .*; the images are built") as caught:
        write_document({}, "file/r.json", done="the images are built")
    assert caught.value.hint == "name a file in a writable folder"


@pytest.mark.parametrize("verb", ["judge", "compare"])
def test_judging_and_comparing_say_so_too(
    verb: str, record_file: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = record_file("a.json"), record_file("b.json")
    Path("file").write_text("x")
    argv = ["compare", str(first), str(second)] if verb == "compare" else ["verify", "--judge", str(first)]
    assert run([*argv, "-o", "file/r.json"]) == 9
    told = capsys.readouterr()
    assert "error: -o file/r.json: " in told.err
    assert "hint: name a file in a writable folder" in told.err
    assert told.out, "what was found is printed all the same"


@pytest.fixture
def record_file() -> Callable[[str], Path]:
    def make(name: str) -> Path:
        path = Path(name)
        path.write_text(json.dumps(cpu_record()))
        return path

    return make


def test_a_schema_id_is_declared_once() -> None:
    """Two documents had envkit.matrix/1, and two kinds of notes envkit.layer/1."""
    found = [
        (name, path.name)
        for path in Path(envkit_package.__file__).parent.rglob("*.py")
        for name in re.findall(
            r'^_?[A-Z_]*SCHEMA = "(envkit\.[a-z-]+)/\d+"', path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    twice = {name for name, _ in found if sum(name == other for other, _ in found) > 1}
    # The payload travels without envkit, and help texts name the fleet's document without importing it.
    twice -= {"envkit.payload", "envkit.fleet"}
    assert not twice, sorted(place for place in found if place[0] in twice)
