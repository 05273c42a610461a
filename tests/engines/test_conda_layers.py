"""Conda packages become layers through the real installer: the same ones everywhere, and contained."""

import gc
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.assemble.conda import conda_layers
from envkit.engines.layer_cache import Cached, LayerCache
from envkit.ground.cache import NOTES
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError
from envkit.lock.model import CONDA_PUBLIC
from tests.support.conda_archives import PLACEHOLDER, PYTHON, STUFF, TOOL, Content, Made, Recipe, write_archive
from tests.support.heard import Heard
from tests.world.places import UnavailableError

pytestmark = pytest.mark.engine
ENV = "opt/env/"
Build = Callable[..., tuple[Cached, ...]]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., list[Made]]:
    """Pack packages."""
    return lambda *recipes: [write_archive(tmp_path / "channel", recipe) for recipe in recipes]


@pytest.fixture
def build(tmp_path: Path, heard: Heard) -> Build:
    """Build layers of packages below one cache folder."""

    def run(made: Sequence[Made], *, fetch: bool = True, **options: Any) -> tuple[Cached, ...]:
        known = {one.package.sha256: one.archive for one in made} if fetch else {}
        found = conda_layers(
            [one.package for one in made],
            cache=LayerCache(tmp_path / "cache"),
            archives=lambda wanted, *_: {one.sha256: known[one.sha256] for one in wanted},
            reporter=heard,
            **{"budget": 40, **options},
        )
        return tuple(one.cached for one in found.layers)

    return run


def members(layers: Sequence[Cached]) -> dict[str, tarfile.TarInfo]:
    found = {}
    for one in layers:
        with tarfile.open(one.path) as tar:
            found.update({member.name: member for member in tar})
    return found


def content(layers: Sequence[Cached], path: str) -> bytes:
    for one in layers:
        with tarfile.open(one.path) as tar:
            if path in tar.getnames():
                stream = tar.extractfile(path)
                assert stream is not None
                return stream.read()
    raise AssertionError(f"no layer holds {path}")


def test_files_lie_where_an_installer_puts_them(build: Build, make: Callable[..., list[Made]]) -> None:
    layers = build(make(PYTHON, TOOL, STUFF))
    found = members(layers)
    assert {name for name, one in found.items() if not one.isdir()} == {
        f"{ENV}{path}"
        for path in (
            "bin/go", "bin/python3.11", "bin/stuff", "bin/tool", "conda-meta/history",
            "conda-meta/python-3.11.9-0.json", "conda-meta/stuff-1.0-0.json", "conda-meta/tool-1.0-0.json",
            "lib/libstuff.so", "lib/libstuff.so.1",
            "lib/python3.11/site-packages/tool.py", "share/closed", "share/pyc/__pycache__/own.pyc",
            "share/ünïcode " + "long" * 40,
        )
    }  # fmt: skip
    assert found[f"{ENV}share/empty"].isdir()
    assert found[f"{ENV}lib/libstuff.so"].linkname == "libstuff.so.1"
    assert content(layers, f"{ENV}conda-meta/history") == b""


def test_only_the_executable_bit_is_left_of_modes(build: Build, make: Callable[..., list[Made]]) -> None:
    found = members(build(make(PYTHON, TOOL, STUFF)))
    assert {one.mode for one in found.values() if one.isdir()} == {0o755}
    executable = {name.removeprefix(f"{ENV}bin/") for name, one in found.items() if one.isreg() and one.mode == 0o755}
    assert executable == {"go", "python3.11", "stuff", "tool", f"{ENV}lib/libstuff.so.1"}
    assert {one.mode for one in found.values() if one.isreg()} == {0o755, 0o644}
    assert {(one.uid, one.gid, one.uname, one.gname, one.mtime) for one in found.values()} == {
        (0, 0, "", "", 315532800)
    }


def test_every_prefix_is_that_of_the_image(build: Build, make: Callable[..., list[Made]]) -> None:
    layers = build(make(PYTHON, TOOL, STUFF))
    assert content(layers, f"{ENV}bin/stuff") == b"#!/opt/env/bin/python\n"
    assert content(layers, f"{ENV}bin/tool").startswith(b"#!/opt/env/bin/python3.11\n")
    binary = content(layers, f"{ENV}lib/libstuff.so.1")
    assert binary.startswith(b"\0/opt/env/share\0")
    assert len(binary) == len(f"\0{PLACEHOLDER}/share\0tail")


