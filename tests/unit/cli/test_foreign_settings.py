"""Commands in a checkout of someone else's: what its settings file can and cannot do, as the user sees it."""

import os
from pathlib import Path

import pytest

from envkit.cli import main
from envkit.ground.errors import EnvironmentProblem
from envkit.image.name import ImageName
from envkit.run import runners

SECRET = "root:*:20228:0:99999:7:::\nmachine index.example login me password hunter2xyz\ntoken: hunter2xyz\n"


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in list(os.environ):
        if name.startswith("ENVKIT_"):
            monkeypatch.delenv(name)
    return folder


@pytest.mark.parametrize("place", ["../secret", "{}/secret", "link", "/proc/self/environ", "/dev/zero", "fifo"])
@pytest.mark.parametrize("command", [["resolve", "--cpu"], ["render", "cpu", "--only", "dockerfile"]])
def test_facts_of_a_checkout_are_not_read(
    command: list[str], place: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout.parent / "secret").write_text(SECRET)
    (checkout / "link").symlink_to(checkout.parent / "secret")
    os.mkfifo(checkout / "fifo")
    (checkout / "envkit.toml").write_text(f'facts = "{place.format(checkout.parent)}"\n')
    assert main.run(command) == 0
    captured = capsys.readouterr()
    assert "hunter2xyz" not in captured.out + captured.err
    assert "root:" not in captured.out + captured.err
    told = " ".join(captured.err.split())
    assert "envkit.toml: facts is ignored, because envkit reads or runs it as you, on this machine" in told


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runners that commands ask for; none works here."""
    names: list[str] = []

    def choose_for(image: ImageName, name: str, *_: object, **__: object) -> None:
        names.append(name)
        raise EnvironmentProblem(f"{image.typed}: no engine here", hint="install one")

    monkeypatch.setattr(runners, "choose_for", choose_for)
    return names


@pytest.mark.parametrize("runner", ["host", "proot", "docker", "podman", "bubblewrap"])
@pytest.mark.parametrize("command", [["verify", "ghcr.io/team/train:1"], ["verify", "oci:x"], ["run", "ghcr.io/a/b:1"]])
def test_a_checkout_chooses_no_runner(
    command: list[str], runner: str, checkout: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`host` would run the file that has the image's name."""
    for file, table in (("pyproject.toml", "[tool.envkit]\n"), ("envkit.toml", "")):
        (checkout / file).write_text(f'{table}runner = "{runner}"\n')
        assert main.run(command) == 9
        assert asked.pop() == "auto"
        assert f"{file}: runner is ignored" in " ".join(capsys.readouterr().err.split())


def test_one_note_says_where_a_checkout_lets_builds_download_from(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "envkit.toml").write_text('miniconda_image = "evil.example/x:1"\nregistry = "r.example"\n')
    assert main.run(["render", "cpu", "--only", "dockerfile"]) == 0
    captured = capsys.readouterr()
    assert "FROM evil.example/x:1" in captured.out
    told = " ".join(captured.err.split())
    note = "sets where images come from: registry = r.example, miniconda_image = evil.example/x:1"
    assert told.count(note) == 1


def test_a_command_that_downloads_nothing_needs_no_such_note(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "envkit.toml").write_text('registry = "r.example"\n')
    assert main.run(["resolve", "--cpu"]) == 0
    assert capsys.readouterr().err == ""
