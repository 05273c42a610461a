"""What `envkit build --scheduler` refuses before it connects to anything."""

import sys

import pytest

from envkit.cli.main import run
from envkit.fleet import dask_pool

HERE = "tcp://127.0.0.1:8786"
PLACE = ("--output", "registry:registry.example.com/team/train")


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (
            ["default", "--scheduler", HERE],
            "with --scheduler, images must go to a registry, because the workers share no disk",
            "--output registry:HOST/NAME",
        ),
        (
            ["default", "--scheduler", HERE, "--output", "oci:out"],
            "with --scheduler, images must go to a registry, because the workers share no disk",
            "--output registry:HOST/NAME",
        ),
        (
            ["default", "--scheduler", "somewhere", *PLACE],
            "--scheduler 'somewhere' is not tcp://HOST:PORT or tls://HOST:PORT",
            "--scheduler tcp://somewhere:8786",
        ),
        (
            ["default", "--scheduler", HERE, *PLACE, "--engine", "docker", "--compression", "zstd"],
            "--compression zstd needs the embedded engine, not docker",
            "--engine embedded",
        ),
    ],
)
def test_refusals(argv: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", *argv]) == 2
    told = capsys.readouterr().err
    assert f"error: {message}" in told
    assert f"hint: {hint}\n" in told


def test_without_the_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dask_pool, "PATIENCE_S", 0.1)  # were it there
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert run(["build", "default", "--scheduler", HERE, *PLACE]) == 9
    assert "hint: pip install 'distributed>=2024.8'\n" in capsys.readouterr().err
