"""The conda channel, which is packed once below the cache folder, indexed by rattler and served on loopback."""

import http.client
import shutil
import subprocess
import sys
import time
from pathlib import Path

from packaging.utils import parse_wheel_filename

from tests.world import apt, conda_package, processes, python_package, wheels
from tests.world.conda_package import Metadata
from tests.world.places import REPOSITORY, cache, locked, say

NAME = "channel"
PREFERRED_PORT = 8001
CHANNEL = "conda-forge"
_FORMAT = "3"  # increase it when the packed content changes, so that cached channels are packed again


def up(*, keep: bool) -> str:
    """Serve the channel and return the channel alias of `conda-forge`; raises UnavailableError."""
    with locked("channel"):
        root = packed()
    running = processes.state_of(NAME)
    if running and _answers(running["port"]):
        return f"http://127.0.0.1:{running['port']}"
    port = processes.free_port(PREFERRED_PORT)
    processes.start(
        NAME,
        [sys.executable, str(Path(__file__).with_name("serve.py")), str(root), str(port)],
        port=port,
        keep=keep,
        answers=lambda: _answers(port),
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    return f"http://127.0.0.1:{port}"


def packed() -> Path:
    """Return the served folder, packed if missing or outdated: `conda-forge/` and, for pip, `whl/cpu/`."""
    root = cache("channels")
    done = root / ".complete"
    recipe = f"{_FORMAT} python {python_package.VERSION} torch {wheels.TORCH}"
    if done.exists() and done.read_text() == recipe:
        return root
    began = time.monotonic()
    files = wheels.fetch()
    stage, fresh = cache("stage"), cache("channels.new")
    shutil.rmtree(fresh)
    say("packing the conda channel (about half a minute)")
    python_package.write(fresh / CHANNEL, stage)
    _write_tini(fresh / CHANNEL, stage)
    offered = {parse_wheel_filename(wheel.name)[0] for wheel in files}
    for wheel in files:
        wheels.convert(wheel, fresh / CHANNEL, stage, offered)
        _offer(wheel, fresh / "whl" / "cpu")
    shutil.rmtree(stage)
    processes.run_rattler("index", str(fresh / CHANNEL))
    (fresh / ".complete").write_text(recipe)
    shutil.rmtree(root)  # a running server serves the new folder a moment later
    fresh.rename(root)
    say(f"conda channel: {len(files) + 2} packages in {time.monotonic() - began:.0f} s")
    return root


def _write_tini(channel: Path, stage: Path) -> None:
    """Pack the init process from Debian's package, whose static build runs in any image."""
    package = apt.download("tini", cache("downloads"))
    shutil.rmtree(stage, ignore_errors=True)
    unpacked = stage / "unpacked"
    unpacked.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "--extract", str(package), str(unpacked)], check=True, capture_output=True)
    files = stage / "files"
    (files / "bin").mkdir(parents=True)
    shutil.copy(unpacked / "usr/bin/tini-static", files / "bin" / "tini")
    version = package.name.split("_")[1].split("-")[0]
    conda_package.write(Metadata("tini", version, "h0_0", license="MIT"), files, channel)


def _offer(wheel: Path, index: Path) -> None:
    """Add a wheel to the simple index for pip."""
    name = parse_wheel_filename(wheel.name)[0]
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / wheel.name).symlink_to(wheel)
    anchor = wheel.name.replace("+", "%2B")
    (folder / "index.html").write_text(f'<!DOCTYPE html>\n<a href="{anchor}">{wheel.name}</a>\n')


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("HEAD", f"/{CHANNEL}/linux-64/repodata.json")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
