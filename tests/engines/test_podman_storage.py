"""What `run`, `verify` and `compare` leave in Podman's storage of oci:DIR: nothing, and what was there before stays."""

import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.engines.conftest import IMAGE
from tests.engines.oci_images import run
from tests.support.file_images import entry, packed, write_layout
from tests.world import apt
from tests.world.world import World

pytestmark = [pytest.mark.engine, pytest.mark.long]

Names = Mapping[str, Sequence[str]]


@pytest.fixture
def layout(place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an image that Podman's storage does not have."""
    place.require("podman")
    apt.require("catatonit", "catatonit")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder, before = tmp_path / "layout", storage()
    made(folder)
    yield folder
    for ident in storage().keys() - before.keys():
        run("podman", "rmi", "--force", ident)


def made(folder: Path, **more: object) -> None:
    """Write the layout of an image with a shell and nothing else: what is tested is the storage, not its speed."""
    shell = Path(apt.require("busybox", "busybox-static")).read_bytes()
    links = [
        (entry(f"bin/{name}", tarfile.SYMTYPE, target="busybox", mode=0o777), b"") for name in ("sh", "echo", "sleep")
    ]
    config = {**IMAGE, "Env": ["PATH=/bin"], "Labels": {"com.example.folder": str(folder)}, **more}
    write_layout(folder, [packed([(entry("bin/busybox", mode=0o755), shell), *links])], config)


def storage() -> Names:
    """The images of Podman's storage by their id, with their names.

    `podman images --all` adds up sizes first: 8 s for the 180 images that builds of other tests leave.
    """
    folder = Path(run("podman", "info", "--format", "{{.Store.GraphRoot}}").strip())
    rows = json.loads((folder / "overlay-images/images.json").read_bytes())
    return {row["id"]: sorted(row.get("names") or ()) for row in rows}


def started(layout: Path, script: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "envkit", "run", f"oci:{layout}", "--runner", "podman", "-q", "--", "sh", "-c"]
    return subprocess.Popen(
        ["env", "--default-signal=INT,TERM,HUP", *words, script],
        stdout=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def ran(layout: Path, script: str) -> tuple[int, str]:
    with started(layout, script) as process:
        out, _ = process.communicate(timeout=300)
    return process.returncode, out


def test_the_image_is_gone_after_the_session(layout: Path) -> None:
    before = storage()
    assert ran(layout, "echo up; exit 3") == (3, "up\n")
    assert storage() == before


@pytest.mark.parametrize("words", [["verify", "{}", "--allow-cpu"], ["compare", "{}", "{}", "--launches", "5"]])
def test_the_image_is_gone_after_a_verification(layout: Path, words: Sequence[str]) -> None:
    before = storage()
    argv = [word.format(f"oci:{layout}") for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "envkit", *argv, "--runner", "podman"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )
    assert done.returncode not in (0, 1, 2), done.stderr  # the image has no Python, so no check of it runs
    assert "where it stays" not in done.stderr
    assert storage() == before


def test_the_image_is_gone_after_a_signal(layout: Path) -> None:
    before = storage()
    with started(layout, "echo up; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
    assert storage() == before


def test_two_sessions_at_once_do_not_take_the_image_from_each_other(layout: Path, tmp_path: Path) -> None:
    before, shared = storage(), tmp_path / "shared"
    shared.mkdir()
    with started(layout, "echo up; exec sleep 600") as long:
        assert long.stdout is not None
        assert long.stdout.readline() == "up\n"
        assert ran(layout, "echo second") == (0, "second\n")
        assert len(storage()) == len(before) + 1
        assert ran(layout, "echo third") == (0, "third\n")
        long.send_signal(signal.SIGTERM)
        assert long.wait(300) == 143
    assert storage() == before


@pytest.mark.parametrize("named", [True, False])
def test_an_image_that_was_there_stays_with_its_names(layout: Path, *, named: bool) -> None:
    ident = run("podman", "pull", "--quiet", f"oci:{layout}").strip()
    run("podman", "untag", ident)
    if named:
        run("podman", "tag", ident, "localhost/mine:1")
    before = storage()
    assert ran(layout, "echo up") == (0, "up\n")
    assert storage() == before
    assert before[ident] == (["localhost/mine:1"] if named else [])


def test_another_image_keeps_the_name_that_podman_derives_from_the_folder(layout: Path) -> None:
    run("podman", "pull", "--quiet", f"oci:{layout}")
    before = storage()
    for path in sorted(layout.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    made(layout, Labels={"com.example.version": "2"})
    assert ran(layout, "echo up") == (0, "up\n")
    assert storage() == before


def test_the_next_session_removes_what_a_killed_one_left(layout: Path) -> None:
    before = storage()
    with started(layout, "echo up; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGKILL)
    (left,) = storage().keys() - before.keys()
    containers = run("podman", "ps", "--quiet", "--filter", f"ancestor={left}").split()
    run("podman", "rm", "--force", "--time", "0", *containers)
    other = layout.with_name("other")
    made(other)
    assert ran(other, "echo up") == (0, "up\n")
    assert storage() == before


def test_a_printed_line_can_be_run_later(layout: Path) -> None:
    words = [sys.executable, "-m", "envkit", "run", f"oci:{layout}", "--print", "podman", "--", "echo", "later"]
    line = run(*words).strip()
    assert run("sh", "-c", line) == "later\n"
    assert layout.name in " ".join(name for names in storage().values() for name in names)


def test_a_folder_whose_path_is_no_image_name_is_loaded(layout: Path) -> None:
    folder, before = layout.with_name("My-_Image"), storage()
    made(folder)
    words = [sys.executable, "-m", "envkit", "run", f"oci:{folder}", "--runner", "podman", "--workspace", "none", "-q"]
    assert run(*words, "--", "echo", "in") == "in\n"
    assert storage() == before
