from dataclasses import replace

import pytest

from envkit.facts.model import Build
from envkit.ground.versions import Constraint, parse_constraint
from envkit.resolve import rules
from envkit.resolve.gpus import Card
from envkit.resolve.index import index
from envkit.resolve.rules import Sieve
from envkit.resolve.wanted import Wanted
from tests.unit.resolve.rows import BUILD, GPU, OS, build, cudnn, facts, gpu


def sieve(wanted: Wanted, *builds: Build) -> Sieve:
    return Sieve(wanted, index(facts(*(builds or (BUILD,)))))


def like(text: str) -> Constraint:
    return parse_constraint(text, "--x")


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (Wanted(torch=like("2.6")), True),
        (Wanted(torch=like("2.7")), False),
        (Wanted(cuda=like("12.*")), True),
        (Wanted(cuda=like("<12")), False),
        (Wanted(cudnn=like("9.5")), True),
        (Wanted(cudnn=like("9.1")), False),
        (Wanted(python=like(">=3.11")), True),
        (Wanted(python=like("3.12")), False),
        (Wanted(platform="linux-64"), True),
        (Wanted(platform="linux-aarch64"), False),
        (Wanted(source="pytorch"), True),
        (Wanted(source="pypi"), False),
        (Wanted(scope=frozenset({"pypi"})), False),
        (Wanted(cpu=False), True),
        (Wanted(cpu=True), False),
        (Wanted(driver="560.28.03"), True),
        (Wanted(driver="525.60.13"), True),
        (Wanted(driver="520.61.05"), False),
        (Wanted(os=OS), True),
        (Wanted(os=OS, wheels=True), True),
    ],
)
def test_each_constraint_alone(wanted: Wanted, fits: bool) -> None:
    assert rules.fits(BUILD, sieve(wanted)) is fits


def test_an_unknown_cudnn_satisfies_no_constraint() -> None:
    row = build(cudnn=None)
    assert not rules.fits(row, sieve(Wanted(cudnn=like(">=1")), row))


def test_a_cuda_without_a_driver_row_is_never_offered() -> None:
    row = build(cuda="12.9")
    assert not rules.fits(row, sieve(Wanted(), row))


def test_wheels_want_the_python_of_the_os() -> None:
    row = build(pythons=("3.10", "3.12"))
    assert not rules.fits(row, sieve(Wanted(os=OS, wheels=True), row))
    conda = build(source="conda-forge", channels=("conda-forge",))
    assert not rules.fits(conda, sieve(Wanted(os=OS, wheels=True), conda))


def test_where_the_glibc_is_not_known_the_os_must_be_newer_than_any_known_need() -> None:
    unknown = build(glibc=None)
    old = replace(OS, glibc="2.17")
    assert rules.fits(unknown, sieve(Wanted(os=OS), unknown, BUILD))
    assert not rules.fits(unknown, sieve(Wanted(os=old), unknown, BUILD))
    assert rules.fits(build(glibc="2.17"), sieve(Wanted(os=old), build(glibc="2.17")))


@pytest.mark.parametrize(
    ("capability", "archs", "ptx", "kind"),
    [
        ("8.0", ("7.0", "8.0"), (), "cubin"),
        ("8.9", ("8.0", "8.6"), (), "cubin"),  # an equal or lower minor of the same major
        ("8.0", ("8.6",), (), None),  # a cubin does not run on a lower minor
        ("9.0", ("8.0",), (), None),  # nor on another major
        ("9.0", ("8.0",), ("8.0",), "ptx"),
        ("7.0", ("8.0",), ("8.0",), None),  # PTX is not compiled backwards
        ("8.0", None, ("7.0",), "unknown"),  # an arch list that is not known refuses nothing
        ("10.0", None, (), "unknown"),
        ("10.0", ("9.0",), (), None),
        ("10.3", ("10.0",), (), "cubin"),
        ("12.0", ("10.0",), (), None),  # both are Blackwell, and not the same major
    ],
)
def test_code_for_a_gpu(capability: str, archs: tuple[str, ...] | None, ptx: tuple[str, ...], kind: str | None) -> None:
    assert rules.code(build(archs=archs, ptx=ptx), gpu(capability=capability, first_cuda="11.0")) == kind


