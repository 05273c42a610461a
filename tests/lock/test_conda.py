"""The conda solver against channels on loopback: priority, variants, time, and what it says when it fails."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from envkit.ground.errors import ConflictError, EnvironmentProblem, UsageError
from envkit.ground.progress import Silent
from envkit.lock import conda
from envkit.lock.base import nothing
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import CondaPackage, Lock, LockedBase, moves_between
from envkit.lock.previous import Previous
from envkit.lock.solve import Options, lock_plan
from envkit.plan.model import BuildPlan
from tests.lock.plans import VIRTUAL, cpu, cuda
from tests.lock.served import Dist, Pkg, Site, put_channel, put_index

PYTHON = Pkg("python", "3.11.7", build="h0_0")


def solve(
    plan: BuildPlan,
    site: Site,
    *specs: str,
    as_of: str | None = None,
    keep: Sequence[CondaPackage] = (),
    update: frozenset[str] = frozenset(),
    virtual: tuple[str, ...] = VIRTUAL,
) -> tuple[CondaPackage, ...]:
    previous = Previous(conda=tuple(keep), update=update)
    return conda.solve(plan, specs, virtual, IndexLocations(conda_alias=site.url), as_of=as_of, previous=previous)


def test_a_constraint_that_a_conda_package_breaks_is_named_with_both_versions(site: Site) -> None:
    packages = [PYTHON, Pkg("pip", "26"), Pkg("numpy", "2.4.6", depends=("python",)), Pkg("lib", "1")]
    put_channel(site, "conda-forge", packages)
    plan = replace(cpu("numpy", "lib"), constraints=("numpy<2", "lib<1"), pip=(), system=())
    plan = replace(plan, resolution=replace(plan.resolution, source="conda-forge", python="3.11"))
    base = LockedBase(kind="registry", reference="docker.io/library/debian:bookworm-slim", digest=f"sha256:{'d' * 64}")

    def locked(limits: tuple[str, ...]) -> Lock:
        return lock_plan(
            replace(plan, constraints=limits),
            IndexLocations(conda_alias=site.url),
            Options(glibc="2.36", base="none"),
            resolve_base=lambda _: base,
            reporter=Silent(),
        )

    with pytest.raises(ConflictError, match=r"the constraint numpy<2 does not allow the conda package numpy 2\.4\.6"):
        locked(("numpy<2", "lib<1"))
    # `lib` of conda is not a Python package, so it is another one than the constraint's.
    assert dict(locked(("numpy>=2", "lib<1")).request)["constraints"] == ("numpy>=2", "lib<1")


def test_a_kept_conda_package_gives_way_to_what_the_wheels_require(site: Site) -> None:
    common = [PYTHON, Pkg("pip", "26"), Pkg("six", "1")]
    plan = replace(cpu("numpy", "six"), constraints=(), pip=("metrics",), system=())
    plan = replace(plan, resolution=replace(plan.resolution, source="conda-forge", python="3.11"))

    def locked(folder: str, metrics: Dist, *numpys: str, old: Lock | None = None) -> Lock:
        rows = [Pkg("numpy", version, depends=("python",)) for version in numpys]
        put_channel(site, "conda-forge", [*common, *rows])
        return lock_plan(
            plan,
            IndexLocations(conda_alias=site.url, python_index=put_index(site, f"/{folder}/simple", [metrics])),
            Options(glibc="2.36", base="none", old=old),
            resolve_base=lambda _: nothing(),
            reporter=Silent(),
        )

    before = locked("before", Dist("metrics", "1", ("numpy",)), "1.26")
    same = locked("same", Dist("metrics", "1", ("numpy",)), "1.26", "2.4", old=before)
    assert moves_between(before, same) == ()
    after = locked("after", Dist("metrics", "2", ("numpy>=2",)), "1.26", "2.4", old=before)
    assert [str(move) for move in moves_between(before, after)] == ["metrics 1 -> 2", "numpy 1.26 0 -> 2.4 0"]


def test_channels_below_a_folder_of_a_mirror_have_their_public_urls(site: Site) -> None:
    put_channel(site, "anaconda/cloud/conda-forge", [Pkg("zlib", "1.3")])
    for alias in (f"{site.url}/anaconda/cloud", f"{site.url}/anaconda/cloud/"):
        (found,) = conda.solve(cpu(), ("zlib",), VIRTUAL, IndexLocations(conda_alias=alias))
        assert (found.name, found.channel) == ("zlib", "conda-forge")
        assert found.url == "https://conda.anaconda.org/conda-forge/linux-64/zlib-1.3-0.conda"


def test_packages_come_sorted_with_public_urls_hashes_and_sizes(site: Site) -> None:
    put_channel(
        site,
        "conda-forge",
        [
            PYTHON,
            Pkg("zlib", "1.3"),
            Pkg("six", "1.17", ("python >=3.9",), "py_0", "noarch", "python", size=77),
            Pkg("old", "1"),
        ],
    )
    found = solve(cpu(), site, "zlib", "six", "python=3.11")
    assert [one.name for one in found] == ["python", "six", "zlib"]
    six = found[1]
    assert six.url == "https://conda.anaconda.org/conda-forge/noarch/six-1.17-py_0.conda"
    assert (six.channel, six.subdir, six.noarch, six.size, six.depends) == (
        "conda-forge", "noarch", "python", 77, ("python >=3.9",),
    )  # fmt: skip
    assert len(six.sha256) == 64


@pytest.mark.requirement("R16")
def test_the_first_channel_wins_even_with_a_lower_version(site: Site) -> None:
    put_channel(site, "mine", [Pkg("tool", "1.0")])
    put_channel(site, "conda-forge", [Pkg("tool", "9.0")])
    (found,) = solve(cpu(channels=("mine", "conda-forge")), site, "tool")
    assert (found.version, found.channel) == ("1.0", "mine")
    assert found.url == "https://conda.anaconda.org/mine/linux-64/tool-1.0-0.conda"


@pytest.mark.requirement("R16")
def test_a_package_of_the_first_channel_is_never_completed_from_the_second(site: Site) -> None:
    put_channel(site, "mine", [Pkg("tool", "1.0")])
    put_channel(site, "conda-forge", [Pkg("tool", "9.0")])
    with pytest.raises(ConflictError, match="no conda packages of mine, conda-forge satisfy the plan"):
        solve(cpu(channels=("mine", "conda-forge")), site, "tool>=2")


def test_the_machine_is_the_images(site: Site) -> None:
    put_channel(
        site, "conda-forge", [Pkg("tool", "1"), Pkg("tool", "2", ("__glibc >=2.39",)), Pkg("g", "1", ("__cuda",))]
    )
    assert solve(cpu(), site, "tool")[0].version == "1"
    newer = ("__glibc=2.39=0", *(one for one in VIRTUAL if "glibc" not in one))
    assert solve(cpu(), site, "tool", virtual=newer)[0].version == "2"
    with pytest.raises(ConflictError):
        solve(cpu(), site, "g")
    assert solve(cpu(), site, "g", virtual=("__cuda=12.6=0", *VIRTUAL))[0].name == "g"


@pytest.mark.requirement("R18")
@pytest.mark.parametrize("spec", ["pytorch=2.7.1", "pytorch=2.7.1=cuda*"])
def test_a_cpu_build_never_answers_a_cuda_request(spec: str, site: Site) -> None:
    put_channel(site, "conda-forge", [Pkg("pytorch", "2.7.1", build="cpu_generic_py311_0")])
    with pytest.raises(ConflictError) as caught:
        solve(cuda(), site, spec)
    assert caught.value.exit_code == 3
    assert caught.value.message == (
        "CUDA 12.6 was requested, but conda-forge returned a CPU build of pytorch 2.7.1 (cpu_generic_py311_0)"
    )
    assert "--source pytorch" in str(caught.value.hint)


def test_a_cpu_companion_of_a_cuda_torch_is_named(site: Site) -> None:
    builds = [Pkg("pytorch", "2.7.1", build="cuda126_py311_0"), Pkg("torchvision", "0.22.1", build="cpu_py311_0")]
    put_channel(site, "conda-forge", builds)
    with pytest.raises(ConflictError, match=r"a CPU build of torchvision 0\.22\.1 \(cpu_py311_0\)"):
        solve(cuda(), site, "pytorch=2.7.1=cuda*", "torchvision=0.22.1")


def test_the_past_is_solved_as_it_was(site: Site) -> None:
    put_channel(
        site, "conda-forge", [Pkg("tool", "1", uploaded=1735689600000), Pkg("tool", "2", uploaded=1767225600000)]
    )
    assert solve(cpu(), site, "tool")[0].version == "2"
    assert solve(cpu(), site, "tool", as_of="2025-06-01T23:59:59Z")[0].version == "1"
    assert solve(cpu(), site, "tool", as_of="2026-01-01T00:00:00Z")[0].version == "2"
    with pytest.raises(ConflictError) as caught:
        solve(cpu(), site, "tool", as_of="2020-01-01T00:00:00Z")
    assert any("cutoff" in line for line in caught.value.details)


def test_kept_packages_stay_and_the_others_move(site: Site) -> None:
    old = [Pkg("a", "1", ("b >=1",)), Pkg("b", "1")]
    put_channel(site, "conda-forge", old)
    before = solve(cpu(), site, "a", "b")
    put_channel(site, "conda-forge", [*old, Pkg("a", "2", ("b >=1",)), Pkg("b", "2")])
    assert [one.version for one in solve(cpu(), site, "a", "b", keep=before)] == ["1", "1"]
    moved = solve(cpu(), site, "a", "b", keep=before, update=frozenset({"a"}))
    assert [(one.name, one.version) for one in moved] == [("a", "2"), ("b", "1")]
    assert moved[1] == before[1]


def test_a_kept_package_gives_way_where_the_moved_one_needs_it(site: Site) -> None:
    old = [Pkg("a", "1", ("b >=1",)), Pkg("b", "1")]
    put_channel(site, "conda-forge", old)
    before = solve(cpu(), site, "a>=1")
    put_channel(site, "conda-forge", [*old, Pkg("a", "2", ("b >=2",)), Pkg("b", "2")])
    for specs, update in ((("a>=2",), frozenset[str]()), (("b", "a"), frozenset({"a"}))):
        moved = solve(cpu(), site, *specs, keep=before, update=update)
        assert [(one.name, one.version) for one in moved] == [("a", "2"), ("b", "2")]


def test_an_updated_package_is_never_older_than_before(site: Site) -> None:
    old = [Pkg("a", "2"), Pkg("b", "1")]
    put_channel(site, "conda-forge", old)
    before = solve(cpu(), site, "b", "a")
    put_channel(site, "conda-forge", [*old, Pkg("a", "1"), Pkg("b", "2", ("a <2",))])
    moved = solve(cpu(), site, "b", "a", keep=before, update=frozenset({"a"}))
    assert [(one.name, one.version) for one in moved] == [("a", "2"), ("b", "1")]


def test_torch_is_the_name_of_condas_pytorch_too(site: Site) -> None:
    old = [Pkg("pytorch", "2.6.0", ("libtorch 2.6.0",)), Pkg("libtorch", "2.6.0"), Pkg("mkl", "1")]
    put_channel(site, "conda-forge", old)
    before = solve(cpu(), site, "pytorch", "mkl")
    new = [Pkg("pytorch", "2.7.1", ("libtorch 2.7.1",)), Pkg("libtorch", "2.7.1"), Pkg("mkl", "2")]
    put_channel(site, "conda-forge", [*old, *new])
    moved = solve(cpu(), site, "pytorch", "mkl", keep=before, update=frozenset({"torch"}))
    assert {one.name: one.version for one in moved} == {"pytorch": "2.7.1", "libtorch": "2.7.1", "mkl": "1"}


@pytest.mark.requirement("R14")
@pytest.mark.parametrize("lacking", [Pkg("tool", "1", sha256=""), Pkg("tool", "1", size=None)])
def test_a_channel_without_hash_or_size_cannot_be_locked(lacking: Pkg, site: Site) -> None:
    put_channel(site, "conda-forge", [lacking])
    with pytest.raises(EnvironmentProblem, match="has no SHA-256 or no size for tool 1; a lock needs both"):
        solve(cpu(), site, "tool")


def test_what_is_no_spec_is_the_users_fault(site: Site) -> None:
    put_channel(site, "conda-forge", [PYTHON])
    with pytest.raises(UsageError, match="conda: "):
        solve(cpu(), site, "python >=>= 3; rm -rf /")


def test_a_channel_that_is_away_is_named_with_the_setting(site: Site) -> None:
    with pytest.raises(EnvironmentProblem, match=f"no answer from {site.url} .conda-forge.") as caught:
        solve(cpu(), site, "python")
    assert caught.value.exit_code == 9
    assert caught.value.hint == "export ENVKIT_CONDA_CHANNEL_ALIAS=URL to use a mirror, and run again"


def test_passing_trouble_is_tried_again(site: Site) -> None:
    put_channel(site, "conda-forge", [Pkg("tool", "1")])
    site.faults["/conda-forge/linux-64/repodata.json"] = [503, 503]
    assert solve(cpu(), site, "tool")[0].version == "1"
    assert [path for _, path in site.seen].count("/conda-forge/linux-64/repodata.json") >= 3
