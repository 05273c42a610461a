"""What a lock keeps of the one before it: a request that moved, a name that is updated, everything that is upgraded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envkit.lock.store import read_lock
from tests.lock.commands import envkit
from tests.lock.served import Dist, Site, put_index

LOCK = ("lock", "image.yaml", "--base", "none")
CUBLAS = "nvidia-cublas-cu12"
OLD = (
    Dist("torch", "2.6.0", ("triton==3.2.0", f"{CUBLAS}==12.4.5", "sympy==1.13.1", "filelock")),
    Dist("torchvision", "0.21.0", ("torch==2.6.0", "numpy")),
    Dist("triton", "3.2.0"),
    Dist(CUBLAS, "12.4.5"),
    Dist("sympy", "1.13.1"),
    Dist("filelock", "3.17"),
    Dist("numpy", "2.2.3"),
    Dist("requests", "2.32.3", ("idna",)),
    Dist("idna", "3.10"),
)
NEW = (
    Dist("torch", "2.7.1", ("triton==3.3.1", f"{CUBLAS}==12.6.4", "sympy>=1.13.3", "filelock")),
    Dist("torchvision", "0.22.1", ("torch==2.7.1", "numpy")),
    Dist("triton", "3.3.1"),
    Dist(CUBLAS, "12.6.4"),
    Dist("sympy", "1.14"),
    Dist("filelock", "3.20"),
    Dist("numpy", "2.4.6"),
    Dist("requests", "2.34", ("idna",)),
    Dist("idna", "3.11"),
)
OLD_VERSIONS = {dist.name: dist.version for dist in OLD}
FAMILY = {"torch": "2.7.1", "torchvision": "0.22.1", "triton": "3.3.1", CUBLAS: "12.6.4", "sympy": "1.14"}


def define(folder: Path, torch: str, *pip: str) -> None:
    lines = ["schema: envkit.image/1", "title: Image", "template: wheels", "request:", f'  torch: "{torch}"']
    lines += ['  python: "3.11"', "  source: pypi", f"pip: [{', '.join(pip)}]"]
    (folder / "image.yaml").write_text("\n".join(lines) + "\n")


def publish(site: Site, dists: Sequence[Dist], cache: Path) -> dict[str, str]:
    """Serve an index; return the settings, with a cache of its own that has no page of an earlier index."""
    return {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", dists), "UV_CACHE_DIR": str(cache)}


def versions(folder: Path) -> Mapping[str, str]:
    return {wheel.name: wheel.version for wheel in read_lock(folder / "envkit.lock").wheels}


@pytest.fixture
def year_old(site: Site, tmp_path: Path) -> dict[str, str]:
    """Lock torch 2.6, then publish a year of releases; return the settings."""
    define(tmp_path, "2.6.*", "numpy", "requests")
    done = envkit(tmp_path, *LOCK, env=publish(site, OLD, tmp_path / "old"))
    assert done.returncode == 0, done.stderr
    assert versions(tmp_path) == OLD_VERSIONS
    return publish(site, (*OLD, *NEW), tmp_path / "new")


@pytest.mark.parametrize("update", [(), ("--update", "torch"), ("--update", "Torch", "--update", "torchvision")])
def test_a_newer_torch_moves_with_its_family_and_nothing_else(
    update: tuple[str, ...], year_old: dict[str, str], tmp_path: Path
) -> None:
    define(tmp_path, "2.7.*", "numpy", "requests")
    done = envkit(tmp_path, *LOCK, *update, "--json", env=year_old)
    assert done.returncode == 0, done.stderr
    assert versions(tmp_path) == OLD_VERSIONS | FAMILY
    assert len(json.loads(done.stdout)["changes"]) == len(FAMILY)
    changed = [line for line in done.stderr.splitlines() if "changed since the old lock" in line]
    assert [line.rpartition("lock: ")[2] for line in changed] == [
        "cuda: 12.4 in the lock, 12.6 requested",
        "wheels: torch==2.6.0, torchvision==0.21.0 in the lock, torch==2.7.1, torchvision==0.22.1 requested",
    ]


def test_nothing_moves_without_a_reason_and_everything_with_upgrade(year_old: dict[str, str], tmp_path: Path) -> None:
    before = (tmp_path / "envkit.lock").read_bytes()
    same = envkit(tmp_path, *LOCK, env=year_old)
    assert same.stderr.endswith("\nno packages moved\nenvkit.lock is unchanged\n")
    assert "moved" not in same.stdout
    assert (tmp_path / "envkit.lock").read_bytes() == before
    define(tmp_path, "2.7.*", "numpy", "requests")
    done = envkit(tmp_path, *LOCK, "--upgrade", env=year_old)
    assert done.returncode == 0, done.stderr
    assert versions(tmp_path) == {dist.name: dist.version for dist in NEW}
    assert f"{len(NEW)} packages moved" in done.stderr


def test_a_name_that_has_nothing_newer_is_told(year_old: dict[str, str], tmp_path: Path) -> None:
    done = envkit(tmp_path, *LOCK, "--update", "torch", "--update", "idna", env=year_old)
    assert done.returncode == 0, done.stderr
    assert versions(tmp_path) == OLD_VERSIONS | {"idna": "3.11"}
    assert [line.split() for line in done.stdout.splitlines()[-2:]] == [
        ["moved", "kind", "from", "to"], ["idna", "wheel", "3.10", "3.11"],
    ]  # fmt: skip
    assert "torch stays at 2.6.0: the solver found no newer version that fits\n1 package moved\n" in done.stderr


def test_a_package_that_is_new_in_the_definition_joins_and_a_removed_one_leaves(
    year_old: dict[str, str], tmp_path: Path
) -> None:
    define(tmp_path, "2.6.*", "numpy", "idna")
    done = envkit(tmp_path, *LOCK, "--json", env=year_old)
    assert json.loads(done.stdout)["changes"] == ["- requests 2.32.3"]
    define(tmp_path, "2.6.*", "numpy", "requests")
    done = envkit(tmp_path, *LOCK, "--json", env=year_old)
    assert json.loads(done.stdout)["changes"] == ["+ requests 2.34"]


def test_an_old_lock_that_cannot_be_read_is_named(year_old: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "envkit.lock"
    path.write_text(path.read_text().replace('"as_of": null', '"as_of": "2026-01-01T00:00:00Z"'))
    refused = envkit(tmp_path, *LOCK, "--update", "torch", env=year_old)
    assert refused.returncode == 10
    done = envkit(tmp_path, *LOCK, env=year_old)
    assert done.returncode == 0, done.stderr
    assert "warning: the versions of the old lock are not kept: envkit.lock" in done.stderr
    assert versions(tmp_path)["requests"] == "2.34"


def test_what_cannot_be_updated_is_refused_before_a_request(
    year_old: dict[str, str], site: Site, tmp_path: Path
) -> None:
    asked = len(site.seen)
    define(tmp_path, "2.6.*", "numpy", "requests", "scipy")
    for arguments, code, error, hint in (
        (("--update", "reqeusts"), 2, "--update 'reqeusts': the lock has no such package", "--update requests"),
        (("--update", "scipy"), 2, "--update 'scipy': the lock", "envkit lock without --update adds it"),
        (("--update", "torch", "--upgrade"), 2, "--upgrade updates every package", "use one of them"),
        (("--upgrade", "--check"), 2, "--check solves nothing, so nothing is updated", "run envkit lock with"),
        (("--update", "torch", "-o", "-"), 2, "--update needs an old lock, and -o - has none", "envkit lock -o FILE"),
    ):
        done = envkit(tmp_path, *LOCK, *arguments, env=year_old)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)
        assert f"error: {error}" in done.stderr
        assert f"hint: {hint}" in done.stderr
    assert len(site.seen) == asked
