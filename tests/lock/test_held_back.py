"""An older release that is locked because the newest one needs a source is named, and only such a one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.ground.progress import Silent
from envkit.lock.base import nothing
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Lock
from envkit.lock.solve import Options, lock_plan
from tests.lock import plans
from tests.lock.served import Dist, Site
from tests.support.sources import put_files, sdist

CONF_1, CONF_2 = Dist("conf", "1.0"), Dist("conf", "2.0", ("ext==4.*",))
EXT = ("ext-3.9.tar.gz", "ext-4.9.tar.gz", "ext-5.0.tar.gz")
NEEDS_EXT = ("conf 1.0 is locked instead of 2.0", "ext", "ext==4.*")
NEEDS_CAM = ("cam 1.0 is locked instead of 1.5", "cam", "cam")


class Notes(Silent):
    """Keeps what the user reads."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def lock(
    index: str, *pip: str, constraints: tuple[str, ...] = (), old: Lock | None = None
) -> tuple[dict[str, str], list[str], Lock]:
    """Return the versions that are locked, and what is told about them."""
    plan = replace(plans.wheels(pip=pip), constraints=constraints)
    heard = Notes()
    made = lock_plan(
        plan,
        IndexLocations(python_index=index),
        Options(glibc="2.36", base="none", old=old),
        resolve_base=lambda _: nothing(),
        reporter=heard,
    )
    return {wheel.name: wheel.version for wheel in made.wheels}, heard.lines, made


def put(site: Site, dists: Sequence[Dist], *sources: str, setup: str = "") -> str:
    files = {dist.file: dist.data() for dist in dists}
    return put_files(site, "/simple", files | {file: sdist({"setup.py": setup}) for file in sources})


@pytest.mark.parametrize(
    ("dists", "sources", "pip", "told"),
    [
        ([CONF_1, CONF_2], EXT, "conf", NEEDS_EXT),
        # Two requirements away.
        ([CONF_1, Dist("conf", "2.0", ("mid",)), Dist("mid", "3", ("ext==4.*",))], EXT, "conf>=1", NEEDS_EXT),
        # An extra needs the source.
        ([CONF_1, Dist("conf", "2.0", ("ext==4.*; extra == 'more'",))], EXT, "conf[more]", NEEDS_EXT),
        # The newest release itself has only its source.
        ([Dist("cam", "1.0")], ("cam-1.5.tar.gz",), "Cam", NEEDS_CAM),
        # Its wheels are for another Python.
        ([Dist("cam", "1.0"), Dist("cam", "1.5", tag="cp38-cp38-linux_x86_64")], ("cam-1.5.tar.gz",), "cam", NEEDS_CAM),
    ],
)
def test_an_older_release_names_the_newest_and_the_source_it_needs(
    dists: list[Dist], sources: Sequence[str], pip: str, told: tuple[str, str, str], site: Site
) -> None:
    index = put(site, dists, *sources)
    versions, notes, _ = lock(index, pip)
    change, source, allowed = told
    assert versions == {change.split()[0]: "1.0"}
    quoted = f"'{allowed}'" if "=" in allowed else allowed
    why = f"{index} has no wheel of {source}, only its source"
    hint = f"add --allow-source {quoted} to the command, or allow_source: [{quoted}] to the definition"
    assert notes == [f"{change}: {why}; {hint}: its build script runs in a sandbox"]


@pytest.mark.parametrize(
    ("dists", "pip", "constraints"),
    [
        ([CONF_1, CONF_2], ("conf==1.0",), ()),  # the file's own words
        ([CONF_1, CONF_2], ("conf<2",), ()),
        ([CONF_1, CONF_2], ("conf",), ("conf<2",)),
        ([CONF_1, CONF_2, Dist("other", "1", ("conf<2",))], ("conf", "other"), ()),  # no source would help
        ([CONF_1, Dist("conf", "2.0", requires_python=">=3.13")], ("conf",), ()),
        ([CONF_1, Dist("conf", "2.0", tag="cp38-cp38-manylinux_2_17_x86_64")], ("conf",), ()),
        ([CONF_1, Dist("conf", "2.0rc1")], ("conf",), ()),
        ([CONF_1], ("conf",), ()),
    ],
)
def test_an_older_release_for_another_reason_is_no_news(
    dists: list[Dist], pip: tuple[str, ...], constraints: tuple[str, ...], site: Site
) -> None:
    versions, notes, _ = lock(put(site, dists, *EXT), *pip, constraints=constraints)
    assert (versions["conf"], notes) == ("1.0", [])


def test_the_release_of_an_old_lock_is_kept_without_a_word(site: Site) -> None:
    _, _, old = lock(put(site, [CONF_1]), "conf")
    versions, notes, _ = lock(put(site, [CONF_1, Dist("conf", "2.0")]), "conf", old=old)
    assert (versions, notes) == ({"conf": "1.0"}, [])


def test_no_build_script_runs_to_find_it(site: Site, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    setup = f"import pathlib\npathlib.Path({str(trap)!r}).touch()\nfrom setuptools import setup\nsetup(name='cam')\n"
    index = put(site, [Dist("cam", "1.0")], "cam-1.5.tar.gz", setup=setup)
    assert lock(index, "cam")[1]
    assert not trap.exists()
