"""The questions: what the file promises, who is first, and what the checks call right."""

import json
from pathlib import Path

import pytest

from benchmarks.peers import checks, fixtures
from benchmarks.peers.__main__ import PAGE, RESULTS
from benchmarks.peers.model import OWN, Ran, Result, faster_by, load, rank, well_ranked
from benchmarks.peers.page import Run, page, summary

RIGHT = ""


def result(steps: int, seconds: float | None = 1.0, wrong: str = RIGHT) -> Result:
    return Result(steps, seconds, wrong)


def test_there_are_24_questions_and_every_name_in_them_exists() -> None:
    tools, questions = load()
    assert len(questions) == 24
    assert all(tool.source for tool in tools)
    assert {tool.name for tool in tools} >= {name for one in questions for name in one.answers}
    for question in questions:
        assert callable(getattr(fixtures, question.files))
        assert any(not answer.unrun for answer in question.answers.values()) == bool(question.check)
        assert not question.check or callable(getattr(checks, question.check))


def test_a_loss_says_what_is_missing() -> None:
    found = Run.read(json.loads(RESULTS.read_text())).ranks()
    _, questions = load()
    assert [one.id for one in questions if found[one.id] in {"behind", "nobody"} and not one.lacks] == []


def test_the_page_is_the_one_of_the_kept_results() -> None:
    tools, questions = load()
    assert PAGE.read_text() == page(tools, questions, Run.read(json.loads(RESULTS.read_text())))


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (result(1), result(2), "first"),
        (result(2), result(1), "behind"),
        (result(1), result(1), "equal"),
        (result(1, wrong="no"), result(3), "behind"),
        (result(3), result(1, wrong="no"), "alone"),
        (result(1, wrong="no"), result(1, wrong="no"), "nobody"),
        (result(1, 4.0), result(1, 1.0), "behind"),  # four times, and three seconds more
        (result(1, 0.4), result(1, 0.1), "equal"),  # a person does not notice
        (result(1, 1.0), result(1, 4.0), "first"),
        (result(1), result(1, None), "equal"),  # it could not be run: right, with its fewest commands
        (result(3, None), result(1, None), "behind"),
        (None, result(2), "behind"),
        (None, result(2, wrong="no"), "nobody"),
    ],
)
def test_place(own: Result | None, other: Result, expected: str) -> None:
    assert rank({**({OWN: own} if own else {}), "peer": other}) == expected


def test_a_faster_tool_is_named_however_little_it_is() -> None:
    rows = {OWN: result(1, 0.2), "uv": result(1, 0.1), "slow": result(1, 0.3), "more": result(2, 0.01)}
    assert rank(rows) == "equal"
    assert faster_by(rows) == ("uv", 2.0)
    assert faster_by({OWN: result(1, 0.1), "uv": result(1, 0.2), "wrong": result(1, 0.05, wrong="no")}) is None
    assert faster_by({OWN: result(1, None), "uv": result(1, 0.1)}) is None
    assert faster_by({"uv": result(1, 0.1)}) is None


def test_the_table_says_how_much_faster_another_tool_is() -> None:
    _, questions = load()
    run = Run.read(json.loads(RESULTS.read_text()))
    rows = {row[0]: row[3] for row in summary(questions, run)}
    for question in questions:
        found = faster_by(run.results[question.id])
        said = f"; {found[0]} is {found[1]:.1f}x faster" if found else ""
        assert rows[question.asks].endswith(said)
        assert ("faster" in rows[question.asks]) is (found is not None)


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (3, "because CUDA 12.4 needs driver 525.60.13 or newer", ""),
        (0, "driver >=525.60.13", "exit code 0: driver >=525.60.13"),
        (3, "error: no build", "exit code 3: error: no build"),
    ],
)
def test_a_driver_is_refused_with_the_lowest_one(tmp_path: Path, code: int, output: str, expected: str) -> None:
    assert checks.refuses_driver(checks.Given(tmp_path, [Ran(code, output)])) == expected


def test_a_definition_has_what_the_conda_file_has(tmp_path: Path) -> None:
    fixtures.conda_file(tmp_path)
    given = checks.Given(tmp_path, [Ran(0, "")])
    assert checks.reads_conda_file(given) == "image.yaml lacks 2.4.1, 12.4, scipy, einops"
    (tmp_path / "image.yaml").write_text("torch: 2.4.1\ncuda: 12.4\nconda: [scipy]\npip: [einops]\n")
    assert checks.reads_conda_file(given) == ""


