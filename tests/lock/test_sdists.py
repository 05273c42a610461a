"""Packages that have only a source, with uv against an index on loopback: what is chosen, and that nothing runs."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envkit.ground.errors import ConflictError, EnvironmentProblem
from envkit.lock import sdists, wheels
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import BUILT
from envkit.lock.sdists import Sdist
from envkit.plan.source_spec import parse
from tests.lock import plans
from tests.lock.plans import TARGET
from tests.lock.served import Dist, Site, put_index
from tests.support.sources import FASTSUM, put_files, sdist
from tests.unit.lock.samples import wheel

SDIST = {"fastsum-1.2.tar.gz": sdist(FASTSUM)}


def _choose(
    index: str, *specs: str, others: Sequence[str] = (), preferred: Mapping[str, str] | None = None
) -> tuple[Sdist, ...]:
    found = [parse(one) for one in specs]
    return sdists.choose(found, others, TARGET, IndexLocations(python_index=index), preferred=preferred or {})


def test_the_sdist_of_a_package_without_wheels_is_chosen(site: Site) -> None:
    index = put_files(site, "/simple", SDIST)
    data = SDIST["fastsum-1.2.tar.gz"]
    assert _choose(index, "fastsum") == (
        Sdist(
            name="fastsum",
            version="1.2",
            url=f"{index}/files/fastsum-1.2.tar.gz",
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
        ),
    )


def test_nothing_of_a_source_runs_on_this_machine(site: Site, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    setup = (
        f"import pathlib\npathlib.Path({str(trap)!r}).touch()\nfrom setuptools import setup\nsetup(name='fastsum')\n"
    )
    index = put_files(site, "/simple", {"fastsum-1.2.tar.gz": sdist({"setup.py": setup})})
    assert _choose(index, "fastsum")
    assert not trap.exists()


def test_a_compatible_wheel_is_better_than_a_source(site: Site) -> None:
    dist = Dist("fastsum", "1.2")
    index = put_files(site, "/simple", {**SDIST, dist.file: dist.data()})
    assert _choose(index, "fastsum") == ()


def test_a_wheel_for_another_python_is_none(site: Site) -> None:
    dist = Dist("fastsum", "1.2", tag="cp38-cp38-manylinux_2_17_x86_64")
    index = put_files(site, "/simple", {**SDIST, dist.file: dist.data()})
    assert [one.version for one in _choose(index, "fastsum")] == ["1.2"]


def test_the_version_of_the_old_lock_is_kept_where_the_requirements_allow_it(site: Site) -> None:
    index = put_files(site, "/simple", {**SDIST, "fastsum-2.0.tar.gz": sdist(FASTSUM, "fastsum-2.0")})
    assert [one.version for one in _choose(index, "fastsum")] == ["2.0"]
    assert [one.version for one in _choose(index, "fastsum", preferred={"fastsum": "1.2"})] == ["1.2"]
    assert [one.version for one in _choose(index, "fastsum>1.2", preferred={"fastsum": "1.2"})] == ["2.0"]


def test_the_other_requirements_of_the_plan_hold(site: Site) -> None:
    index = put_files(site, "/simple", {**SDIST, "fastsum-2.0.tar.gz": sdist(FASTSUM, "fastsum-2.0")})
    assert [one.version for one in _choose(index, "fastsum", others=["fastsum<2", "einops"])] == ["1.2"]


def test_a_zip_is_refused(site: Site) -> None:
    index = put_index(site, "/simple", [])
    page = '<a href="../files/fastsum-1.2.zip#sha256=' + "a" * 64 + '">fastsum-1.2.zip</a>'
    site.put("/simple/fastsum/", page.encode(), "text/html")
    site.put("/simple/files/fastsum-1.2.zip", b"x" * 100)
    with pytest.raises(ConflictError, match=r"fastsum-1\.2\.zip: envkit builds only \.tar\.gz sdists"):
        _choose(index, "fastsum")


def test_a_source_without_a_sha256_is_refused(site: Site) -> None:
    page = '<a href="../files/fastsum-1.2.tar.gz#md5=' + "a" * 32 + '">fastsum-1.2.tar.gz</a>'
    site.put("/simple/fastsum/", page.encode(), "text/html")
    site.put("/simple/files/fastsum-1.2.tar.gz", SDIST["fastsum-1.2.tar.gz"])
    with pytest.raises(EnvironmentProblem, match=r"no SHA-256 of fastsum-1\.2\.tar\.gz"):
        _choose(f"{site.url}/simple", "fastsum")


def test_a_package_that_is_not_allowed_stops_the_lock_with_the_line_to_add(site: Site) -> None:
    index = put_files(site, "/simple", SDIST)
    with pytest.raises(ConflictError, match="has no wheel of fastsum, only its source") as caught:
        wheels.solve(plans.wheels(), TARGET, IndexLocations(python_index=index), torch=["fastsum"], chosen={})
    assert (caught.value.hint or "").startswith(
        "add --allow-source fastsum to the command, or allow_source: [fastsum] to the definition"
    )


def test_a_built_wheel_is_taken_with_what_it_depends_on(site: Site, tmp_path: Path) -> None:
    dist = Dist("fastsum", "1.2", ("sympy>=1",), tag="cp311-cp311-linux_x86_64")
    made = tmp_path / dist.file
    made.write_bytes(dist.data())
    index = put_index(site, "/simple", [Dist("sympy", "1.14"), Dist("fastsum", "1.1")])
    built = wheel("fastsum", "1.2", file=dist.file, source=BUILT)
    found = wheels.solve(
        plans.wheels(), TARGET, IndexLocations(python_index=index), torch=[], chosen={}, built={made: built}
    )
    assert [(one.name, one.version, one.source) for one in found] == [
        ("fastsum", "1.2", BUILT),
        ("sympy", "1.14", "pypi"),
    ]
    assert found[0] == built