def test_records_tell_the_lock_s_side(build: Build, make: Callable[..., list[Made]], tmp_path: Path) -> None:
    record = json.loads(content(build(make(PYTHON, TOOL, STUFF)), f"{ENV}conda-meta/stuff-1.0-0.json"))
    assert record["url"] == f"{CONDA_PUBLIC}/conda-forge/linux-64/stuff-1.0-0.tar.bz2"
    assert record["channel"] == f"{CONDA_PUBLIC}/conda-forge"
    assert record["depends"] == ["libc 1"]
    assert "link" not in record
    assert str(tmp_path) not in json.dumps(record)


def test_a_second_build_installs_and_fetches_nothing(build: Build, make: Callable[..., list[Made]]) -> None:
    made = make(PYTHON, TOOL, STUFF)
    first = build(made)
    assert build(made[::-1], fetch=False) == first


def test_no_cache_takes_nothing_from_the_cache_and_makes_the_same(
    build: Build, make: Callable[..., list[Made]]
) -> None:
    made = make(PYTHON, TOOL, STUFF)
    first = build(made)
    with pytest.raises(KeyError):
        build(made, fetch=False, no_cache=True)
    files = {_file_of(one.path) for one in first}
    again = build(made, no_cache=True)
    assert again == first
    assert not files & {_file_of(one.path) for one in again}


def _file_of(path: Path) -> tuple[int, int]:
    """Which file a path is: its number, which a later file may get again, and when it was made."""
    status = path.stat()
    return status.st_ino, status.st_ctime_ns


def test_a_layer_is_found_again_by_its_key(make: Callable[..., list[Made]], tmp_path: Path, heard: Heard) -> None:
    made = make(PYTHON, TOOL, STUFF)
    cache = LayerCache(tmp_path)
    layers = conda_layers(
        [one.package for one in made],
        cache=cache,
        archives=lambda *_: {one.package.sha256: one.archive for one in made},
        budget=40,
        reporter=heard,
    ).layers
    keys = [path.stem for path in NOTES.at(tmp_path).iterdir()]
    assert {cache.get(key) for key in keys} == {one.cached for one in layers}
    assert sorted(one.name for layer in layers for one in layer.packages) == ["python", "stuff", "tool"]


def test_one_changed_package_makes_one_new_layer(build: Build, make: Callable[..., list[Made]]) -> None:
    before = build(make(PYTHON, TOOL, STUFF))
    changed = make(PYTHON, TOOL, replace(STUFF, version="1.1"))
    stuff = [one for one in changed if one.package.name == "stuff"]
    assert len(set(build(changed)) - set(before)) == 1
    assert build(stuff, fetch=False)[0].layer.tar_size > 0  # its layer is there without the others


@pytest.mark.requirement("R40")
def test_damage_in_the_folder_is_mended(build: Build, make: Callable[..., list[Made]], tmp_path: Path) -> None:
    made = make(PYTHON, TOOL, STUFF)
    first = [one.layer for one in build(made)]
    for path in [one for one in (tmp_path / "cache").rglob("*") if one.is_file()]:
        path.write_bytes(b"")
    assert [one.layer for one in build(made)] == first


def test_the_last_of_the_lock_has_what_several_hold(
    build: Build, make: Callable[..., list[Made]], heard: Heard
) -> None:
    # The large package lies below in the image, so the order of layers alone would decide otherwise.
    ones = Recipe("ones", [Content("etc/both", b"1"), Content("etc/same", b"=")])
    twos = Recipe("twos", [Content("etc/both", b"2"), Content("etc/same", b"="), Content("big", os.urandom(5 << 20))])
    layers = build(make(ones, twos))
    assert [f"{ENV}etc/both" in members([one]) for one in layers] == [True, False]
    assert content(layers, f"{ENV}etc/both") == b"2"
    assert heard.notes == ["etc/both is in ones, twos; the image has the file of twos"]


@pytest.mark.requirement("R42")
def test_a_script_is_named_every_time_and_never_runs(
    build: Build, make: Callable[..., list[Made]], heard: Heard, tmp_path: Path
) -> None:
    script = Content("bin/.stuff-post-link.sh", f"#!/bin/sh\ntouch {tmp_path}/ran\n".encode(), mode=0o755)
    made = make(replace(STUFF, contents=[*STUFF.contents, script]))
    for _ in range(2):
        build(made)
        assert heard.notes == ["stuff 1.0: bin/.stuff-post-link.sh is not run during the build"]
        heard.notes.clear()
    assert not (tmp_path / "ran").exists()


