"""The engines of this machine, each met through the same fixture; what a test leaves behind fails it."""

import contextlib
import fcntl
import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from envkit.engines.by_name import ENGINES
from envkit.engines.context import pack
from envkit.engines.log import BuildLog
from envkit.engines.model import Engine, Job
from envkit.ground.process import pids
from envkit.image.name import InLayout
from envkit.run.model import Runner
from envkit.run.runners import make
from tests.engines.broken_worlds import Sound, sound_image
from tests.support.file_images import Packed, write_layout
from tests.support.heard import Heard
from tests.world import base
from tests.world.places import UnavailableError
from tests.world.world import Part, World, up

PARTS: dict[str, tuple[Part, ...]] = {
    "docker": ("docker", "registry", "base"),
    "buildkit": ("docker", "registry", "base"),
    "podman": ("podman", "registry", "base"),
}
OF_FILES = {"bubblewrap": "bwrap", "proot": "proot"}  # runners of images that are files, and their programs
_STORAGE = {"docker": "docker", "buildkit": "docker", "podman": "podman", "bubblewrap": "files", "proot": "files"}
# As the instructions of `images` make it.
IMAGE: dict[str, Any] = {
    "User": "1234:1234",
    "Env": ["GREETING=hello"],
    "Labels": {"com.example.team": "vision"},
    "WorkingDir": "/srv",
    "Entrypoint": ["/bin/sh", "-c", 'echo entered >&2; exec "$@"', "entry"],
    "Cmd": ["true"],
}


