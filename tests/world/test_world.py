import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.world import image
from tests.world.world import World

pytestmark = pytest.mark.engine

ENVIRONMENT = """\
channels: [{channels}]
dependencies:
  - python=3.11
  - pip
  - pytorch=2.13.0=cpu_*
  - tini
"""
DOCKERFILE = """\
FROM {miniconda} AS build
COPY environment.yml /tmp/environment.yml
RUN echo 'channels: [conda-forge]' > /root/.condarc
ENV CONDA_CHANNEL_ALIAS={alias} CONDA_CHANNEL_PRIORITY=strict
RUN conda env create -y -q -p /opt/env -f /tmp/environment.yml && conda clean -afy

FROM {base}
COPY --from=build /opt/env /opt/env
ENV PATH=/opt/env/bin:$PATH
ENTRYPOINT ["tini", "--"]
"""
PROBE = "import json, sys, torch; print(json.dumps([sys.prefix, torch.__version__, float(torch.ones(3, 3).sum())]))"


def repodata(world: World, subdir: str) -> dict[str, dict[str, object]]:
    with urllib.request.urlopen(f"{world.channel_alias}/conda-forge/{subdir}/repodata.json", timeout=10) as answer:
        rows: dict[str, dict[str, object]] = json.load(answer)["packages.conda"]
    return rows


def run(command: list[str], world: World, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **world.env(), **more}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=600)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done


def test_the_channel_says_what_a_solver_needs(world: World) -> None:
    world.require("channel")
    rows = {str(row["name"]): row for row in repodata(world, "linux-64").values()}
    assert rows["pytorch"]["version"] == "2.13.0"
    assert str(rows["pytorch"]["build"]).startswith("cpu_generic_py311_")
    depends = rows["pytorch"]["depends"]
    assert isinstance(depends, list)
    assert {"python 3.11.*", "numpy"} <= set(depends)
    assert {"python", "numpy", "tini", "markupsafe"} <= set(rows)
    pure = {str(row["name"]) for row in repodata(world, "noarch").values()}
    wanted = {str(spec).split(" ", maxsplit=1)[0] for spec in depends} - {"__glibc"}
    assert wanted <= pure | set(rows)


def test_the_wheel_index_offers_the_cpu_build(world: World) -> None:
    world.require("channel")
    with urllib.request.urlopen(f"{world.env()['ENVKIT_PYTORCH_INDEX']}/cpu/torch/", timeout=10) as answer:
        page = answer.read().decode()
    assert "torch-2.13.0%2Bcpu-cp311" in page


def test_the_base_images_are_in_the_registry(world: World) -> None:
    world.require("base", "miniconda")
    assert world.registry
    base = image.tagged(world.registry, "library/debian", "bookworm-slim")
    conda = image.tagged(world.registry, "continuumio/miniconda3", "latest")
    assert base
    assert conda
    assert base != conda


@pytest.fixture(params=["classic", "buildkit", "podman"])
def built(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> Iterator[tuple[list[str], str, World]]:
    """An image with a real torch in /opt/env on plain Debian, built by each engine: its client, its tag, the world."""
    kind: str = request.param
    world.require("miniconda", "base", "podman" if kind == "podman" else "docker")
    client = ["podman"] if kind == "podman" else [world.docker_client or "docker"]
    (tmp_path / "environment.yml").write_text(ENVIRONMENT.format(channels="conda-forge"))
    (tmp_path / "Dockerfile").write_text(
        DOCKERFILE.format(miniconda=world.miniconda, base=world.base, alias=world.channel_alias)
    )
    tag = f"envkit-world-test:{uuid4().hex[:12]}"
    command = [*client, "build", "--pull", "--no-cache", "--force-rm", "--network", "host", "--tag", tag, str(tmp_path)]
    try:
        run(command, world, DOCKER_BUILDKIT="1" if kind == "buildkit" else "0")
        yield client, tag, world
    finally:
        env = {**os.environ, **world.env()}
        subprocess.run([*client, "rmi", "--force", tag], capture_output=True, check=False, env=env)


@pytest.mark.long
def test_conda_in_its_image_makes_an_environment_that_runs_torch(built: tuple[list[str], str, World]) -> None:
    client, tag, world = built
    done = run([*client, "run", "--rm", "--network", "none", tag, "python", "-c", PROBE], world)
    assert json.loads(done.stdout) == ["/opt/env", "2.13.0+cpu", 9.0]
    done = run([*client, "run", "--rm", "--network", "none", tag, "pip", "check"], world)
    assert "No broken requirements" in done.stdout


def test_the_conda_command_refuses_what_the_channel_lacks(world: World) -> None:
    world.require("miniconda", "docker")
    command = [world.docker_client or "docker", "run", "--rm", "--network", "host"]
    command += ["--env", f"CONDA_CHANNEL_ALIAS={world.channel_alias}", str(world.miniconda)]
    command += ["conda", "create", "-y", "-p", "/opt/env", "-c", "conda-forge", "--override-channels"]
    env = {**os.environ, **world.env()}
    done = subprocess.run([*command, "pytorch=1.0"], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert "pytorch" in done.stderr
    assert "Traceback" not in done.stderr
    run([*command, "--dry-run", "pytorch"], world)


def test_nodefaults_is_a_channel_that_the_mirror_lacks(world: World, tmp_path: Path) -> None:
    """As in conda 26.7.0 and later (conda/conda#16210)."""
    world.require("miniconda", "base", "docker")
    (tmp_path / "environment.yml").write_text(ENVIRONMENT.format(channels="conda-forge, nodefaults"))
    (tmp_path / "Dockerfile").write_text(
        DOCKERFILE.format(miniconda=world.miniconda, base=world.base, alias=world.channel_alias)
    )
    client = world.docker_client or "docker"
    command = [client, "build", "--pull", "--no-cache", "--force-rm", "--network", "host", str(tmp_path)]
    env = {**os.environ, **world.env(), "DOCKER_BUILDKIT": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=600)
    assert done.returncode != 0
    assert "UnavailableInvalidChannel: HTTP 404 NOT FOUND for channel nodefaults" in done.stdout + done.stderr
