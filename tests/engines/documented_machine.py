"""A machine on which people type what the documentation shows: sources and a registry on loopback, and its programs.

Everything is small. The packages of images are stubs: `python` in them is a shell script that prints its arguments, so
what runs there tells that it ran, and an image is built with `--no-verify`. The index, the channel and the registry
hold what the pages' commands ask for; `nvidia-smi`, `kubectl`, `sinfo` and `pdsh` print what they print on a cluster.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from envkit.image import spec
from envkit.image.name import parse_reference
from envkit.lock import request
from envkit.plan.model import BuildPlan
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve
from tests.engines.oci_images import layer_of, push, registry
from tests.lock.served import Pkg, Served, Site, put_channel
from tests.support import documented, launches, watched
from tests.support.attestations import resealed
from tests.support.conda_archives import Content, Recipe, write_archive
from tests.support.heard import Heard
from tests.support.plans import facts, shipped_plan
from tests.support.records import passed_record
from tests.support.torch_wheels import TorchWheel, page, release
from tests.support.wheels import raw_zip, wheel_entries
from tests.world.world import World

HOST = "registry.example.com"
LONGEST_S = 600
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BASE = spec.Runtime(env=(("PATH", _PATH),), user="", workdir="/", entrypoint=(), cmd=("bash",))
_TINI = b'#!/bin/bash\nuntil [ "$1" = -- ]; do shift; done\nshift\nexec "$@"\n'
# Asked to compile the modules of an image, it answers that none of them compiles: one row for each of the sources.
_PYTHON = b"""#!/bin/bash
if [[ "$*" == *"compile_inside.py sources "* ]]; then
  read -r head < "${@: -1}"
  rows=${head//[^[]/}
  for ((i = 1; i < ${#rows}; i++)); do list+=', [null, "a stub"]'; done
  echo "[${list:2}]"
  exit
fi
echo "python $*"
"""
# Servers in images, which end at once.
_SERVER = b'#!/bin/bash\necho "${0##*/} $*"\n'
_DEFINITION = """schema: envkit.image/1
title: An example
companions: []
request: {cpu: true, python: "3.11"}
conda: [numpy%s]
"""
# What the commands ask for.
_REQUESTS: tuple[tuple[str, Mapping[str, str | Sequence[str] | bool]], ...] = (
    ("default", {}),
    ("default", {"cuda": "12.6"}),
    ("default", {"cuda": "12.6", "torch": "2.7.1"}),
    ("default", {"cuda": "12.6", "source": "pypi", "template": "wheels"}),
    ("default", {"cuda": "12.6", "template": "wheels"}),
    ("default", {"driver": "470.82.01", "gpu": ["K80"]}),
    ("default", {"cpu": True, "source": "pytorch"}),
    ("default", {"torch": "2.14.1", "cuda": "12.6", "python": "3.14"}),
    ("cpu", {}),
    ("cu118", {}),
    ("cu126", {}),
    ("cu130", {}),
    ("jupyter", {}),
    ("centos7", {}),
)
_COMMANDS = {"jupyterlab": "jupyter", "tensorboard": "tensorboard"}  # of packages
_PROGRAMS = {
    "nvidia-smi": """case "$*" in
  *csv,noheader,nounits*) echo "550.54.15" ;;
  *--query-gpu=*) fields=${*##*--query-gpu=}; fields=${fields%% *}; first=
    for field in ${fields//,/ }; do
      case $field in
        name) value="NVIDIA GeForce RTX 4090" ;; driver_version) value=550.54.15 ;; compute_cap) value=8.9 ;;
        *) value="[N/A]" ;;
      esac
      printf '%s%s' "$first" "$value"; first=", "
    done; echo ;;
esac
""",
    "kubectl": """case "$1" in
  get) cat "$(dirname "$0")/nodes.json" ;;
  logs) cat train.log ;;
