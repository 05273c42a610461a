"""What `envkit run` and `envkit shell` refuse before anything is started, and how words after `--` are kept."""

from pathlib import Path

import pytest

from envkit.cli import main
from envkit.cli.run import command, shell
from tests.support.file_images import entry, packed, write_layout


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("typed", "image", "argv"),
    [
        ([], None, ()),
        (["train:1"], "train:1", ()),
        (["--", "python", "-c", "--print"], None, ("python", "-c", "--print")),
        (["train:1", "-q", "--", "sh", "-c", "a -- b", "--"], "train:1", ("sh", "-c", "a -- b", "--")),
    ],
)
def test_words_after_the_dashes_are_the_command(typed: list[str], image: str | None, argv: tuple[str, ...]) -> None:
    found = command.make_context("run", list(typed)).params
    assert (found["image"], found["argv"]) == (image, argv)


def test_print_alone_is_the_runners_own_line() -> None:
    assert command.make_context("run", ["train:1", "--print"]).params["printed"] == "here"
    assert shell.make_context("shell", ["--print", "podman"]).params["printed"] == "podman"


@pytest.mark.parametrize(
    ("typed", "code", "said", "hint"),
    [
        (["run"], 2, "no image was built here yet", "envkit build, or name the image: envkit run IMAGE"),
        (["run", "--"], 2, "no command follows --", "envkit run --help"),
        (["run", "python", "a b.py"], 2, "got unexpected extra argument (a b.py)", "envkit run -- python 'a b.py'"),
        (
            ["run", "--print", "train:1"],
            2,
            "--print 'train:1' is not one of",
            "put the image first: envkit run train:1 --print",
        ),
        (["run", "train:1", "--shm-size", "8"], 2, "--shm-size: '8' has no unit", "write 8GB"),
        (["run", "train:1", "--shm-size", "1KB"], 2, "--shm-size 1KB is below 1 MiB", "--shm-size 8GB"),
        (["shell", "train:1", "--", "ls"], 2, "envkit shell takes no command", "envkit run -- ls"),
        (["run", "", "--", "ls"], 2, "the image name is empty", ""),
        (["run", "--key", "a.pub"], 2, "--key: only images in a registry have signatures", "envkit run --key PUB"),
        (["run", "--key", "a.pub", "oci:x"], 2, "--key: only images in a registry", "envkit run --key PUB"),
        (["shell", "--key", "a.pub", "train:1"], 2, "--key: only images in a registry", "envkit run --key PUB"),
    ],
)
def test_what_is_refused(typed: list[str], code: int, said: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(typed) == code
    out, err = capsys.readouterr()
    assert (out, err.count("error: ")) == ("", 1)
    assert said in err
    assert f"hint: {hint}" in err


def test_a_runner_that_starts_no_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVKIT_RUNNER", "host")
    image = write_layout(tmp_path / "image", [packed([(entry("a"), b"1")])])
    assert main.run(["run", f"oci:{image}", "--", "ls"]) == 2
    assert "runner 'host' does not support envkit run" in capsys.readouterr().err
