"""This world's base image `continuumio/miniconda3`: Debian, a real Python, and the stand-in for `conda`."""

import hashlib
import importlib.metadata
import json
import shutil
import tarfile
from pathlib import Path

from tests.world import base, image, processes
from tests.world.channel import CHANNEL
from tests.world.image import Layer
from tests.world.places import cache, locked, say
from tests.world.python_package import SHORT, VERSION

REPOSITORY = "continuumio/miniconda3"
TAGS = ("latest", "25.9.1-3")
PREFIX = "/opt/conda"
_STAND_IN = Path(__file__).with_name("conda_standin.py")
_DISTRIBUTIONS = ("py-rattler", "PyYAML")
_EPOCH = 1735689600  # 2025-01-01, on every file of the layer


def up(registry: str, channels: Path) -> str:
    """Push the image to the registry and return its reference; raises UnavailableError.

    `channels` is the folder with the packed conda channel, from which the image's Python is installed.
    """
    with locked("miniconda"):
        layers = [base.layer(), _layer(channels)]
        env = {"PATH": f"{PREFIX}/bin:{base.PATH}", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        image.push(registry, REPOSITORY, TAGS, layers, env=env)
    return f"{registry}/{REPOSITORY}:{TAGS[0]}"


def _layer(channels: Path) -> Layer:
    folder = cache("miniconda")
    versions = {name: importlib.metadata.version(name) for name in _DISTRIBUTIONS}
    script = hashlib.sha256(_STAND_IN.read_bytes()).hexdigest()
    recipe = {"python": VERSION, "distributions": versions, "script": script}
    note, packed = folder / "layer.json", folder / "opt-conda.tar.gz"
    if note.exists() and packed.exists():
        kept = json.loads(note.read_text())
        if kept["recipe"] == recipe:
            return Layer(packed, kept["digest"], kept["size"], kept["diff_id"])
    say("building the base image miniconda3")
    stage = cache("stage-miniconda")
    shutil.rmtree(stage)
    prefix = stage / PREFIX.lstrip("/")
    processes.run_rattler("install", str(channels / CHANNEL), str(prefix), str(folder / "pkgs"), PREFIX)
    for name in _DISTRIBUTIONS:
        _copy_distribution(name, prefix / "lib" / f"python{SHORT}" / "site-packages")
    command = prefix / "bin" / "conda"
    command.write_text(f"#!{PREFIX}/bin/python\n{_STAND_IN.read_text()}")
    command.chmod(0o755)
    (prefix / "pkgs").mkdir(exist_ok=True)
    tar = folder / "opt-conda.tar"
    with tarfile.open(tar, "w", format=tarfile.GNU_FORMAT) as out:
        out.add(stage / "opt", arcname="opt", filter=_plain)
    layer = image.compress(tar, packed)
    tar.unlink()
    shutil.rmtree(stage)
    note.write_text(
        json.dumps({"recipe": recipe, "digest": layer.digest, "size": layer.size, "diff_id": layer.diff_id}, indent=1)
    )
    return layer


def _copy_distribution(name: str, site: Path) -> None:
    """Copy an installed distribution of the running interpreter."""
    for file in importlib.metadata.files(name) or []:
        source = Path(str(file.locate()))
        if ".." in file.parts or file.suffix == ".pyc" or not source.is_file():
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = _EPOCH
    member.mode = 0o755 if member.isdir() or member.mode & 0o111 else 0o644
    return member
