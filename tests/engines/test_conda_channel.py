"""Conda layers of the channel's real packages: the same everywhere, what an installer leaves, and able to run torch."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envkit.assemble.conda import Archives, conda_layers, downloaded
from envkit.engines.layer_cache import LayerCache
from envkit.ground.errors import IntegrityError
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import CONDA_PUBLIC, CondaPackage
from envkit.registry.transport import Transport
from tests.support.conda_archives import STUFF, write_archive
from tests.support.heard import Heard
from tests.world import apt, base, channel, processes
from tests.world.places import REPOSITORY, UnavailableError
from tests.world.world import Part, up

pytestmark = pytest.mark.engine
ENV = "opt/env"


VARIED: Mapping[str, dict[str, Any]] = {
    "umask 077, far time zone, other locale": {
        "umask": 0o077,
        "env": {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7"},
        "workers": 1,
    },
    "umask 000, long path, 1999": {
        "umask": 0,
        "env": {"TZ": "America/Adak", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "1"},
        "folder": "long " + "x" * 100,
        "time": "1999-12-31 23:59:59",
        "workers": 8,
    },
    "2037, chance as hash seed": {"env": {"PYTHONHASHSEED": "random"}, "time": "2037-01-01 12:00:00", "workers": 2},
}


@pytest.mark.requirement("R38")
@pytest.mark.long
def test_layers_are_the_same_whatever_surrounds_the_build(tmp_path: Path, packages: list[CondaPackage]) -> None:
    faketime = apt.require("faketime", "faketime")
    rows = [one for one in packages if one.name != "pytorch"]
    known = {one.sha256: str(channel.packed() / "/".join(one.url.rsplit("/", 3)[1:])) for one in rows}
    ours = write_archive(tmp_path / "channel", STUFF)
    rows.append(ours.package)
    known[ours.package.sha256] = str(ours.archive)

    def digests(name: str, how: Mapping[str, Any]) -> Any:
        folder = tmp_path / how.get("folder", hashlib.sha256(name.encode()).hexdigest()[:5])
        asked = {"folder": str(folder), "packages": [one.to_json() for one in rows], "archives": known}
        argv = [sys.executable, "-m", "tests.engines.conda_build"]
        done = subprocess.run(
            [faketime, "-f", f"@{how['time']}", *argv] if "time" in how else argv,
            input=json.dumps({**asked, "workers": how.get("workers")}),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **how.get("env", {})},
            umask=how.get("umask", 0o022),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(folder, ignore_errors=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain = digests("plain", {})
    assert len(plain) > 4
    for name, how in VARIED.items():
        assert digests(name, how) == plain, name


@pytest.fixture(scope="module")
def packages() -> list[CondaPackage]:
    """Every package of the channel, as a lock names it."""
    found = []
    for subdir in ("linux-64", "noarch"):
        tree = json.loads((channel.packed() / channel.CHANNEL / subdir / "repodata.json").read_bytes())
        for file, row in tree["packages.conda"].items():
            names = ("name", "version", "build", "sha256", "size")
            found.append(
                CondaPackage(
                    **{name: row[name] for name in names},
                    subdir=subdir,
                    channel=channel.CHANNEL,
                    url=f"{CONDA_PUBLIC}/{channel.CHANNEL}/{subdir}/{file}",
                    depends=tuple(row["depends"]),
                    noarch=row.get("noarch"),
                )
            )
    return found


@pytest.fixture
def fetch(tmp_path: Path) -> Iterator[Archives]:
    """Fetch from the channel as a mirror of the public one."""
    parts: tuple[Part, ...] = ("channel",)
    found = up(parts)
    found.require("channel")
    indexes = IndexLocations(conda_alias=str(found.channel_alias))
    with Transport() as transport:
        yield partial(downloaded, indexes=indexes, transport=transport, folder=tmp_path / "downloads")


@pytest.mark.long
def test_the_tree_is_that_of_one_installation_of_all(
    packages: list[CondaPackage],
    fetch: Archives,
    tmp_path: Path,
    heard: Heard,
) -> None:
    whole = tmp_path / "whole"
    processes.run_rattler(
        "install", str(channel.packed() / channel.CHANNEL), str(whole), str(tmp_path / "pkgs"), "/opt/env"
    )
    names = {json.loads(one.read_bytes())["name"] for one in (whole / "conda-meta").glob("*.json")}
    assert {"python", "pip"} <= names
    layers = conda_layers(
        [one for one in packages if one.name in names],
        cache=LayerCache(tmp_path),
        archives=fetch,
        budget=2,
        reporter=heard,
    ).layers
    root = tmp_path / "root"
    root.mkdir()
    for one in layers:
        subprocess.run(["tar", "--extract", "--gzip", "--file", one.cached.path, "--directory", root], check=True)
    assert _tree(root / ENV) == _tree(whole)


def _tree(folder: Path) -> dict[str, tuple[str, bool]]:
    """Every file and link but records: digest or target, and the executable bit."""
    found = {}
    for one in folder.rglob("*"):
        name = one.relative_to(folder).as_posix()
        if one.is_symlink():
            found[name] = str(one.readlink()), False
        elif one.is_file() and name != "CACHEDIR.TAG" and one.parent.name + one.suffix != "conda-meta.json":
            found[name] = hashlib.sha256(one.read_bytes()).hexdigest(), bool(one.stat().st_mode & 0o100)
    return found


@pytest.mark.requirement("R15")
def test_other_bytes_than_the_lock_s_are_never_used(
    packages: list[CondaPackage],
    fetch: Archives,
    tmp_path: Path,
    heard: Heard,
) -> None:
    tini = next(one for one in packages if one.name == "tini")
    with pytest.raises(IntegrityError, match=r"^tini .* has the SHA-256") as caught:
        conda_layers(
            [replace(tini, sha256="0" * 64)],
            cache=LayerCache(tmp_path),
            archives=fetch,
            budget=40,
            reporter=heard,
        )
    assert caught.value.exit_code == 10
    assert not list((tmp_path / "layers").glob("*/*"))


@pytest.mark.requirement("R43")
@pytest.mark.long
def test_torch_runs_on_debian_as_an_unknown_user(
    packages: list[CondaPackage],
    fetch: Archives,
    tmp_path: Path,
    heard: Heard,
) -> None:
    if os.geteuid() != 0:
        raise UnavailableError("another user is only root's to be")
    layers = conda_layers(
        packages,
        cache=LayerCache(tmp_path),
        archives=fetch,
        budget=6,
        reporter=heard,
    ).layers
    assert len(layers) == 6
    root = tmp_path / "root"
    root.mkdir()
    for path in (base.layer().path, *(one.cached.path for one in layers)):
        subprocess.run(["tar", "--extract", "--gzip", "--file", path, "--directory", root], check=True)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o111)
    script = "mount -t proc proc proc && exec chroot --userspec=54321:54321 . "
    code = "import torch, sys; print(torch.ones(3).sum().item(), sys.prefix, torch.__version__)"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", f"{script} /opt/env/bin/python -c '{code}' && exit"],
        cwd=root, capture_output=True, text=True, check=False, env={"HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.stdout.startswith("3.0 /opt/env 2."), done.stderr
    pip = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", f"{script} /opt/env/bin/pip --version"],
        cwd=root, capture_output=True, text=True, check=False, env={"HOME": "/nowhere"},
    )  # fmt: skip
    assert "from /opt/env/lib/python3" in pip.stdout, pip.stderr