esac
""",
    "sinfo": "echo 'node1 gpu:a100:4 gpu'\n",
    "pdsh": "echo 'node1: NVIDIA A100-SXM4-80GB, 550.54.15, 8.0'\n",
    "python": f'exec {sys.executable} "$@"\n',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"\n',
    "envkit": f'exec {sys.executable} -m envkit "$@"\n',
}
_NODES = {
    "kind": "List",
    "items": [
        {
            "kind": "Node",
            "metadata": {
                "name": "node1",
                "labels": {
                    "kubernetes.io/arch": "amd64",
                    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
                    "nvidia.com/cuda.driver-version.full": "550.54.15",
                },
            },
            "status": {"capacity": {"nvidia.com/gpu": "8"}, "nodeInfo": {"architecture": "amd64"}},
        }
    ],
}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine: a folder that is copied for every line, and what it needs from the environment."""

    folder: Path
    host: str  # the registry, 'host:port'
    environ: dict[str, str]

    def type(self, line: str, place: Path, *, repository: str = "team") -> subprocess.CompletedProcess[str]:
        """Type a line in bash, in a fresh copy of the folder.

        Args:
            line: as on the page; `registry.example.com/team` is a repository of the registry on loopback.
            place: the folder to copy to; it does not exist yet.
            repository: that stands for `team`; a build has one of its own.
        """
        shutil.copytree(self.folder, place, symlinks=True)
        return self.run(line.replace(f"{HOST}/team", f"{self.host}/{repository}"), place)

    def run(self, line: str, place: Path) -> subprocess.CompletedProcess[str]:
        """Type a line in the folder `project` of a place, as the user whose home is beside it."""
        environ = self.environ | {name: str(place / "home" / part) for name, part in _FOLDERS.items()}
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], cwd=place / "project", env=environ, capture_output=True,
            text=True, check=False, timeout=LONGEST_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def _fill(machine: Machine) -> None:
    """Put what the pages speak of into the project's folder, the registry and the state folder."""
    home, project = machine.folder / "home", machine.folder / "project"
    home.mkdir(parents=True)
    project.mkdir()
    (home / ".ssh").mkdir()
    (home / ".ssh/id_ed25519.pub").write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA me@example.com\n")
    documented.prepare(project)
    (project / "hosts.csv").write_text("host,gpu,driver\na,A100,550.54.15\nb,V100,535.104.05\n")
    (project / "train.py").write_text("print('trained')\n")
    (project / "images").mkdir()
    (project / "mine").mkdir()
    for name in ("image.yaml", "train.yaml", "images/train.yaml"):
        (project / name).write_text(_DEFINITION % "")
    (home / ".local/share/bash-completion/completions").mkdir(parents=True)
    (project / "old.yaml").write_text(_DEFINITION % "=1.26")
    _write_records(project)
    wheel = TorchWheel(version="2.9.0", python="cp312", tag="linux_x86_64")
    (project / wheel.file).write_bytes(wheel.data())

    def type_here(line: str) -> str:
        done = machine.run(line, machine.folder)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        return done.stdout

    type_here("envkit lock old.yaml -o old.lock && envkit lock image.yaml && cp envkit.lock own.lock")
    team = f"{machine.host}/team/train"
    type_here("envkit build old.yaml --locked old.lock --no-verify --output oci:old")
    type_here("envkit build image.yaml --no-verify --output oci:new")
    type_here("envkit build image.yaml --no-verify --output docker-archive:image.tar")
    type_here("mkdir build && cp -r old build/old && cp -r new build/train && cp -r new build/image")
    type_here("envkit build image.yaml --no-verify -o built.json")
    built = json.loads((project / "built.json").read_text())
    record = _record_of(built)
    for name in ("record.json", "r.json"):
        (project / name).write_text(json.dumps(record))
    (home / ".local/state/envkit/records").mkdir()
    (home / ".local/state/envkit/records/20260101T000000Z.json").write_text(json.dumps(record))
    type_here(f"envkit push {team}:1.1 --image oci:old --unverified && envkit push {team}:1.0")
    type_here(f"envkit push {team}:1 && envkit push {team}:image && rm built.json")
    type_here("envkit attest --new-key team.key")


@contextmanager
def beside_docker(found: Machine, world: World, folder: Path) -> Iterator[Machine]:
    """Make the machine once more, with images in Docker and Podman that have the names of the pages.

    Args:
        found: the machine without an engine; its registry and its channel are used.
        world: with Docker and Podman.
        folder: to copy the machine to; it does not exist yet.
    """
    shutil.copytree(found.folder, folder, symlinks=True)
    kept = {name: text for name, text in found.environ.items() if name not in ("ENVKIT_ENGINE", "ENVKIT_RUNNER")}
    here = Machine(folder, found.host, {**kept, **world.podman_env, "DOCKER_HOST": str(world.docker_host)})
    project = folder / "project"
    (project / "session.yaml").write_text(_DEFINITION.replace("numpy%s", "tensorboard") + "smoke: {shm_mb: 8192}\n")
    (project / "lab.yaml").write_text(_DEFINITION % "" + "features: [jupyter]\n")
    (project / "ssh").mkdir()
    (project / "ssh/Dockerfile").write_text(
        'FROM train:1\nCOPY sshd.sh /usr/share/envkit/sshd.sh\nLABEL envkit.features=ssh\nCMD ["python"]\n'
    )
    (project / "ssh/sshd.sh").write_bytes(_SERVER)
    (project / "ssh/sshd.sh").chmod(0o755)
    build = "envkit build --engine embedded --no-verify"
    lines = (
        f"{build} old.yaml --locked old.lock -t train:old --output docker-daemon",
        f"{build} image.yaml -t train:cu126 -t train:new --output docker-daemon",
        f"{build} jupyter -t notebook:1 --output docker-daemon",
        f"{build} session.yaml -t train:1 --output docker-archive:podman.tar && podman load --quiet --input podman.tar",
        f"{build} session.yaml -t train:1 --output docker-daemon",
        "docker build --quiet --tag ssh:1 ssh",
    )
    try:
        for line in lines:
            done = here.run(line, folder)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
        (project / "podman.tar").unlink()
        yield here
    finally:
        here.run("docker rmi --force train:old train:cu126 train:new notebook:1 train:1 lab:1 ssh:1", folder)
        here.run("podman rmi --force train:1", folder)


