"""What `envkit run` and `envkit shell` refuse before anything is started, and how words after `--` are kept."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envkit.attest import inspection
from envkit.attest.keys import new_pair
from envkit.cli import inspect, main
from envkit.cli.run import command, shell
from envkit.ground.errors import EnvironmentProblem, EnvkitError, IntegrityError, NotVerifiedError
from envkit.image.name import Reference, image_name
from envkit.pipeline import running
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
    assert (found["image"], found["argv"]) == (image and image_name(image), argv)


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


class TestSigned:
    """With `--key`, an image in a registry is known if the key signed an attestation of it."""

    ID = "sha256:" + "a" * 64
    REFERENCE = "registry.example/team/train@sha256:" + "c" * 64

    @pytest.fixture
    def given(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What `ready` is given; it stops there."""
        found: dict[str, Any] = {}

        def ready(request: Any, *_: Any, **more: Any) -> None:
            found.update(more, image=request.image)
            raise EnvironmentProblem("no runner here", hint="install one")

        monkeypatch.setattr(running, "ready", ready)
        monkeypatch.setattr(inspect, "in_registry", self.look)
        new_pair(tmp_path / "key", None)
        monkeypatch.chdir(tmp_path)
        return found

    def look(self, image: Reference, keys: Any, *_: Any) -> Any:
        """An image with one document, which only the holder of the first key signed."""
        self.keys = [key.id for key in keys]
        return SimpleNamespace(name=str(image), id=self.ID)

    @pytest.mark.parametrize("failure", [None, NotVerifiedError("none is signed", hint="x"), IntegrityError("x")])
    def test_only_a_signed_image_goes_on(
        self, failure: EnvkitError | None, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []

        def inspected(looked: Any, trusted: Any) -> Any:
            asked.append((looked.name, trusted))
            return SimpleNamespace(failure=lambda *, require_verified: None if require_verified else failure)

        monkeypatch.setattr(inspection, "inspection", inspected)
        code = main.run(["run", self.REFERENCE, "--key", "key.pub", "--", "true"])
        assert asked == [(self.REFERENCE, self.keys)]
        assert len(self.keys) == 1
        if failure is None:
            assert (code, given["attested"], given["image"].typed) == (9, self.ID, self.REFERENCE)
        else:
            assert (code, given) == (failure.exit_code, {})

    def test_without_a_key_nothing_is_attested(self, given: dict[str, Any]) -> None:
        assert main.run(["run", self.REFERENCE, "--", "true"]) == 9
        assert given["attested"] is None

    def test_a_file_that_is_no_key_is_refused(self, given: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "not.pub").write_text("x")
        assert main.run(["run", self.REFERENCE, "--key", "not.pub", "--", "true"]) == 2
        assert given == {}