def test_a_package_of_a_script_alone_is_an_error(build: Build, make: Callable[..., list[Made]]) -> None:
    script = Content("bin/.data-post-link.sh", b"#!/bin/sh\n", mode=0o755)
    with pytest.raises(EngineError) as caught:
        build(make(Recipe("data", [script])))
    assert caught.value.message == (
        "the conda package data 1.0 consists only of its script bin/.data-post-link.sh, which the embedded engine does "
        "not run"
    )
    assert caught.value.hint == "envkit build --engine docker"


HOSTILE = {
    "link to a file outside": [Content("lib/evil", target="/etc/passwd")],
    "link upwards": [Content("lib/evil", target="../../../etc")],
    "file below a link": [Content("evil", target="/srv"), Content("evil/x", b"")],
    "upward path": [Content("../evil", b"")],
    "absolute path": [Content("/evil", b"")],
    "upward listed alone": [Content("lib/evil", b"", listed="../evil")],
    "other path listed": [Content("lib/evil", b"", listed="lib/good")],
    "link listed as a file": [Content("lib/evil", target="/etc/passwd", kind="hardlink")],
    "folder listed as a file": [Content("lib/evil", None, kind="hardlink")],
    "a record of another": [Content("conda-meta/python-3.11.9-0.json", b"{}")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_leaves_the_environment(
    build: Build, make: Callable[..., list[Made]], tmp_path: Path, name: str
) -> None:
    with pytest.raises((IntegrityError, EngineError)) as caught:
        build(make(Recipe("evil", HOSTILE[name])))
    assert "evil" in caught.value.message
    assert not Path("/evil").exists()
    assert not list(tmp_path.rglob("evil"))
    left = [one for one in (tmp_path / "cache").rglob("*") if not one.is_dir()]
    assert not [one for one in left if "listings" not in one.parts]


_AS_TEXT = {"prefix_placeholder": PLACEHOLDER, "file_mode": "text"}
_AS_BINARY = {"prefix_placeholder": PLACEHOLDER, "file_mode": "binary"}
OF_THE_BUILDER: dict[str, Callable[[Path], list[Content]]] = {
    "an unlisted link to a folder, and a listed file below it": lambda secret: [
        Content("share/d", target=str(secret.parent), row=None),
        Content(f"share/d/{secret.name}", b"", packed=False),
    ],
    "a listed link to a folder, and a listed file below it": lambda secret: [
        Content("share/d", target=str(secret.parent)),
        Content(f"share/d/{secret.name}", b"", packed=False),
    ],
    "a link listed as a text file with a prefix": lambda secret: [
        Content("share/l", target=str(secret), kind="hardlink", row=_AS_TEXT)
    ],
    "a link listed as a binary file with a prefix": lambda secret: [
        Content("share/l", target=str(secret), kind="hardlink", row=_AS_BINARY)
    ],
    "a link listed as a file that is not to be linked": lambda secret: [
        Content("share/l", target=str(secret), kind="hardlink", row={"no_link": True})
    ],
    "a file with a prefix below an unlisted link": lambda secret: [
        Content("share/d", target=str(secret.parent), row=None),
        Content(f"share/d/{secret.name}", b"", packed=False, row=_AS_TEXT),
    ],
    "a link that leads to the file by way of another link": lambda secret: [
        Content("share/to", target=str(secret.parent), row=None),
        Content("share/l", target=f"to/{secret.name}", kind="hardlink", row={"no_link": True}),
    ],
}


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
@pytest.mark.parametrize("name", OF_THE_BUILDER)
def test_no_file_of_the_builder_comes_into_the_image(build: Build, tmp_path: Path, name: str, ending: str) -> None:
    secret = tmp_path / "keys" / "id_rsa"
    secret.parent.mkdir()
    secret.write_text("-----BEGIN PRIVATE KEY-----\n")
    made = write_archive(tmp_path / "channel", Recipe("thief", OF_THE_BUILDER[name](secret)), ending)
    with pytest.raises(IntegrityError, match=r"share/[dl]\b.* thief|thief .*'share/[dl]\b") as caught:
        build([made])
    assert caught.value.exit_code == 10
    assert "envkit lock --update thief" in (caught.value.hint or "")
    assert not list((tmp_path / "cache" / "layers").glob("layers/*"))


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
@pytest.mark.parametrize(
    ("contents", "error"),
    [
        (
            [Content("share/a", b"other bytes", row={"sha256": "0" * 64})],
            r"'share/a' differs from",
        ),
        (
            [Content("share/a", b"other bytes", row={"size_in_bytes": 3})],
            r"'share/a' differs from",
        ),
        (
            [Content("share/a", b"", packed=False)],
            r"'share/a' is listed as a file, but is not in the archive",
        ),
        (
            [Content("share/a", target="b", packed=False)],
            r"'share/a' is listed as a link, but is not in the archive",
        ),
        (
            [Content("share/a", b"", kind="softlink")],
            r"'share/a' is listed as a link, but is a file",
        ),
        ([Content("share/a", b"1"), Content("share/a", b"1", row=None)], r"it contains 'share/a' twice"),
    ],
)
def test_a_package_holds_what_its_own_list_says(
    build: Build, tmp_path: Path, contents: list[Content], error: str, ending: str
) -> None:
    made = write_archive(tmp_path / "channel", Recipe("odd", contents), ending)
    with pytest.raises(IntegrityError, match=f"^the conda package odd is refused: {error}"):
        build([made])


def test_both_forms_of_an_archive_give_the_same_files(tmp_path: Path, build: Build) -> None:
    old, new = (members(build([write_archive(tmp_path / ending, STUFF, ending)])) for ending in (".tar.bz2", ".conda"))
    assert {name: (one.size, one.mode, one.linkname) for name, one in old.items() if "conda-meta" not in name} == {
        name: (one.size, one.mode, one.linkname) for name, one in new.items() if "conda-meta" not in name
    }


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": "2.0"}, r"^the archive of tool 2\.0 0 contains tool 1\.0 0$"),
        ({"noarch": None}, r"^installing conda packages: tool: .*python"),
    ],
)
def test_an_archive_has_to_be_what_the_lock_says(
    build: Build, make: Callable[..., list[Made]], change: dict[str, Any], error: str
) -> None:
    made = make(PYTHON, TOOL)
    made[1] = replace(made[1], package=replace(made[1].package, **change))
    with pytest.raises(EngineError, match=error):
        build(made)