def _write_records(project: Path) -> None:
    """Records of trainings, and of launches of two images."""
    for name in ("A.json", "B.json", "before.json", "after.json"):
        share = 0.4 if name in ("A.json", "before.json") else 0.01
        (project / name).write_text(
            json.dumps(watched.record(watched.process({"next": watched.total(share)})).to_json())
        )
    for side, step_ms in (("a", 100.0), ("b", 50.0)):
        (project / "kept" / side).mkdir(parents=True)
        for number in range(8):
            (project / "kept" / side / f"{number}.json").write_text(json.dumps(launches.record(step_ms + number / 10)))


def _record_of(built: dict[str, object]) -> dict[str, object]:
    """A record that judges the built image and passed."""
    tree = passed_record()
    tree["subject"] |= {"id": built["image"], "image": built["place"], "plan": built["plan"]}
    return resealed(tree)


_FOLDERS = {"HOME": ".", "XDG_STATE_HOME": ".local/state", "XDG_CONFIG_HOME": ".config"}


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Make the machine in a folder; its servers end with the block."""
    with ExitStack() as stack:
        (folder / "registry").mkdir(parents=True)
        host = stack.enter_context(registry(folder / "registry"))
        site = stack.enter_context(Served())
        _serve(site, folder)
        _put_bases(host, folder)
        programs = folder / "programs"
        programs.mkdir()
        for name, text in _PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/bash\n{text}")
            (programs / name).chmod(0o755)
        (programs / "nodes.json").write_text(json.dumps(_NODES))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ENVKIT_", "PIP_", "UV_", "VIRTUAL_ENV"))}
        environ = kept | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{folder}/no.sock",
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "UV_CACHE_DIR": str(folder / "cache/uv"),
            "ENVKIT_ENGINE": "embedded",
            "ENVKIT_RUNNER": "bubblewrap",
            "ENVKIT_CA_BUNDLE": "none",
            "ENVKIT_REGISTRY": host,
            "ENVKIT_CONDA_CHANNEL_ALIAS": site.url,
            "ENVKIT_PYTHON_INDEX": f"{site.url}/simple",
            "ENVKIT_PYTORCH_INDEX": f"{site.url}/whl",
        }
        found = Machine(folder / "machine", host, environ)
        _fill(found)
        yield found


def _serve(site: Site, folder: Path) -> None:
    """Serve the conda packages and wheels that the requests need."""
    plans = [shipped_plan(name, **typed) for name, typed in _REQUESTS]
    conda: dict[tuple[str, str, str], Pkg] = {}
    wheels: dict[str, dict[str, tuple[str, str]]] = {}
    for made in plans:
        for row in _conda_rows(made):
            conda.setdefault((row.name, row.version, row.build), row)
        index = (made.resolution.index or "").rpartition("/whl/")[2]
        for text in (*request.torch_wheels(made), *made.pip):
            name, version = _exact(text)
            wheels.setdefault(f"/whl/{index}" if index else "/simple", {})[f"{name}-{version}"] = (name, version)
    conda[("numpy", "1.26.0", "0")] = Pkg("numpy", "1.26.0", ("python",))
    put_channel(site, "conda-forge", [_packed(site, folder, row) for row in conda.values()])
    # `envkit install` takes torchaudio as well, which images have only if they name it.
    alone = resolve(parse({"cpu": True, "source": "pytorch"}, facts()), facts())
    wheels["/whl/cpu"]["torchaudio"] = ("torchaudio", alone.files["torchaudio"])
    own = [("nvidia-cublas-cu12", "12.6.4"), ("setuptools", "81.0"), ("numpy", "1.26.0")]
    wheels["/simple"] |= {name: (name, version) for name, version in own}
    for place, rows in wheels.items():
        _put_wheels(site, place, rows.values())


def _exact(text: str) -> tuple[str, str]:
    """The name and a version that a requirement allows."""
    asked = Requirement(text)
    exact = [one.version for one in asked.specifier if one.operator == "=="]
    return asked.name, next(one for one in (*exact, "1.0", "99.0") if asked.specifier.contains(one))


def _conda_rows(plan: BuildPlan) -> Iterator[Pkg]:
    for text in request.conda_specs(plan):
        name, _, rest = text.partition(">=")[0].partition("=")
        version, _, build = rest.partition("=")
        version = f"{version}.7" if name == "python" else version or "99.0"
        yield Pkg(name, version, () if name == "python" else ("python",), build.replace("*", "_0") or "0")


def _packed(site: Site, folder: Path, row: Pkg) -> Pkg:
    """Serve the archive of a row; returns the row with what is known of it."""
    contents = [Content(f"share/{row.name}.txt", row.version.encode())]
    if row.name == "python":
        short = ".".join(row.version.split(".")[:2])
        contents += [Content(f"bin/{name}", _PYTHON, mode=0o755) for name in (f"python{short}", "python3", "python")]
    if row.name in _COMMANDS:
        contents.append(Content(f"bin/{_COMMANDS[row.name]}", _SERVER, mode=0o755))
    if row.name == "tini":
        contents.append(Content("bin/tini", _TINI, mode=0o755))
    recipe = Recipe(
        row.name,
        contents,
        version=row.version,
        depends=row.depends,
        index={"build": row.build, "depends": list(row.depends)},
    )
    data = write_archive(folder / "archives", recipe, ".conda").archive.read_bytes()
    site.put(f"/conda-forge/linux-64/{row.name}-{row.version}-{row.build}.conda", data)
    return Pkg(row.name, row.version, row.depends, row.build, sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def _put_wheels(site: Site, place: str, wanted: Iterable[tuple[str, str]]) -> None:
    """A simple index of stubs."""
    by_name: dict[str, list[dict[str, object]]] = {}
    for name, version in wanted:
        stem = name.replace("-", "_")
        # Wheels of the Python index name their CUDA in what they require alone.
        requires = ("nvidia-cublas-cu12",) if (place, name) == ("/simple", "torch") else ()
        content = {f"{stem}/__init__.py": b""}
        data = raw_zip(wheel_entries(content, name=stem, version=version, requires=requires))
        file = f"{stem}-{version}-py3-none-any.whl"
        site.put(f"{place}/files/{file}", data)
        by_name.setdefault(name, []).append({
            "filename": file, "url": f"../files/{file.replace('+', '%2B')}", "size": len(data),
            "hashes": {"sha256": hashlib.sha256(data).hexdigest()}, "upload-time": "2026-01-01T00:00:00Z",
        })  # fmt: skip
    real = release() if place == "/simple" else []  # torch 2.15.0 with all that the facts say of it
    for one in real:
        site.put(f"{place}/files/{one.file}", one.data())
        by_name.setdefault(one.name, [])
    for name, files in by_name.items():
        listed = json.loads(page(name, real))["files"]
        rows = files + [{key: value for key, value in row.items() if key != "size"} for row in listed]
        tree = {"meta": {"api-version": "1.1"}, "name": name, "files": rows}
        site.put(f"{place}/{name}/", json.dumps(tree).encode(), "application/vnd.pypi.simple.v1+json")


def _put_bases(host: str, folder: Path) -> None:
    """The bases of images, in a mirror of Docker Hub: bash with the libraries it needs on this machine."""
    files: dict[str, bytes] = {"usr/bin/env": b""}
    for program in ("bash", "env", "cat", "id", "ls", "mkdir"):
        path = Path(shutil.which(program) or program).resolve()
        files[f"usr/bin/{program}"] = path.read_bytes()
        listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            files[library.lstrip("/")] = Path(library).read_bytes()
    files["bin/bash"], files["bin/sh"] = files["usr/bin/bash"], files["usr/bin/bash"]
    files |= {"usr/bin/python3.11": _PYTHON, "usr/bin/python3": _PYTHON, "usr/bin/tini": _TINI}
    layer = layer_of(folder, "base", files, tuple(files))
    image = spec.image(spec.Base(name=""), (layer,), _BASE, {}, "linux-64")
    with Transport() as transport:
        to = Registry(host, transport, {})
        for name in ("library/debian:bookworm-slim", "library/centos:7"):
            push(image, parse_reference(f"{host}/{name}"), to, Heard())