def test_ptx_is_no_help_where_the_toolkit_does_not_know_the_gpu() -> None:
    blackwell = gpu(capability="12.0", first_cuda="12.8")
    assert rules.code(build(cuda="11.8", archs=("3.7", "9.0"), ptx=("3.7",)), blackwell) is None


def test_a_toolkit_after_the_last_one_of_a_gpu_is_refused() -> None:
    volta = gpu(capability="7.0", last_cuda="12")
    assert rules.code(build(cuda="12.6"), volta) == "cubin"
    assert rules.code(build(cuda="13.0"), volta) is None


def test_ptx_wants_the_native_driver() -> None:
    row = build(archs=("8.0",), ptx=("8.0",))
    hopper = Card("H100", gpu(capability="9.0", first_cuda="11.8", min_driver_branch=520))
    assert rules.fits(row, sieve(Wanted(cards=(hopper,)), row))
    assert rules.fits(row, sieve(Wanted(cards=(hopper,), driver="560.28.03"), row))
    assert not rules.fits(row, sieve(Wanted(cards=(hopper,), driver="535.54.03"), row))


@pytest.mark.parametrize(
    ("driver", "drives"), [("449.0", False), ("450.80.02", True), ("580.95.05", True), ("590.48.01", False)]
)
def test_a_driver_knows_a_gpu_from_one_branch_to_another(driver: str, drives: bool) -> None:
    assert rules.driven(gpu(last_driver_branch=580), driver) is drives


def test_cudnn_drops_old_gpus() -> None:
    rows = (
        cudnn("9.5.0", "12", "5.0", "7.0", "8.0"),
        cudnn("9.17.0", "12", "7.5+", "8.0"),
        cudnn("9.17.0", "13", "7.5"),
    )
    known = index(facts(BUILD, cudnns=rows))
    volta, turing = gpu(capability="7.0"), gpu(capability="7.5")
    assert rules.cudnn_runs(build(cudnn="9.5.1.17"), volta, known)
    assert not rules.cudnn_runs(build(cudnn="9.17.1.4"), volta, known)
    assert rules.cudnn_runs(build(cudnn="9.17.1.4"), turing, known)
    assert rules.cudnn_runs(build(cudnn=None), volta, known)  # it may be any: that is worth a warning, no refusal
    assert rules.cudnn_doubted(build(cudnn=None), volta, known)
    assert not rules.cudnn_doubted(build(cudnn=None), turing, known)
    assert rules.cudnn_runs(build(cudnn="8.9.2"), volta, known)  # no row so old: nothing speaks against it


def test_driver_needs() -> None:
    needs = index(facts(BUILD)).needs
    assert (needs["12.6"].native, needs["12.6"].minimum) == ("560.28.03", "525.60.13")  # of the first 12.6 release
    assert needs["12.6"].mode("560.28.03") == "native"
    assert needs["12.6"].mode("535.54.03") == "minor-compatible"
    assert needs["12.6"].mode("470.57.02") is None
    assert set(needs["12.6"].refs) == {"t12.6.0", "c12"}
    assert needs["13.0"].mode("580") == "minor-compatible"  # a branch alone counts as older than its releases


def test_auto_means_wheels_unless_none_has_the_versions() -> None:
    conda = build(torch="2.7.0", source="conda-forge", glibc="2.17")
    known = index(facts(BUILD, conda))
    assert rules.scoped(Wanted(), known).scope == frozenset(("pytorch", "pypi"))
    assert rules.scoped(Wanted(torch=like("2.7")), known).scope is None
    assert rules.scoped(Wanted(source="conda-forge"), known).scope is None
    # The machine does not decide: a card no wheel runs on leaves auto at wheels.
    assert rules.scoped(Wanted(cards=(Card("x", gpu(capability="12.0")),)), known).scope == frozenset(
        ("pytorch", "pypi")
    )
    assert GPU.capability == "8.0"


def test_an_os_exists_for_its_platforms() -> None:
    row = build(platform="linux-aarch64")
    assert not rules.fits(row, sieve(Wanted(os=OS), row))
    assert rules.fits(row, sieve(Wanted(os=replace(OS, platforms=("linux-aarch64",))), row))


def test_the_index_is_made_once_for_the_same_facts() -> None:
    rows, others = facts(BUILD), facts(BUILD)
    first = index(rows)
    assert index(rows) is first
    assert index(others) is not first
    assert index(others).facts is others
