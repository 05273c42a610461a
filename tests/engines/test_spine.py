"""The whole way as a user types it: build an image, have it verified, read the exit code and the record."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.world.world import World, up

pytestmark = [pytest.mark.engine, pytest.mark.long]


@dataclass(frozen=True)
class Shell:
    """An empty home and an empty folder, with the world's settings."""

    home: Path
    variables: Mapping[str, str]

    def envkit(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "envkit", *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.home,
            env={**self.variables, "HOME": str(self.home)},
            timeout=1500,
        )


def record(text: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(text)
    return tree


def findings(tree: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(check["id"]): check for check in tree["checks"]}


@pytest.fixture(scope="module")
def place() -> World:
    found = up(("docker", "registry", "base", "channel", "miniconda"))
    found.require("docker", "registry", "base", "channel", "miniconda")
    return found


@pytest.fixture
def shell(place: World, tmp_path: Path) -> Iterator[Shell]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")}
    before = _large_images()
    yield Shell(tmp_path, kept | place.env())
    # The image with a whole CUDA and the stage that Docker leaves of it: 6 GB each. The engine may be the developer's,
    # so what was there before stays.
    for ident in _large_images() - before:
        subprocess.run(["docker", "rmi", "--force", ident], capture_output=True, check=True)


def _large_images() -> set[str]:
    """Return the images of more than 3 GB; no other test makes one, at whatever time it runs beside."""
    command = ["docker", "images", "--no-trunc", "--format", "{{.ID}} {{.Size}}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    sizes = (line.split() for line in listed)
    return {ident for ident, size in sizes if size.endswith("GB") and float(size.removesuffix("GB")) > 3}


def test_a_cpu_image_is_built_from_conda_and_verified(shell: Shell) -> None:
    built = shell.envkit("build", "--cpu", "--progress", "plain")
    assert built.returncode == 0, built.stdout + built.stderr
    assert "Exit code 0." in built.stdout

    again = shell.envkit("verify", "--tier", "quick", "--json")
    assert again.returncode == 0, again.stderr
    found = findings(record(again.stdout))
    # A busy machine may slow a part of what rests on a clock, which is a warning.
    sound = {False: ("PASS", "SKIP", "INCONCLUSIVE"), True: ("PASS", "SKIP", "INCONCLUSIVE", "WARN")}
    assert [one for one in found.values() if one["verdict"] not in sound[one.get("noise") is not None]] == []
    assert found["C01.torch"]["verdict"] == "PASS"
    assert found["C05.fp32"]["verdict"] == "PASS"


@pytest.mark.requirement("R49")
def test_a_cuda_image_from_the_python_index_is_what_was_resolved_and_never_passes_on_a_cpu(shell: Shell) -> None:
    # The smallest torch with CUDA that the base's Python can have: Docker keeps what it installs up to three times.
    request = ("--torch", "1.13.1", "--source", "pypi", "--template", "wheels")
    resolved = record(shell.envkit("resolve", *request, "--json").stdout)
    assert resolved["cuda"] == "11.7"

    built = shell.envkit("build", *request, "--no-verify", "--progress", "plain")
    assert built.returncode == 0, built.stdout + built.stderr

    verified = shell.envkit("verify", "--json")
    assert verified.returncode == 5, verified.stderr
    tree = record(verified.stdout)
    assert tree["summary"]["verdict"] == "NOT_VERIFIED"
    assert tree["summary"]["counts"]["FAIL"] == tree["summary"]["counts"]["ERROR"] == 0
    assert tree["env"]["sw"]["torch_cuda"] == "11.7"
    found = findings(tree)
    assert found["C01.cudnn"]["observed"]["found"] == ".".join(resolved["cudnn"].split(".")[:3])
    archs = [f"sm_{capability.replace('.', '')}" for capability in resolved["gpu_archs"]]
    assert found["C03.archs"]["observed"]["arch_list"] == archs
    cuda_libraries = found["C02.libraries"]["observed"]["cuda"]
    assert any(name.startswith("libcudnn") for name in cuda_libraries)
    assert {len(paths) for paths in cuda_libraries.values()} == {1}

    allowed = shell.envkit("verify", "--allow-cpu", "--only", "C01", "--json")
    assert allowed.returncode == 0, allowed.stderr
    assert record(allowed.stdout)["summary"]["verdict"] == "NOT_VERIFIED"
