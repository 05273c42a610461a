"""Options: which exclude each other, and how a command gets its own."""

from pathlib import Path

import pytest

from envkit.cli.main import run


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (["--locked", "a", "--no-lock"], "--locked and --no-lock contradict each other", "give one of them"),
        (["--offline", "--no-cache"], "--offline and --no-cache contradict each other", "give one of them"),
        (["--replace-tag"], "--replace-tag requires an output in a registry", "--output registry:HOST/NAME:TAG"),
        (
            ["--mount-from", "team/base", "--output", "oci:out"],
            "--mount-from requires an output in a registry",
            "--output registry:HOST/NAME:TAG",
        ),
        (
            ["--mount-from", "other.example.com/base", "--output", "registry:registry.example.com/a:1"],
            "--mount-from 'other.example.com/base' is not a repository of registry.example.com",
            "use a name without a tag: --mount-from registry.example.com/team/base",
        ),
        (["--output", "out"], "--output 'out': unknown kind of output", "--output oci:DIR"),
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
