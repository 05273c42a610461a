from dataclasses import replace

import pytest

from envkit.facts.model import Build, Facts
from envkit.ground.versions import parse_constraint
from envkit.resolve.index import index
from envkit.resolve.model import Request
from envkit.resolve.resolver import resolve
from tests.unit.resolve.rows import BUILD, OS, RELEASE, build, facts, trap


def answer(request: Request, *builds: Build, **changes: object) -> tuple[str, str | None, str]:
    found = resolve(request, facts(*builds, **changes))
    return found.torch, found.cuda, found.source


def test_the_newest_torch_wins_then_the_source_then_the_cuda() -> None:
    rows = (
        build(torch="2.5.0", cuda="13.0"),
        build(source="pypi", cuda="13.0", local_version=None),
        build(cuda="12.6"),
        build(cuda="11.8"),
    )
    assert answer(Request(), *rows) == ("2.6.0", "12.6", "pytorch")


def test_a_build_nobody_saw_comes_last() -> None:
    guess = build(torch="2.7.0", confidence="inferred", cudnn=None, note="Guessed.")
    assert answer(Request(), guess, BUILD) == ("2.6.0", "12.6", "pytorch")
    found = resolve(Request(torch=parse_constraint("2.7", "--torch")), facts(guess, BUILD))
    assert found.torch == "2.7.0"
    assert "no source lists this build of torch 2.7.0; it is inferred: Guessed." in found.warnings


def test_an_advertised_build_comes_before_one_that_is_not() -> None:
    hidden = build(cuda="13.0", advertised=False)
    assert answer(Request(), hidden, BUILD) == ("2.6.0", "12.6", "pytorch")
    found = resolve(Request(cuda=parse_constraint("13.0", "--cuda")), facts(hidden, BUILD))
    assert "CUDA 13.0 for torch 2.6.0 is not advertised upstream, but the index has it" in found.warnings


def test_native_wins_at_the_same_torch_and_one_series_back_but_not_two() -> None:
    newest, near, far = build(torch="2.8.0", cuda="13.0"), build(torch="2.7.1", cuda="12.6"), build(torch="2.6.0")
    driver = Request(driver="580")
    assert answer(driver, newest, build(torch="2.8.0")) == ("2.8.0", "12.6", "pytorch")
    assert answer(driver, newest, near, far) == ("2.7.1", "12.6", "pytorch")
    assert answer(driver, newest, build(torch="2.7.0", cuda="13.0"), far) == ("2.8.0", "13.0", "pytorch")


def with_pythons(torch: str, *pythons: str) -> Build:
    return build(torch=torch, pythons=pythons)


@pytest.mark.parametrize(
    ("limit", "typed", "expected"),
    [
        (None, None, "3.11"),  # 3.12 arrives with this series
        ("3.10", None, "3.10"),
        (None, ">=3.12", "3.12"),
        ("3.10", ">=3.11", "3.11"),
        (None, "3.12", "3.12"),
    ],
)
def test_the_default_python_has_settled_and_compiles(limit: str | None, typed: str | None, expected: str) -> None:
    rows = (with_pythons("2.7.0", "3.10", "3.11", "3.12"), with_pythons("2.6.0", "3.9", "3.10", "3.11"))
    releases = {"2.7.0": replace(RELEASE, torch="2.7.0", compile_max_python=limit)}
    request = Request(python=parse_constraint(typed, "--python") if typed else None)
    assert resolve(request, facts(*rows, releases=releases)).python == expected


def test_unknown_pythons_are_null_and_the_choice_says_so() -> None:
    unknown = build(pythons=None, cuda="13.0")
    rows: Facts = facts(unknown, BUILD)
    assert resolve(Request(), rows).cuda == "12.6"
    found = resolve(Request(cuda=parse_constraint("13.0", "--cuda")), rows)
    assert (found.pythons, found.python) == (None, "3.11")
    unlisted = "the Python versions of this build are unknown; other builds of torch 2.6.0 support Python 3.11"
    assert unlisted in found.warnings


def test_a_trap_with_a_package_becomes_the_pin_that_avoids_it() -> None:
    traps = (
        trap("a", {"torch": "<2.7", "numpy": ">=2"}),
        trap("b", {"torch": ">=2.7", "setuptools": ">=82"}),
        trap("c", {"torch": "2.6.*", "cudnn": "<9.15"}, "warn"),
        trap("d", {"torch": "2.6.*", "at": "a full moon"}),
        trap("e", {"torch": "2.6.*", "gpu": "<9.0"}),
        trap("f", {"torch": "2.6.*"}, "info"),
    )
    found = resolve(Request(), facts(BUILD, traps=traps))
    assert found.pins == ("numpy<2",)
    assert found.reasons["pins"] == "T"
    assert found.warnings == ("T: Effect. Fix.",)
    assert "p" in found.sources


def test_a_release_pin_of_setuptools_is_kept() -> None:
    releases = {"2.6.0": replace(RELEASE, setuptools=">=77.0.3")}
    found = resolve(Request(), facts(BUILD, releases=releases))
    assert found.pins == ("setuptools>=77.0.3",)


def test_triton_is_null_where_the_wheel_leaves_it_out() -> None:
    releases = {"2.6.0": replace(RELEASE, compile_max_python="3.10")}
    marker = trap("triton-marker", {"torch": "2.6.*", "python": ">=3.11", "at": "the newest Python"}, "warn")
    request = Request(python=parse_constraint("3.11", "--python"))
    found = resolve(request, facts(BUILD, releases=releases, traps=(marker,)))
    assert found.triton is None
    assert found.reasons["triton"] == "torch 2.6.0 has none for Python 3.11"
    assert found.warnings == ("torch 2.6.0 has no triton for Python 3.11, so torch.compile does not work",)
    plain = resolve(request, facts(BUILD, releases=releases))
    assert plain.warnings == ("torch.compile in torch 2.6.0 does not support Python 3.11",)


def test_an_os_past_its_end_is_named() -> None:
    old = replace(OS, eol="2024-06-30")
    found = resolve(Request(), facts(BUILD, oses=(old,)))
    assert found.warnings == ("Debian 12 has had no security updates since 2024-06-30",)


def test_every_used_row_is_among_the_sources() -> None:
    found = resolve(Request(gpus=("A100",)), facts(BUILD))
    assert {"b", "r", "g", "o", "t12.6.0", "c12"} <= set(found.sources)
    assert found.rejected_count == 0


def test_the_index_knows_which_pythons_the_series_before_had() -> None:
    rows = facts(with_pythons("2.6.1", "3.10"), with_pythons("2.6.0", "3.9"), with_pythons("2.7.0", "3.12"))
    assert set(index(rows).settled("2.7.0")) == {"3.9", "3.10"}
    assert index(rows).settled("2.6.0") == ()
