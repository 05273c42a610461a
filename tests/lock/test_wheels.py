"""uv against indexes on loopback: which index, which wheel, which version, and what it says when it fails."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.assemble.wheels import item
from envkit.ground.errors import ConflictError, EngineError, EnvironmentProblem, UsageError
from envkit.ground.progress import Silent
from envkit.lock import sizes, wheels
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Wheel
from envkit.lock.previous import Previous
from envkit.plan.model import BuildPlan
from envkit.registry.download import fetch
from envkit.registry.transport import Transport
from tests.lock import plans
from tests.lock.plans import TARGET
from tests.lock.served import Dist, Site, put_index, put_pages


def solve(
    plan: BuildPlan,
    indexes: IndexLocations,
    *,
    chosen: Mapping[str, str] | None = None,
    as_of: str | None = None,
    keep: Sequence[Wheel] = (),
    update: frozenset[str] = frozenset(),
) -> tuple[Wheel, ...]:
    torch = plan.family
    previous = Previous(wheels=versions(keep), update=update)
    return wheels.solve(plan, TARGET, indexes, torch=torch, chosen=chosen or {}, as_of=as_of, previous=previous)


def versions(found: Sequence[Wheel]) -> dict[str, str]:
    return {one.name: one.version for one in found}


@pytest.mark.parametrize("sizes_told", [True, False])
def test_wheels_come_sorted_with_hash_and_size_and_nothing_is_downloaded(sizes_told: bool, site: Site) -> None:
    dists = [
        Dist("torch", "2.0", ("sympy>=1",), filling=5_000_000),
        Dist("sympy", "1.14", filling=40_000),
        Dist("zzz", "1"),
    ]
    index = put_index(site, "/simple", dists, sizes=sizes_told, dates=sizes_told)
    found = solve(plans.wheels("zzz", "torch==2.0"), IndexLocations(python_index=index))
    assert [one.name for one in found] == ["sympy", "torch", "zzz"]
    for one in found:
        _, data = site.files[f"/simple/files/{one.file}"]
        assert one.size == len(data)
        assert one.url == f"{site.url}/simple/files/{one.file}"
        assert one.source == "pypi"
        assert len(one.sha256) == 64
    assert site.sent < 1_000_000  # the large wheel was asked for its end and its length


def test_torch_comes_from_its_own_index_and_the_rest_from_the_python_index(site: Site) -> None:
    own = put_index(site, "/whl/cu126", [Dist("torch", "2.7.1+cu126", ("sympy",)), Dist("sympy", "1.13")])
    python = put_index(
        site,
        "/simple",
        [
            Dist("torch", "9.9"),
            Dist("sympy", "1.14"),
            Dist("metrics", "1", ("torch>=2", "sympy", "six")),
            Dist("six", "1"),
        ],
    )
    indexes = IndexLocations(
        torch_index=own, torch_public="https://download.pytorch.org/whl/cu126", python_index=python
    )
    plan = plans.wheels("torch==2.7.1+cu126", source="pytorch", pip=("metrics",), cuda="12.6")
    found = {one.name: one for one in solve(plan, indexes)}
    assert versions(tuple(found.values())) == {"metrics": "1", "six": "1", "sympy": "1.13", "torch": "2.7.1+cu126"}
    assert {name: one.source for name, one in found.items()} == {
        "metrics": "pypi", "six": "pypi", "sympy": "pytorch", "torch": "pytorch",
    }  # fmt: skip
    assert found["torch"].url == ("https://download.pytorch.org/whl/cu126/files/torch-2.7.1%2Bcu126-py3-none-any.whl")


@pytest.mark.parametrize("hashes", [True, False])
def test_torch_comes_from_a_flat_page_and_what_it_needs_from_the_python_index(hashes: bool, site: Site) -> None:
    dists = [Dist("torch", f"{version}+cu126", ("sympy",)) for version in ("2.6.0", "2.7.1", "2.8.0")]
    pages = put_pages(site, "/wheels/cu126", dists, hashes=hashes)
    python = put_index(site, "/simple", [Dist("torch", "9.9"), Dist("sympy", "1.14"), Dist("metrics", "1", ("torch",))])
    public = "https://download.pytorch.org/whl/cu126"
    indexes = IndexLocations(torch_pages=pages, torch_public=public, torch_index=python, python_index=python)
    plan = plans.wheels("torch==2.7.1+cu126", source="pytorch", pip=("metrics",), cuda="12.6")
    found = {one.name: one for one in solve(plan, indexes)}
    assert versions(tuple(found.values())) == {"metrics": "1", "sympy": "1.14", "torch": "2.7.1+cu126"}
    assert {name: one.source for name, one in found.items()} == {"metrics": "pypi", "sympy": "pypi", "torch": "pytorch"}
    torch, data = found["torch"], dists[1].data()
    assert (torch.sha256, torch.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert torch.url == f"{public}/torch-2.7.1%2Bcu126-py3-none-any.whl"
    assert indexes.fetch_url(torch.url) == f"{site.url}/wheels/cu126/torch-2.7.1%2Bcu126-py3-none-any.whl"


def test_a_flat_page_without_the_version_is_named(site: Site) -> None:
    pages = put_pages(site, "/wheels/cu126", [Dist("torch", "2.6.0+cu126")], hashes=True)
    python = put_index(site, "/simple", [Dist("torch", "2.7.1")])
    indexes = IndexLocations(
        torch_pages=pages, torch_public="https://download.pytorch.org/whl/cu126", python_index=python
    )
    with pytest.raises(ConflictError, match=f"no wheels of {pages} satisfy torch==2.7.1.cu126"):
        solve(plans.wheels("torch==2.7.1+cu126", source="pytorch", cuda="12.6"), indexes)


@pytest.mark.requirement("R16")
def test_a_name_in_the_other_index_never_gets_in(site: Site) -> None:
    own = put_index(site, "/whl/cu126", [Dist("torch", "2.7.1+cu126", ("triton",))])
    python = put_index(site, "/simple", [Dist("triton", "99")])
    indexes = IndexLocations(
        torch_index=own, torch_public="https://download.pytorch.org/whl/cu126", python_index=python
    )
    with pytest.raises(ConflictError, match=f"no wheels of {own} satisfy torch==2.7.1.cu126"):
        solve(plans.wheels("torch==2.7.1+cu126", source="pytorch", cuda="12.6"), indexes)


def test_what_conda_chose_holds_and_is_not_added(site: Site) -> None:
    index = put_index(
        site,
        "/simple",
        [Dist("a", "2", ("numpy>=3",)), Dist("a", "1", ("numpy>=2",)), Dist("numpy", "3"), Dist("b", "1")],
    )
    found = solve(plans.wheels("a", "b"), IndexLocations(python_index=index), chosen={"numpy": "2.4.6"})
    assert versions(found) == {"a": "1", "b": "1"}


def test_what_conda_chose_can_be_a_conflict(site: Site) -> None:
    index = put_index(site, "/simple", [Dist("a", "2", ("numpy<2",)), Dist("numpy", "1")])
    with pytest.raises(ConflictError, match=f"no wheels of {index} satisfy a") as caught:
        solve(plans.wheels("a"), IndexLocations(python_index=index), chosen={"numpy": "2.4.6"})
    assert any("numpy" in line for line in caught.value.details)


def test_constraints_hold_for_dependencies_of_both_indexes_and_ask_for_nothing(site: Site) -> None:
    own = put_index(
        site, "/whl/cu126", [Dist("torch", "2.7.1+cu126", ("sympy",)), Dist("sympy", "1.13"), Dist("sympy", "1.14")]
    )
    dists = [Dist("a", "1", ("b",)), Dist("b", "1"), Dist("b", "2"), Dist("c", "1")]
    indexes = IndexLocations(
        torch_index=own,
        torch_public="https://download.pytorch.org/whl/cu126",
        python_index=put_index(site, "/simple", dists),
    )
    plan = plans.wheels("torch==2.7.1+cu126", source="pytorch", pip=("a",), cuda="12.6")
    assert versions(solve(plan, indexes)) == {"a": "1", "b": "2", "sympy": "1.14", "torch": "2.7.1+cu126"}
    limited = replace(plan, constraints=("sympy<1.14", "b<2", "c==1"))
    assert versions(solve(limited, indexes)) == {"a": "1", "b": "1", "sympy": "1.13", "torch": "2.7.1+cu126"}
    with pytest.raises(ConflictError, match=r"no wheels of .* satisfy a") as caught:
        solve(replace(plan, constraints=("b>=3",)), indexes)
    assert any("b>=3" in line for line in caught.value.details)


def test_a_wheel_for_the_images_glibc_and_python_is_taken(site: Site) -> None:
    tags = ("cp312-cp312-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_28_x86_64", "py3-none-any")
    dists = [
        *(Dist("a", "1", tag=tag) for tag in tags),
        Dist("a", "2", tag="cp311-cp311-manylinux_2_39_x86_64"),
        Dist("a", "3", tag="cp311-cp311-manylinux_2_28_aarch64"),
        Dist("a", "4", requires_python=">=3.12"),
    ]
    (found,) = solve(plans.wheels("a"), IndexLocations(python_index=put_index(site, "/simple", dists)))
    assert found.file == "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"


def test_markers_are_the_images(site: Site) -> None:
    needs = ("x; sys_platform == 'linux'", "y; sys_platform == 'win32'", "z; platform_machine == 'aarch64'")
    dists = [Dist("a", "1", needs), Dist("x", "1"), Dist("y", "1"), Dist("z", "1")]
    found = solve(plans.wheels("a"), IndexLocations(python_index=put_index(site, "/simple", dists)))
    assert versions(found) == {"a": "1", "x": "1"}


@pytest.mark.requirement("R18")
@pytest.mark.parametrize(
    ("torch", "others", "named"),
    [
        ("2.7.1+cpu", (), r"torch 2\.7\.1\+cpu \(torch-2\.7\.1\+cpu-py3-none-any\.whl\)"),
        ("2.7.1", (), r"torch 2\.7\.1 \(torch-2\.7\.1-py3-none-any\.whl\)"),
    ],
)
def test_a_cpu_build_never_answers_a_cuda_request(torch: str, others: Sequence[str], named: str, site: Site) -> None:
    index = put_index(site, "/simple", [Dist("torch", torch, tuple(others))])
    with pytest.raises(ConflictError, match=f"CUDA 12.6 was requested, but the index returned a CPU build of {named}"):
        solve(plans.wheels("torch==2.7.1", cuda="12.6"), IndexLocations(python_index=index))


def test_a_plain_torch_with_nvidias_wheels_is_a_cuda_build(site: Site) -> None:
    dists = [Dist("torch", "2.7.1", ("nvidia-cublas-cu12",)), Dist("nvidia-cublas-cu12", "12.6")]
    index = put_index(site, "/simple", dists)
    assert len(solve(plans.wheels("torch==2.7.1", cuda="12.6"), IndexLocations(python_index=index))) == 2


def test_a_torch_without_a_local_version_is_the_file_that_the_facts_name(site: Site) -> None:
    """Up to torch 2.5.1, the wheels for aarch64 on the PyTorch index have CUDA inside and no local version."""
    plan = plans.wheels("torch==2.4.0", source="pytorch", cuda="12.4")
    named = replace(plan, resolution=replace(plan.resolution, files={"torch": "2.4.0"}))
    indexes = IndexLocations(torch_index=put_index(site, "/whl/cu124", [Dist("torch", "2.4.0")]))
    assert versions(solve(named, indexes)) == {"torch": "2.4.0"}
    with pytest.raises(ConflictError, match="the index returned a CPU build"):
        solve(plan, indexes)


def test_the_python_index_has_cuda_inside_the_wheels_up_to_torch_1_12(site: Site) -> None:
    indexes = IndexLocations(python_index=put_index(site, "/simple", [Dist("torch", "1.12.1")]))
    assert versions(solve(plans.wheels("torch==1.12.1", cuda="10.2"), indexes)) == {"torch": "1.12.1"}


def test_the_past_is_solved_as_it_was(site: Site) -> None:
    dists = [Dist("a", "1", uploaded="2025-01-01T00:00:00Z"), Dist("a", "2", uploaded="2026-01-01T00:00:00Z")]
    indexes = IndexLocations(python_index=put_index(site, "/simple", dists))
    assert versions(solve(plans.wheels("a"), indexes)) == {"a": "2"}
    assert versions(solve(plans.wheels("a"), indexes, as_of="2025-06-01T23:59:59Z")) == {"a": "1"}


def test_an_index_without_dates_cannot_solve_the_past(site: Site) -> None:
    index = put_index(site, "/simple", [Dist("a", "1")], dates=False, sizes=False)
    with pytest.raises(UsageError, match=f"--as-of: {index} does not publish upload times") as caught:
        solve(plans.wheels("a"), IndexLocations(python_index=index), as_of="2025-06-01T23:59:59Z")
    assert str(caught.value.hint).startswith("remove --as-of")


def test_kept_wheels_stay_and_the_others_move(site: Site) -> None:
    old = [Dist("a", "1", ("b",)), Dist("b", "1")]
    indexes = IndexLocations(python_index=put_index(site, "/simple", old))
    before = solve(plans.wheels("a"), indexes)
    newer = IndexLocations(python_index=put_index(site, "/newer", [*old, Dist("a", "2", ("b",)), Dist("b", "2")]))
    assert versions(solve(plans.wheels("a"), newer)) == {"a": "2", "b": "2"}
    assert versions(solve(plans.wheels("a"), newer, keep=before)) == {"a": "1", "b": "1"}
    moved = solve(plans.wheels("a"), newer, keep=before, update=frozenset({"a"}))
    assert versions(moved) == {"a": "2", "b": "1"}


def test_a_kept_wheel_gives_way_to_the_newest_version_of_an_updated_one(site: Site) -> None:
    old = [Dist("a", "1", ("b",)), Dist("b", "1"), Dist("c", "1")]
    before = solve(plans.wheels("b", "a", "c"), IndexLocations(python_index=put_index(site, "/simple", old)))
    rows = [*old, Dist("a", "2", ("b>=2",)), Dist("b", "2"), Dist("b", "3"), Dist("c", "2")]
    newer = IndexLocations(python_index=put_index(site, "/newer", rows))
    moved = solve(plans.wheels("b", "a", "c"), newer, keep=before, update=frozenset({"a"}))
    assert versions(moved) == {"a": "2", "b": "3", "c": "1"}


def test_an_updated_wheel_is_never_older_than_before(site: Site) -> None:
    old = [Dist("a", "2"), Dist("b", "1")]
    before = solve(plans.wheels("b", "a"), IndexLocations(python_index=put_index(site, "/simple", old)))
    newer = IndexLocations(python_index=put_index(site, "/newer", [*old, Dist("a", "1"), Dist("b", "2", ("a<2",))]))
    moved = solve(plans.wheels("b", "a"), newer, keep=before, update=frozenset({"a"}))
    assert versions(moved) == {"a": "2", "b": "1"}


def test_what_the_torch_index_keeps_gives_way_to_what_the_other_wheels_require(site: Site) -> None:
    torch = [Dist("torch", "2.7.1+cu126", ("sympy",)), Dist("sympy", "1.13")]
    python = [Dist("metrics", "1"), Dist("metrics", "2", ("sympy>=1.14",)), Dist("six", "1"), Dist("six", "2")]

    def indexes(folder: str, *more: Dist) -> IndexLocations:
        own = put_index(site, f"{folder}/whl/cu126", [*torch, *more])
        public = "https://download.pytorch.org/whl/cu126"
        return IndexLocations(
            torch_index=own, torch_public=public, python_index=put_index(site, f"{folder}/simple", python)
        )

    plan = plans.wheels("torch==2.7.1+cu126", source="pytorch", pip=("metrics<2", "six<2"), cuda="12.6")
    before = solve(plan, indexes("/old"))
    moved = solve(replace(plan, pip=("metrics>=2", "six")), indexes("/new", Dist("sympy", "1.14")), keep=before)
    assert versions(moved) == {"metrics": "2", "six": "1", "sympy": "1.14", "torch": "2.7.1+cu126"}


def test_source_distributions_are_not_built(site: Site) -> None:
    site.put(
        "/simple/a/",
        b'{"meta": {"api-version": "1.0"}, "name": "a", "files": [{"filename": "a-1.tar.gz", "url": "a-1.tar.gz",'
        b' "hashes": {"sha256": "' + b"0" * 64 + b'"}}]}',
        "application/vnd.pypi.simple.v1+json",
    )
    with pytest.raises(ConflictError) as caught:
        solve(plans.wheels("a"), IndexLocations(python_index=f"{site.url}/simple"))
    assert any("no usable wheels" in line or "no wheels" in line for line in caught.value.details)
    assert not any("tar.gz" in path for _, path in site.seen)


@pytest.mark.parametrize(
    "line",
    [
        "a >=>= 2",
        "-r /etc/passwd",
        "--index-url https://evil.example.com",
        "a; rm -rf /",
        "a\n--pre",
        "a @ file:///etc",
    ],
)
def test_a_requirement_is_no_option_and_no_command(line: str, site: Site) -> None:
    index = put_index(site, "/simple", [Dist("a", "1")])
    with pytest.raises(UsageError, match=r"^pip: ") as caught:
        solve(plans.wheels(line), IndexLocations(python_index=index))
    assert caught.value.exit_code == 2
    assert site.seen == []


def test_an_index_that_is_away_is_named_without_its_login(site: Site) -> None:
    site.login = "me:s3cret"
    put_index(site, "/simple", [Dist("a", "1")])
    with pytest.raises((EnvironmentProblem, ConflictError)) as caught:
        solve(plans.wheels("a"), IndexLocations(python_index=f"{site.url.replace('//', '//me:wrong-pw@')}/simple"))
    told = str((caught.value.message, caught.value.details, caught.value.hint))
    assert f"{site.url}/simple" in told
    assert "wrong-pw" not in told


def test_a_login_reaches_the_index_and_no_lock(site: Site) -> None:
    site.login = "me:s3cret"
    put_index(site, "/simple", [Dist("a", "1", ("b",)), Dist("b", "1")], sizes=False, dates=False)
    found = solve(plans.wheels("a"), IndexLocations(python_index=f"{site.url.replace('//', '//me:s3cret@')}/simple"))
    assert versions(found) == {"a": "1", "b": "1"}
    assert "s3cret" not in str([one.to_json() for one in found])
    assert all(one.url.startswith(f"{site.url}/simple/files/") for one in found)


def test_a_netrc_file_is_a_login_too(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.login = "me:s3cret"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    index = put_index(site, "/simple", [Dist("a", "1")], sizes=False, dates=False)
    assert versions(solve(plans.wheels("a"), IndexLocations(python_index=index))) == {"a": "1"}


def test_wheels_are_downloaded_with_the_logins_that_the_lock_was_solved_with(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.login = "me:s3cret"
    index = put_index(site, "/simple", [Dist("a", "1")], sizes=False, dates=False)
    indexes = IndexLocations(python_index=index.replace("//", "//me:s3cret@"))
    wheels = solve(plans.wheels("a"), indexes)

    def fetched(indexes: IndexLocations, folder: Path) -> int:
        with Transport() as transport:
            items = [item(wheel, indexes, transport) for wheel in wheels]
            return len(fetch(items, folder, transport.policy, Silent().advance))

    assert fetched(indexes, tmp_path / "index") == 1
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert fetched(IndexLocations(python_index=index), tmp_path / "netrc_file") == 1
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(EngineError, match="answers 401"):
        fetched(IndexLocations(python_index=index), tmp_path / "nobody")


class TestSizes:
    def test_a_server_without_head_is_asked_for_one_byte(self, site: Site) -> None:
        site.put("/a.whl", b"x" * 4321)
        site.no_head = True
        assert sizes.ask([f"{site.url}/a.whl"], index=site.url, ca_bundle=None) == {f"{site.url}/a.whl": 4321}

    @pytest.mark.requirement("R19")
    def test_passing_trouble_is_tried_again(self, site: Site) -> None:
        site.put("/a.whl", b"x" * 10)
        site.faults["/a.whl"] = [503, 429]
        assert sizes.ask([f"{site.url}/a.whl"], index=site.url, ca_bundle=None) == {f"{site.url}/a.whl": 10}
        assert site.seen == [("HEAD", "/a.whl")] * 3

    def test_trouble_that_stays_ends(self, site: Site) -> None:
        site.faults["/a.whl"] = [503] * 20
        with pytest.raises(EnvironmentProblem, match=r"a\.whl: HTTP 503"):
            sizes.ask([f"{site.url}/a.whl"], index=site.url, ca_bundle=None)
        assert len(site.seen) == 4

    @pytest.mark.parametrize("status", [401, 403, 404])
    def test_a_refusal_is_not_tried_again(self, status: int, site: Site) -> None:
        site.faults["/a.whl"] = [status] * 20
        with pytest.raises(EnvironmentProblem, match=f"HTTP {status}"):
            sizes.ask([f"{site.url}/a.whl"], index=site.url, ca_bundle=None)
        assert len(site.seen) == 1

    def test_a_login_goes_to_the_indexs_own_host_alone(self, site: Site) -> None:
        site.put("/a.whl", b"x" * 10)
        site.login = "me:pw"
        other = f"https://me:pw@127.0.0.2/simple at {base64.b64encode(b'me:pw').decode()}"
        with pytest.raises(EnvironmentProblem, match="HTTP 401"):
            sizes.ask([f"{site.url}/a.whl"], index=other, ca_bundle=None)

    @pytest.mark.requirement("R9")
    def test_an_index_outside_leads_to_no_file_inside(self, site: Site) -> None:
        site.put("/a.whl", b"x" * 10)
        for url in (f"{site.url}/a.whl", "https://169.254.169.254/a.whl", "https://0x7f.1/a.whl"):
            with pytest.raises(EnvironmentProblem, match="refused"):
                sizes.ask([url], index="https://8.8.8.8/simple", ca_bundle=None)
        assert not site.seen

    @pytest.mark.requirement("R55")
    def test_a_redirect_takes_no_login_along(self, site: Site) -> None:
        site.put("/b.whl", b"x" * 10)
        there = site.url.replace("127.0.0.1", "localhost")
        site.redirects["/a.whl"] = f"{there}/b.whl"
        index = site.url.replace("://", "://me:pw@")
        assert sizes.ask([f"{site.url}/a.whl"], index=index, ca_bundle=None) == {f"{site.url}/a.whl": 10}
        assert [bool(one) for one in site.logins] == [True, False]

    def test_a_redirect_to_the_machines_metadata_is_not_followed(self, site: Site) -> None:
        site.redirects["/a.whl"] = "http://169.254.169.254/latest"
        with pytest.raises(EnvironmentProblem, match=r"redirects to http://169\.254\.169\.254/latest, "):
            sizes.ask([f"{site.url}/a.whl"], index=site.url, ca_bundle=None)


@pytest.mark.long  # uv tries again for some seconds
def test_an_index_that_is_away_is_one_line_with_the_cause() -> None:
    indexes = IndexLocations(python_index="http://127.0.0.1:9/simple")
    with pytest.raises(EnvironmentProblem) as caught:
        solve(plans.wheels("a"), indexes)
    assert caught.value.message.startswith("no answer from http://127.0.0.1:9/simple: ")
    assert "refused" in caught.value.message
    assert caught.value.details == ()