@pytest.fixture(scope="session", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Downloads and solved metadata go into a folder that ends with the run, not into the caches of whoever runs it."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("UV_CACHE_DIR", str(folder / "uv"))
        yield


@pytest.fixture(scope="session")
def place() -> Iterator[World]:
    """The engines, the registry and the Debian base, with their settings in the environment."""
    found = up(("docker", "registry", "base", "podman"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.env().items():
            patch.setenv(name, value)
        yield found


def quick_with(names: Iterable[str], *quick: str) -> list[ParameterSet]:
    """Parameters of a fixture: `make test` takes the quick ones alone."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.long) for name in names]


def whole_for(
    whole: Iterable[str], others: Iterable[str], table: Sequence[Any], few: Sequence[Any]
) -> list[ParameterSet]:
    """Pairs of a runner and a row: the whole table for some runners, a few of its rows for the others."""
    assert set(few) < set(table)
    quick = [pytest.param(name, row) for name in whole for row in table]
    return quick + [pytest.param(name, row, marks=pytest.mark.long) for name in others for row in few]


@pytest.fixture(params=quick_with(ENGINES, "docker"))
def engine(request: pytest.FixtureRequest, place: World) -> Engine:
    """One engine."""
    place.require(*PARTS[request.param])
    return ENGINES[request.param](place.docker_client or "docker")


@pytest.fixture(params=quick_with(["docker", "podman", *OF_FILES], "docker", "bubblewrap"))
def runner(request: pytest.FixtureRequest) -> Runner:
    """One runner. A test of a guarantee that it says it cannot give has to fail."""
    if request.param in OF_FILES:
        request.getfixturevalue("file_image")
    else:
        request.getfixturevalue("place").require(*PARTS[request.param])
    found = make(request.param)
    reason = found.probe()
    if reason is not None:
        raise UnavailableError(reason)
    wanted = request.node.get_closest_marker("guarantee")
    if wanted is not None and wanted.args[0] in found.isolation.missing:
        reason = f"{request.param} cannot give it: {wanted.args[0]}"
        request.applymarker(pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))
    return found


@pytest.fixture(scope="session")
def file_image() -> Iterator[str]:
    """The id of the image that is a file: the Debian base and the usual configuration in an OCI layout.

    Made without any engine, so that a user who has none can run these tests. The cache is this session's own.
    """
    needed: tuple[Part, ...] = ("sandbox",)
    up(needed).require(*needed)
    made = base.layer()
    layer = Packed(made.path.read_bytes(), made.diff_id)
    # Runs through proot are another user's, who may not enter pytest's folders. So the runs would be in a folder on
    # another file system, and every file of the image would be copied for each of them.
    above = os.environ.get("PYTEST_DEBUG_TEMPROOT") or "/var/tmp"
    with tempfile.TemporaryDirectory(dir=above, prefix="envkit-tests-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        folder.chmod(0o711)
        write_layout(folder / "layout", [layer], {**IMAGE, "Env": [f"PATH={base.PATH}", *IMAGE["Env"]]})
        patch.setenv("XDG_CACHE_HOME", name)
        yield str(make("bubblewrap").inspect(InLayout(path=folder / "layout"))["id"])


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sound]:
    """The CPU image of the world's conda channel in Docker, for tests that break it."""
    found = up(("docker", "registry", "base", "channel"))
    found.require("docker", "registry", "base", "channel")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.env().items():
            patch.setenv(name, value)
        with sound_image(tmp_path_factory.mktemp("sound")) as image:
            yield image


@pytest.fixture
def heard() -> Heard:
    """A fresh reporter."""
    return Heard()


@pytest.fixture(scope="session")
def pinned(place: World) -> str:
    """The Debian base by digest."""
    assert place.base is not None
    return f"{place.base}@{ENGINES['docker']('docker').digest(place.base)}"


@pytest.fixture
def build(engine: Engine, pinned: str, heard: Heard, tmp_path: Path) -> Callable[..., str]:
    """Build instructions on top of the base and give the image's id; a cache never answers, unless `fresh` is off."""

    def run(*instructions: str, fresh: bool = True, files: dict[str, str] | None = None, job: Job | None = None) -> str:
        return make_image(engine, pinned, heard, tmp_path, instructions, fresh=fresh, files=files, job=job)

    return run


def make_image(
    engine: Engine,
    base: str,
    heard: Heard,
    folder: Path,
    instructions: tuple[str, ...],
    *,
    fresh: bool = False,
    files: dict[str, str] | None = None,
    job: Job | None = None,
) -> str:
    """Build instructions on top of a base on any engine."""
    unique = [f"ENV UNIQUE={secrets.token_hex(4)}"] if fresh else []
    dockerfile = "\n".join([f"FROM {base}", *unique, *instructions, ""])
    with BuildLog(folder / "build.log", heard) as log:
        return engine.make(pack({"Dockerfile": dockerfile, **(files or {})}), job or Job(name="try"), log, heard)


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The image that runners run in: the base, with a user of its own and an entry point that tells of itself."""
    made: dict[str, str] = {}

    def image(name: str) -> str:
        if name in OF_FILES:
            return str(request.getfixturevalue("file_image"))
        if name not in made:
            place, pinned = request.getfixturevalue("place"), request.getfixturevalue("pinned")
            made[name] = make_image(
                ENGINES[name](place.docker_client or "docker"),
                pinned,
                Heard(),
                tmp_path_factory.mktemp("images"),
                (
                    "ENV GREETING=hello",
                    "LABEL com.example.team=vision",
                    "WORKDIR /srv",
                    "USER 1234:1234",
                    'ENTRYPOINT ["/bin/sh", "-c", "echo entered >&2; exec \\"$@\\"", "entry"]',
                    'CMD ["true"]',
                ),
            )
        return made[name]

    return image


@pytest.fixture
def image(runner: Runner, images: Callable[[str], str]) -> str:
    """The id of that image in the runner's storage."""
    return images(runner.name)


@pytest.fixture
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[str]:
    """A word to put into commands; afterwards no process may have it on its command line, and no container be left."""
    name = next(
        getattr(request.getfixturevalue(one), "name", "") for one in ("engine", "runner") if one in request.fixturenames
    )
    storage = _STORAGE[name]
    word = f"word{secrets.token_hex(6)}"
    before = containers(storage)
    yield word
    mine = {ident: text for ident, text in containers(storage).items() if ident not in before}
    # Other tests may use the same Docker engine at the same time; podman's working containers bear no command.
    left = mine if storage != "docker" else {ident: text for ident, text in mine.items() if word in text}
    assert not left
    assert not [text for text in command_lines() if word in text]


def containers(storage: str) -> dict[str, str]:
    """Every container of an engine, a build's own ones included: id -> what is known of it."""
    if storage == "files":
        folders = [
            *Path(os.environ["XDG_CACHE_HOME"]).glob("envkit/runs/*"),
            *(one for one in Path(f"/var/tmp/envkit-{os.geteuid()}").glob("runs/*") if not _in_use(one)),
            *(one for one in Path("/sys/fs/cgroup").rglob("envkit-*-*-*-*") if not _of_another(one.name)),
        ]
        return {str(folder): "" for folder in folders}
    argv = ["docker", "ps", "--all", "--no-trunc", "--format", "{{json .}}"]
    if storage == "podman":
        argv = ["podman", "ps", "--all", "--external", "--no-trunc", "--format", "{{.ID}} {{.Command}}"]
    rows = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    if storage == "podman":
        return dict(row.partition(" ")[::2] for row in rows)
    return {json.loads(row)["ID"]: row for row in rows}


def _of_another(name: str) -> bool:
    """Whether the process that a control group's name tells lives, and is another one than this."""
    ident = int(name.split("-")[2])
    return ident != os.getpid() and Path(f"/proc/{ident}").exists()


def _in_use(folder: Path) -> bool:
    """Whether some process runs something in a run's folder; the folders of root's runs are shared by all of them."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return True  # just removed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def command_lines() -> list[str]:
    """The command line of every process but this one and its ancestors."""
    lines = []
    for pid in set(pids()) - {os.getpid(), os.getppid()}:
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
    return lines