@pytest.mark.parametrize("damage", [b"", b"not an archive"])
def test_a_damaged_archive_is_named(build: Build, make: Callable[..., list[Made]], damage: bytes) -> None:
    made = make(STUFF)
    made[0].archive.write_bytes(damage or made[0].archive.read_bytes()[:200])
    with pytest.raises(EngineError, match=r"^reading conda packages: stuff: ") as caught:
        build(made)
    assert caught.value.hint == "envkit lock --update stuff takes another build of it"


def test_what_a_killed_run_left_is_removed(build: Build, make: Callable[..., list[Made]], tmp_path: Path) -> None:
    made = make(PYTHON, TOOL, STUFF)
    dead = tmp_path / "cache" / "conda" / "staging" / "dead" / "0"
    dead.mkdir(parents=True)
    (dead / "x").write_bytes(b"x")
    dead.chmod(0o500)
    build(made)
    assert not list((tmp_path / "cache" / "conda" / "staging").iterdir())


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with room for 4 MiB."""
    folder = tmp_path_factory.mktemp("small")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=False)
    if done.returncode:
        raise UnavailableError("no file system can be mounted here")
    yield folder
    gc.collect()  # a cache in the frames of a caught error has the folder open
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_nothing(make: Callable[..., list[Made]], small_disk: Path, heard: Heard) -> None:
    made = make(Recipe("big", [Content("big", os.urandom(3 << 20)), Content("other", os.urandom(3 << 20))]))
    with pytest.raises(EnvironmentProblem) as caught:
        conda_layers(
            [one.package for one in made],
            cache=LayerCache(small_disk),
            archives=lambda *_: {one.package.sha256: one.archive for one in made},
            budget=40,
            reporter=heard,
        )
    assert caught.value.exit_code == 9
    assert "disk full" in caught.value.message
    assert sum(one.stat().st_size for one in small_disk.rglob("*") if one.is_file()) < 4096