def test_the_interface_and_its_variable_are_named(tmp_path: Path) -> None:
    fixtures.nccl_log(tmp_path)
    said = "NCCL uses docker0; set NCCL_SOCKET_IFNAME=eth0"
    assert checks.names_interface(checks.Given(tmp_path, [Ran(0, said)])) == ""
    assert checks.names_interface(checks.Given(tmp_path, [Ran(0, "timeout")])) != ""


def test_only_the_right_other_tools_count() -> None:
    assert rank({OWN: result(2), "quick and wrong": result(1, wrong="no"), "slow": result(3)}) == "first"
    assert rank({OWN: result(1, 5.0), "not run": result(1, None), "quick": result(1, 0.5)}) == "behind"
    assert well_ranked(["alone", "first", "equal", "behind", "nobody"]) == 3


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("torch==2.4.1+cu124", ""),
        ("pip install torch==2.4.1 --index-url https://wheels.example.com/whl/cu121", ""),
        ("torch==2.5.1+cu121", "it is torch 2.5.1"),
        ("torch==2.4.1+cu129", "torch 2.4.1+cu129 does not exist"),
        ("torch==2.4.1+cpu", "computes on the CPU"),
        ("pip install torch", "it names no wheel"),
    ],
)
def test_the_wheel_that_an_answer_names_is_held_to_the_facts(tmp_path: Path, output: str, expected: str) -> None:
    assert checks.fitting_wheel(checks.Given(tmp_path, [Ran(0, output)])) == expected


def test_a_lock_has_every_package_with_a_hash(tmp_path: Path) -> None:
    fixtures.requirements(tmp_path)
    assert checks.locked(checks.Given(tmp_path, [Ran(1, "error: no")])) == "no file has them all: error: no"
    rows = [f"{name}=={version} --hash=sha256:" for name, version in fixtures.REQUIREMENTS.items()]
    (tmp_path / "lock").write_text("\n".join(f"{row}{number:064x}" for number, row in enumerate(rows)))
    assert checks.locked(checks.Given(tmp_path, [Ran(0, "")])) == ""
    (tmp_path / "lock").write_text("\n".join(f"{row}{0:064x}" for row in rows))  # one hash for all
    assert checks.locked(checks.Given(tmp_path, [Ran(0, "")])) != ""


def test_the_packages_of_an_image_are_all_in_the_answer(tmp_path: Path) -> None:
    lines = [f"python {name} {version}" for name, version in fixtures.PACKAGES.items()]
    assert checks.lists_packages(checks.Given(tmp_path, [Ran(0, "\n".join(lines))])) == ""
    assert checks.lists_packages(checks.Given(tmp_path, [Ran(0, "\n".join(lines[1:]))])) == "it does not list torch"


def test_a_model_fits_in_one_precision_and_not_in_the_other(tmp_path: Path) -> None:
    assert checks.model_fits(checks.Given(tmp_path, [Ran(0, "  ❌  FP32 : 37\n  ✅  FP16 : 18\n")])) == ""
    assert checks.model_fits(checks.Given(tmp_path, [Ran(0, "  ❌  FP32 : 37\n  ❌  FP16 : 18\n")])) != ""
    assert checks.model_fits(checks.Given(tmp_path, [Ran(0, "")])) == "it says nothing"


def test_the_answer_for_a_cluster_is_held_to_an_exhaustive_search(tmp_path: Path) -> None:
    fixtures.inventory(tmp_path)

    def images(*picks: tuple[str, str]) -> Ran:
        return Ran(
            0, json.dumps({"images": [{"resolution": {"torch": one[0], "local_version": one[1]}} for one in picks]})
        )

    assert checks.fewest_images(checks.Given(tmp_path, [images(("2.10.0", "+cu128"))])) == ""
    two = [images(("2.10.0", "+cu128"), ("2.9.1", "+cu128"))]
    assert checks.fewest_images(checks.Given(tmp_path, two)).startswith("2 images instead of 1")
    assert "served: [True, True, False]" in checks.fewest_images(checks.Given(tmp_path, [images(("2.7.1", "+cu126"))]))
