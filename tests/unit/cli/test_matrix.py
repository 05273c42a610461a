"""`envkit matrix`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from envkit.cli.matrix import command
from envkit.ground.errors import EnvkitError, UsageError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    content: dict[str, Any] = json.loads(result.stdout)
    assert content["schema"] == "envkit.facts-rows/1"
    assert len(content["digest"]) == 64
    return content


def failure(*arguments: str) -> EnvkitError:
    error = run(*arguments).exception
    assert isinstance(error, UsageError)
    return error


def test_help_shows_one_example_per_line() -> None:
    lines = [line.strip() for line in run("--help").stdout.splitlines()]
    assert "envkit matrix show 2.7.1                show all facts about a torch release" in lines


def test_list_names_the_tables() -> None:
    lines = run("list").stdout.splitlines()
    assert lines[0].split() == ["table", "rows"]
    assert ["builds", "507"] in [line.split() for line in lines]
    assert document("list")["tables"]["installers"] == 243


@pytest.mark.parametrize(
    "table",
    [
        "releases",
        "builds",
        "toolkits",
        "compat",
        "forward",
        "gpus",
        "oses",
        "pythons",
        "cudnns",
        "cuda-images",
        "installers",
        "traps",
        "sources",
    ],
)
def test_every_table_can_be_listed(table: str) -> None:
    result = run("list", table)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == len(document("list", table)["rows"]) + 1


def test_filters_choose_builds() -> None:
    rows = document("list", "--torch", "2.7", "--cuda", ">=12", "--source", "pytorch")["rows"]
    assert {(row["torch"], row["cuda"]) for row in rows} == {
        ("2.7.0", "12.6"), ("2.7.0", "12.8"), ("2.7.1", "12.6"), ("2.7.1", "12.8"),
    }  # fmt: skip
    assert all(row["refs"] for row in rows)
    cpu = document("list", "builds", "--cuda", "cpu", "--torch", "2.13.0")["rows"]
    assert cpu
    assert all(row["cuda"] is None for row in cpu)


def test_a_filter_that_meets_nothing_says_so() -> None:
    result = run("list", "--torch", "9.9")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == "no matching rows\n"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["list", "bulds"], "unknown table 'bulds'; use one of releases, builds, ", "envkit matrix list builds"),
        (
            ["list", "toolkits", "--torch", "2.7"],
            "--torch: the table toolkits has no column torch",
            "envkit matrix list builds --torch 2.7",
        ),
        (["list", "--torch", "new"], "--torch: 'new' is not a version", "write an exact version"),
        (["list", "--source", "pip"], "--source: 'pip' is not one of pytorch, pypi", "envkit matrix list builds"),
        (["show", "RTX 4091"], "unknown key 'RTX 4091'; did you mean RTX 4090", 'envkit matrix show "RTX 4090"'),
        (["show", "%%%%"], "unknown key '%%%%'", "envkit matrix list"),
    ],
)
def test_a_mistake_names_the_next_command(arguments: list[str], message: str, hint: str) -> None:
    error = failure(*arguments)
    assert error.message.startswith(message)
    assert error.hint is not None
    assert error.hint.startswith(hint)


def test_show_gives_the_row_its_builds_traps_and_sources() -> None:
    text = run("show", "2.7.1").stdout
    assert text.startswith("torch 2.7.1\n")
    for part in ("torchvision", "0.22.1", "builds", "9.5.1.17", "traps", "glibc-2.28", "source", "pypi_wheel"):
        assert part in text
    found = document("show", "2.7.1")["found"]
    assert [entry["table"] for entry in found] == ["releases"]
    assert found[0]["rows"][0]["torchvision"] == "0.22.1"
    assert found[0]["sources"]["pypi_wheel"]["kind"] == "package index"


def test_show_of_a_cuda_version_lists_its_toolkits() -> None:
    text = run("show", "12.6").stdout
    assert "560.35.05" in text
    assert "525.60.13" in text
    assert "builds with CUDA 12.6" in text
    assert "(--json lists them)" in run("show", "12.6.3").stdout


def test_check_is_clean() -> None:
    result = run("check")
    assert result.exit_code == 0
    assert result.stdout.startswith("clean: ")
    assert "facts version " in result.stdout
    content = document("check")
    assert content["clean"] is True
    assert content["findings"] == []


def test_rows_of_a_file_are_laid_over(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "schema: 1\nbuilds: [{torch: 2.7.1, cuda: cpu, source: pypi, platform: linux-64, refs: [pypi_simple]}]\n"
    )
    rows = document("list", "--torch", "2.7.1", "--source", "pypi", "--cuda", "cpu", "--facts", str(path))["rows"]
    assert {row["platform"] for row in rows} == {"linux-64", "linux-aarch64"}
    path.write_text("schema: 1\nbuilds: [{torch: 2.7.1, source: pypi, platform: linux-32, refs: [pypi_simple]}]\n")
    error = failure("check", "--facts", str(path))
    assert error.message == f"{path}: builds[0].platform: 'linux-32' is not one of linux-64, linux-aarch64"
    assert error.exit_code == 2
