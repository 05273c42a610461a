"""Flags of `envkit build` that exclude each other."""

from pathlib import Path

import pytest

from envkit.build.model import BuildOptions
from envkit.cli import choices
from envkit.cli.main import run
from envkit.ground import settings
from envkit.ground.errors import LockError, UsageError
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (["--locked", "a", "--no-lock"], "--locked and --no-lock contradict each other", "give one of them"),
        (["--offline", "--no-cache"], "--offline and --no-cache contradict each other", "give one of them"),
        (["--replace-tag"], "--replace-tag is for images that go to a registry", "--output registry:HOST/NAME:TAG"),
        (
            ["--mount-from", "team/base", "--output", "oci:out"],
            "--mount-from is for images that go to a registry",
            "--output registry:HOST/NAME:TAG",
        ),
        (
            ["--mount-from", "other.example.com/base", "--output", "registry:registry.example.com/a:1"],
            "--mount-from 'other.example.com/base' is not a repository of registry.example.com",
            "--mount-from registry.example.com/team/base, without a tag",
        ),
        (["--output", "out"], "--output 'out' is not a place for an image", "--output oci:DIR"),
    ],
)
def test_faults_are_told_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, typed: list[str],
    message: str, hint: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run(["build", "--progress", "quiet", *typed]) == 2
    told = capsys.readouterr()
    assert f"error: {message}\n" in told.err
    assert f"hint: {hint}" in told.err


@pytest.mark.parametrize(
    ("named", "options", "engine"),
    [
        ("auto", BuildOptions(), "auto"),
        ("docker", BuildOptions(), "docker"),
        ("auto", BuildOptions(output="oci:out"), "embedded"),
        ("auto", BuildOptions(offline=True), "embedded"),
        ("embedded", BuildOptions(offline=True), "embedded"),
    ],
)
def test_a_flag_may_choose_the_engine(tmp_path: Path, *, named: str, options: BuildOptions, engine: str) -> None:
    assert choices.engine_name(settings.load({"engine": named}, {}, tmp_path), options) == engine


@pytest.mark.parametrize(
    ("options", "flag"), [(BuildOptions(output="oci:out"), "--output"), (BuildOptions(offline=True), "--offline")]
)
def test_other_engines_lack_it(tmp_path: Path, options: BuildOptions, flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag} is for the embedded engine, not for podman") as caught:
        choices.engine_name(settings.load({"engine": "podman"}, {}, tmp_path), options)
    assert caught.value.hint == "--engine embedded"


def test_nothing_is_solved_offline() -> None:
    choices.require_lock(None, BuildOptions(), "envkit lock")
    choices.require_lock(lock_for(shipped_plan("cu126")), BuildOptions(offline=True), "envkit lock")
    with pytest.raises(LockError) as caught:
        choices.require_lock(None, BuildOptions(offline=True), "envkit lock train.yaml")
    assert caught.value.message == "--offline installs what a lock names, and there is none that fits"
    assert caught.value.hint == "envkit lock train.yaml"
