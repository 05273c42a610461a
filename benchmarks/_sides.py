"""The two sides of a build benchmark: the embedded engine, and `docker build` of the files from `envkit render`.

Both use the test world's bases and channel. Images go to the benchmark's own registry, which starts empty, so that its
size afterwards is what it received.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.world import apt, processes, registry
from tests.world.world import Part, up

_MADE = re.compile(r"^ ---> ([0-9a-f]{12,64})$", re.MULTILINE)
_REGISTRY_PORT, _INDEX_PORT = 5900, 8900


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serve static files without logging."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""


@dataclass(slots=True)
class Workspace:
    """A scratch folder, the settings of the test world, and a registry that starts empty."""

    folder: Path
    env: dict[str, str]
    registry: str
    storage: Path
    images: list[str] = field(default_factory=list)  # made by Docker here, oldest first
    stack: ExitStack = field(default_factory=ExitStack)

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[float, str]:
        """Run a command; return its seconds and its standard output.

        Raises:
            SystemExit: it failed; the text has the end of its output.
        """
        start = time.perf_counter()
        done = subprocess.run(
            argv, cwd=self.folder, env=self.env | dict(env or {}), capture_output=True, text=True, check=False
        )
        elapsed = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)} exited {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
        return elapsed, done.stdout

    def envkit(self, *arguments: str, env: Mapping[str, str] | None = None) -> float:
        """Run an envkit command; return the seconds from the start of its process to its end."""
        return self.run([sys.executable, "-m", "envkit", *arguments, "--progress", "plain"], env)[0]

    def lock(self, name: str, definition: str) -> None:
        """Write NAME.yaml, its lock NAME.lock, and Docker's build context, the folder NAME."""
        (self.folder / f"{name}.yaml").write_text(f"schema: envkit.image/1\ntitle: Benchmark\n{definition}")
        self.envkit("lock", f"{name}.yaml", "-o", f"{name}.lock")
        argv = [sys.executable, "-m", "envkit", "render", f"{name}.yaml", "--locked", f"{name}.lock", "--out", name]
        self.run(argv)

    def embedded(self, name: str, output: str, cache: str, env: Mapping[str, str] | None = None) -> float:
        """Build from a lock with the embedded engine; return the seconds. `cache` is the folder of cache and state."""
        own = {"XDG_CACHE_HOME": str(self.folder / cache), "XDG_STATE_HOME": str(self.folder / cache / "state")}
        return self.envkit(*self.embedded_command(name, output), env={**own, **(env or {})})

    def embedded_command(self, name: str, output: str) -> list[str]:
        """Return the arguments of this build."""
        locked = ["--locked", f"{name}.lock", "--engine", "embedded", "--output", output, "--no-verify"]
        return ["build", f"{name}.yaml", *locked]

    def docker_build(self, name: str, tag: str, *, cache: bool) -> float:
        """Run `docker build` on the rendered context; return the seconds."""
        before = set(self._docker("images", "--all", "--quiet", "--no-trunc").split())
        options = ["--network", "host", "--force-rm", *([] if cache else ["--no-cache"])]
        argv = [self.client, "build", *options, "--tag", tag, name]
        elapsed, output = self.run(argv, {"DOCKER_BUILDKIT": "0"})
        if cache and "Using cache" not in output:
            raise SystemExit("no step was a cache hit, so this is not a rebuild")
        known = {image.removeprefix("sha256:")[:12] for image in before}
        self.images += [
            image for image in _MADE.findall(output) if image[:12] not in known and image not in self.images
        ]
        self.images.append(tag)
        return elapsed

    def docker_push(self, tag: str) -> float:
        """Run `docker push`; return the seconds."""
        return self.run([self.client, "push", "--quiet", tag])[0]

    def pull_bases(self, name: str) -> None:
        """Pull the base images of a context before its build is timed."""
        lines = (self.folder / name / "Dockerfile").read_text().splitlines()
        for reference in {line.split()[1] for line in lines if line.startswith("FROM ")}:
            self._docker("pull", "--quiet", reference)

    def remove_images(self) -> None:
        """Remove the images that Docker made here, newest first. Images in use by others stay."""
        for image in reversed(self.images):
            subprocess.run([self.client, "rmi", image], env=self.env, capture_output=True, check=False)
        self.images.clear()

    def received(self) -> int:
        """Return the bytes of all blobs in the registry."""
        return sum(file.stat().st_size for file in self.storage.rglob("blobs/sha256/*/*/data"))

    @property
    def client(self) -> str:
        """The docker command."""
        return self.env.get("ENVKIT_DOCKER_CLI", "docker")

    def serve_wheels(self, folder: Path) -> None:
        """Make a folder of wheels the Python index of both sides, on loopback."""
        root = self.folder / "index"
        for wheel in sorted(folder.glob("*.whl")):
            below = root / re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()
            below.mkdir(parents=True, exist_ok=True)
            (below / wheel.name).symlink_to(wheel.resolve())
            with (below / "index.html").open("a") as page:
                page.write(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a><br>\n')
        answer = functools.partial(Quiet, directory=str(root))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", processes.free_port(_INDEX_PORT)), answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.stack.callback(server.shutdown)
        self.env["ENVKIT_PYTHON_INDEX"] = f"http://127.0.0.1:{server.server_port}/"

    def _docker(self, *arguments: str) -> str:
        return self.run([self.client, *arguments])[1]


@contextmanager
def workspace(*parts: Part) -> Iterator[Workspace]:
    """Yield a workspace with these parts of the test world; everything made in it is removed afterwards."""
    world = up(parts)
    world.require(*parts)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ENVKIT_") or key == "ENVKIT_WORLD"}
    repository = str(Path(__file__).parents[1])
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="envkit-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        space = Workspace(
            folder=folder,
            env=kept | world.env() | {"PYTHONPATH": repository},
            registry=_own_registry(folder / "registry", stack),
            storage=folder / "registry" / "data",
            stack=stack,
        )
        if "docker" in parts:
            stack.callback(space.remove_images)
        yield space


def _own_registry(folder: Path, stack: ExitStack) -> str:
    folder.mkdir()
    port = processes.free_port(_REGISTRY_PORT)
    configuration = registry._configure(folder, port)  # noqa: SLF001 - the test world's settings, in another folder
    command = apt.require("docker-registry", "docker-registry")
    server = subprocess.Popen(
        [command, "serve", str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(server.wait)
    stack.callback(server.terminate)
    for _ in range(100):
        if registry._answers(port):  # noqa: SLF001
            return f"127.0.0.1:{port}"
        time.sleep(0.1)
    raise SystemExit("the benchmark's registry does not answer")
