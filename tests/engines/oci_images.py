"""Small images with real layers, and a registry of one's own, for the tests of what leaves the embedded engine."""

import http.client
import json
import secrets
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envkit.assemble.layer import LayerWriter
from envkit.ground.progress import Reporter
from envkit.image import spec
from envkit.image.name import Reference
from envkit.registry.push import Pushed, Pusher
from envkit.registry.registry import Registry
from envkit.registry.tagging import move_tag
from tests.world import apt, processes

# `not-a-secret`, as htpasswd -B writes it.
PASSWORD_FILE = "someone:$2b$05$abcdefghijklmnopqrstuuVPNOToLP9MHdthRCXkVoiIF0qNKnk2G\n"
RUNTIME = spec.Runtime(
    env=(("PATH", "/usr/bin:/bin"), ("GREETING", "hello")),
    user="1000:1000",
    workdir="/srv",
    entrypoint=("/bin/show",),
    cmd=("one", "two words"),
)
LABELS = {
    "com.example.nasty": 'say "hi" $HOME \\n\nnew line',
    "envkit.plan": f"sha256:{'1' * 64}",
    "org.opencontainers.image.title": "déjà vu",
}


def layer_of(folder: Path, name: str, files: Mapping[str, bytes], executable: tuple[str, ...] = ()) -> spec.Layer:
    """A layer of some files."""
    path = folder / f"{name}.blob"
    parents = {str(parent) for file in files for parent in Path(file).parents} - {"."}
    with path.open("wb") as sink, LayerWriter(sink) as writer:
        for one in sorted(parents | files.keys(), key=str.encode):
            if one in files:
                writer.add_bytes(one, files[one], executable=one in executable)
            else:
                writer.add_dir(one)
        made = writer.close()
    return spec.layer(made, path, f"envkit: {name}")


def image_of(folder: Path, *, salt: str = "", big: int = 0) -> spec.Image:
    """An image of two layers; `salt` makes its blobs unlike all others, `big` adds random bytes."""
    first = layer_of(folder, "first", {"srv/one": b"1" + salt.encode(), "bin/show": b"#!/bin/sh\n"}, ("bin/show",))
    second = layer_of(folder, "second", {"srv/two": b"2" + salt.encode() + secrets.token_bytes(big)})
    return spec.image(spec.Base(name=""), (first, second), RUNTIME, LABELS, "linux-64")


@contextmanager
def registry(folder: Path, *, password: bool = False, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Debian's docker-registry with a storage of its own, as `host:port`; a certificate and its key mean TLS."""
    command = apt.require("docker-registry", "docker-registry")
    port = processes.free_port()
    settings: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": secrets.token_hex(16)},
    }
    if certificate is not None:
        settings["http"]["tls"] = {"certificate": str(certificate[0]), "key": str(certificate[1])}
    if password:
        (folder / "htpasswd").write_text(PASSWORD_FILE)
        settings["auth"] = {"htpasswd": {"realm": "it", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([command, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 20
        while not _answers(port, tls=certificate is not None):
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def push(
    image: spec.Image,
    reference: Reference,
    to: Registry,
    reporter: Reporter,
    *,
    replace_tag: bool = False,
    sources: tuple[str, ...] = (),
) -> Pushed:
    """Push an image, then set its tag, as a build does whose verification ended well."""
    with Pusher(reference, to, sources=sources, replace_tag=replace_tag) as pusher:
        pushed = pusher.finish(image, reporter)
    if reference.tag:
        move_tag(reference, image.digest, to, replace_tag=replace_tag)
    return pushed


def run(*argv: str) -> str:
    """What a tool prints; its own words when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout


def _answers(port: int, *, tls: bool) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    if tls:
        anyone = ssl._create_unverified_context()  # only asks whether the server is up
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=anyone)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status in (200, 401)
    except OSError:
        return False
    finally:
        connection.close()
