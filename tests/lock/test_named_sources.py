"""Wheels of the indexes and pages that a project's files name, from the file to the image, on loopback."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.ground.errors import ConflictError, EnvironmentProblem, IntegrityError
from envkit.lock import wheels
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Lock, Wheel
from envkit.lock.store import read_lock
from envkit.plan.model import BuildPlan
from tests.lock import plans
from tests.lock.commands import envkit, read_layout
from tests.lock.plans import TARGET
from tests.lock.served import Dist, Site, put_index, put_pages

# What no other index has: its only wheels are for one torch, CUDA and Python each.
SCATTER = tuple(
    Dist("torch_scatter", "2.1.2+pt26cu124", tag=f"cp3{minor}-cp3{minor}-linux_x86_64") for minor in (10, 11, 12)
)
FLAGS = ("--template", "wheels", "--os", "debian12", "--python", "3.11", "--source", "pytorch", "--base", "none")


def served(site: Site, tmp_path: Path) -> dict[str, str]:
    """Serve what a plan with torch 2.6.0 needs besides the packages of a test; returns the settings."""
    family = [Dist("torch", "2.6.0+cu124"), Dist("torchvision", "0.21.0+cu124"), Dist("numpy", "2.1.0")]
    put_index(site, "/whl/cu124", family)
    python = put_index(site, "/simple", [Dist("einops", "0.8.1"), Dist("own", "9"), Dist("needed", "9")])
    return {
        "ENVKIT_PYTORCH_INDEX": f"{site.url}/whl",
        "ENVKIT_PYTHON_INDEX": python,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def run(folder: Path, env: Mapping[str, str], *words: str) -> str:
    done = envkit(folder, *words, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def locked(folder: Path) -> dict[str, Wheel]:
    lock: Lock = read_lock(folder / "envkit.lock")
    return {wheel.name: wheel for wheel in lock.wheels}


@pytest.mark.long
@pytest.mark.parametrize("hashes", [True, False])
def test_a_page_of_a_file_gives_the_wheel_that_is_locked_and_installed(
    hashes: bool, site: Site, tmp_path: Path
) -> None:
    env = served(site, tmp_path)
    page = put_pages(site, "/pages/torch-2.6.0+cu124.html", SCATTER, hashes=hashes)
    (tmp_path / "requirements.txt").write_text(f"torch==2.6.0+cu124\n-f {page}\ntorch-scatter\neinops\n")
    shown = run(tmp_path, env, "init", "requirements.txt")
    assert ["find_links", page, "requirements.txt:2"] in [line.split() for line in shown.splitlines()]
    run(tmp_path, env, "lock", "image.yaml", *FLAGS)
    scatter, data = locked(tmp_path)["torch-scatter"], SCATTER[1].data()
    assert (scatter.version, scatter.file) == ("2.1.2+pt26cu124", SCATTER[1].file)
    assert (scatter.sha256, scatter.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert scatter.url == f"{page}{SCATTER[1].file.replace('+', '%2B')}"
    run(tmp_path, env, "lock", "image.yaml", *FLAGS, "--check")
    build = ("--engine", "embedded", "--no-verify", "--output", "oci:out")
    run(tmp_path, env, "build", "image.yaml", *FLAGS, *build)
    _, files = read_layout(tmp_path / "out")
    assert any(path.endswith("site-packages/torch_scatter-2.1.2+pt26cu124.dist-info/METADATA") for path in files)
    exported = run(tmp_path, env, "lock", "--export", "requirements.txt")
    assert f"--find-links {page}" in exported.splitlines()
    run(tmp_path, env, "render", "image.yaml", *FLAGS[:-2], "--locked", "envkit.lock", "--check")


def solve(plan: BuildPlan, index: str) -> dict[str, Wheel]:
    found = wheels.solve(plan, TARGET, IndexLocations(python_index=index), torch=plan.family, chosen={})
    return {wheel.name: wheel for wheel in found}


def test_an_index_that_is_named_decides_before_the_python_index(site: Site) -> None:
    python = put_index(site, "/simple", [Dist("own", "9"), Dist("einops", "0.8.1")])
    private = put_index(site, "/private", [Dist("own", "1", ("einops",))])
    plan = replace(plans.wheels("own"), indexes=(private,))
    found = solve(plan, python)
    assert {name: wheel.version for name, wheel in found.items()} == {"own": "1", "einops": "0.8.1"}
    assert found["own"].url.startswith(f"{private}/")


def test_an_index_for_one_package_gives_no_other(site: Site) -> None:
    python = put_index(site, "/simple", [Dist("own", "9"), Dist("needed", "9")])
    private = put_index(site, "/private", [Dist("own", "1", ("needed",)), Dist("needed", "1")])
    plan = replace(plans.wheels("own", pip=("needed",)), package_indexes=(("own", private),))
    found = solve(plan, python)
    assert {name: wheel.version for name, wheel in found.items()} == {"own": "1", "needed": "9"}


@pytest.mark.parametrize("status", [401, 403])
def test_an_index_that_refuses_one_package_is_named_with_it(status: int, site: Site) -> None:
    python = put_index(site, "/simple", [Dist("own", "9"), Dist("public", "1")])
    private = put_index(site, "/private", [Dist("own", "1")])
    site.faults["/private/public/"] = [status] * 20
    plan = replace(plans.wheels("own", "public"), indexes=(private,))
    with pytest.raises(EnvironmentProblem, match=f"{private} refuses public: {status}") as caught:
        solve(plan, python)
    assert "~/.netrc: machine 127.0.0.1 login" in (caught.value.hint or "")


def test_the_login_of_a_private_index_is_read_from_netrc(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.login = "me:secret"
    private = put_index(site, "/private", [Dist("own", "1")], sizes=False, dates=False)
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    found = solve(replace(plans.wheels("own"), indexes=(private,)), private)
    assert (found["own"].version, found["own"].size) == ("1", len(Dist("own", "1").data()))


@pytest.mark.parametrize(("status", "text"), [(401, "401"), (403, "403"), (404, "404")])
def test_a_page_that_does_not_answer_is_an_environment_problem(status: int, text: str, site: Site) -> None:
    python = put_index(site, "/simple", [Dist("torch_scatter", "9")])
    page = put_pages(site, "/pages", SCATTER, hashes=True)
    site.faults["/pages/"] = [status] * 20
    with pytest.raises(EnvironmentProblem, match=text):
        solve(replace(plans.wheels("torch_scatter"), find_links=(page,)), python)


def test_of_a_page_for_several_torches_the_wheel_for_this_one_is_locked(site: Site) -> None:
    versions = ("2.6.3+cu118torch2.4cxx11abiFALSE", "2.6.3+cu123torch2.4cxx11abiFALSE",
                "2.6.3+cu123torch2.4cxx11abiTRUE", "2.6.3+cu123torch2.5cxx11abiFALSE")  # fmt: skip
    dists = [Dist("flash_attn", version, ("torch", "einops"), tag="cp311-cp311-linux_x86_64") for version in versions]
    page = put_pages(site, "/assets", dists, hashes=False)
    python = put_index(site, "/simple", [Dist("torch", "2.4.1", ("nvidia-cublas-cu12",)), Dist("einops", "0.8.1"),
                                         Dist("nvidia-cublas-cu12", "12")])  # fmt: skip
    plan = plans.wheels("torch==2.4.1", pip=("flash_attn",), cuda="12.4")
    plan = replace(plan, find_links=(page,), resolution=replace(plan.resolution, torch="2.4.1", glibc="2.17"))
    found = solve(plan, python)
    assert found["flash-attn"].version == "2.6.3+cu123torch2.4cxx11abifalse"
    private = put_index(site, "/private", [replace(dist, name="flash-attn") for dist in dists])
    found = solve(replace(plan, find_links=(), indexes=(private,)), python)
    assert found["flash-attn"].version == "2.6.3+cu123torch2.4cxx11abifalse"


def test_a_build_that_is_pinned_for_another_torch_is_named(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path)
    page = put_pages(site, "/pages", [replace(SCATTER[1], version="2.1.2+pt25cu124")], hashes=True)
    (tmp_path / "requirements.txt").write_text(f"torch==2.6.0+cu124\n-f {page}\ntorch-scatter==2.1.2+pt25cu124\n")
    done = envkit(tmp_path, "lock", "requirements.txt", *FLAGS, env=env)
    assert done.returncode == 3
    assert "torch-scatter 2.1.2+pt25cu124 was built for torch 2.5, but the lock has torch 2.6.0+cu124" in done.stderr


@pytest.mark.parametrize("end", [b"</body></html>", b"</a></body></html>", b"/a></body></html>"])
def test_a_page_that_is_cut_is_refused(end: bytes, site: Site) -> None:
    python = put_index(site, "/simple", [Dist("torch_scatter", "9")])
    page = put_pages(site, "/pages", SCATTER, hashes=True)
    kind, data = site.files["/pages/"]
    site.files["/pages/"] = (kind, data.removesuffix(end))
    with pytest.raises(IntegrityError, match="is refused: the page is cut short"):
        solve(replace(plans.wheels("torch_scatter"), find_links=(page,)), python)


def test_a_page_that_ends_before_its_length_is_refused(site: Site) -> None:
    python = put_index(site, "/simple", [Dist("torch_scatter", "9")])
    page = put_pages(site, "/pages", SCATTER, hashes=True)
    site.lengths["/pages/"] = 100_000
    with pytest.raises(EnvironmentProblem, match="the page is cut short"):
        solve(replace(plans.wheels("torch_scatter"), find_links=(page,)), python)


def test_wheels_for_other_pythons_are_named(site: Site) -> None:
    numpy = [Dist("numpy", "1.23.5", tag=f"cp3{one}-cp3{one}-linux_x86_64") for one in (8, 10)]
    python = put_index(site, "/simple", [Dist("einops", "1"), *numpy])
    with pytest.raises(ConflictError) as caught:
        solve(plans.wheels("einops", pip=("numpy==1.23.5",)), python)
    assert caught.value.message == "numpy has wheels for Python 3.8 and 3.10, and the image has Python 3.11"
    assert caught.value.hint == "add --python 3.10 to the command"
    assert python in caught.value.details[0]


def test_a_page_for_another_torch_is_named(site: Site) -> None:
    page = put_pages(site, "/pages", SCATTER, hashes=True)
    python = put_index(site, "/simple", [Dist("einops", "1")])
    plan = plans.wheels("einops", pip=("torch-scatter",), cuda="12.4")
    plan = replace(plan, find_links=(page,), resolution=replace(plan.resolution, torch="2.7.1"))
    with pytest.raises(
        ConflictError, match=r"torch-scatter has wheels for torch 2\.6, and the image has torch 2\.7\.1"
    ) as caught:
        solve(plan, python)
    assert caught.value.hint == "add --torch 2.6 to the command"
