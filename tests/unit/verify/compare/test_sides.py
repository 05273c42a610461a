from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError, IntegrityError, UsageError, VerificationError
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.verify.compare.launches import LAUNCH, Subject, gather
from envkit.verify.compare.result import compared, takes_turns
from envkit.verify.compare.sides import Side, disagreements, hold_together, read_side
from envkit.verify.driver import Options
from tests.support.judging import Replay, document, inspected, observation, plan, printed
from tests.support.launches import NOISY, record, timed

MADE = plan(cuda=None)


def folder(path: Path, *values: float, hour: int = 0, step: int = 1, **changed: Any) -> Path:
    path.mkdir()
    for place, value in enumerate(values):
        tree = record(value, **changed)
        tree["run"]["started"] = f"2026-01-01T{hour + step * place:02d}:00:00Z"
        write(tree, path / f"{place}.json")
    return path


def write(tree: dict[str, Any], path: Path) -> None:
    from envkit.verify.record import seal  # noqa: PLC0415 - beside its only use

    path.write_text(json.dumps({**tree, "sha256": seal(tree)}))


def test_a_folder_is_a_side_in_the_order_of_time(tmp_path: Path) -> None:
    side = read_side(folder(tmp_path / "a", 2.0, 2.1, hour=5))
    assert [launch["C14.bench.mlp.fp32@cpu"].value for launch in side.launches] == [2.0, 2.1]
    assert len(read_side(tmp_path / "a" / "0.json").records) == 1


def test_an_empty_folder_a_double_and_a_changed_record_are_told(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="no record"):
        read_side(tmp_path / "none")
    path = folder(tmp_path / "a", 2.0)
    (path / "copy.json").write_bytes((path / "0.json").read_bytes())
    with pytest.raises(UsageError, match="are the same launch"):
        read_side(path)
    (path / "copy.json").write_text((path / "0.json").read_text().replace("2.0", "1.0"))
    with pytest.raises(IntegrityError):
        read_side(path)


def test_a_slowed_launch_is_no_side(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    tree = record(2.0)
    next(check for check in tree["checks"] if check["samples"])["samples"]["body_factor"] = 1.5
    write(tree, tmp_path / "a" / "0.json")
    with pytest.raises(UsageError, match=r"repeated its timed work 1\.5 times on purpose"):
        read_side(tmp_path / "a")


def test_another_machine_tier_or_launch_is_refused_by_name() -> None:
    here, there = record(2.0), record(2.0, host={"cpu_model": "Other CPU", "effective": 8.0})
    with pytest.raises(UsageError) as caught:
        hold_together([here, there])
    assert "processor Test CPU vs Other CPU; usable CPUs 2.0 vs 8.0" in caught.value.message
    deep = record(2.0, options=Options(only=("C14",), tier="deep"))
    assert disagreements([here, deep]) == ("measured differently: tier quick vs deep",)
    launch = record(2.0, options=Options(only=("C14",), launch=LAUNCH))
    (said,) = disagreements([here, launch])
    assert "launch None vs {'threads': 1, 'effort': 4}" in said
    assert disagreements([here, record(3.0)]) == ()


@pytest.mark.parametrize(("step", "hour", "turns"), [(2, 1, True), (1, 12, False)])
def test_launches_that_took_no_turns_are_noted(tmp_path: Path, step: int, hour: int, turns: bool) -> None:
    first = read_side(folder(tmp_path / "a", *[2.0] * 6, step=step))
    second = read_side(folder(tmp_path / "b", *[2.0] * 6, step=step, hour=hour))
    assert takes_turns(first, second) is turns
    found = compared(first, second, interleaved=takes_turns(first, second))
    assert any("were not interleaved" in note for note in found.notes) is not turns


def test_the_document_says_everything(tmp_path: Path) -> None:
    values = [2.0, 2.02, 1.98, 2.01, 1.99]
    first = read_side(folder(tmp_path / "a", *values))
    second = read_side(folder(tmp_path / "b", *[1.3 * value for value in values], hour=9))
    found = compared(first, second, interleaved=False)
    tree = json.loads(json.dumps(found.to_json()))
    assert (tree["schema"], tree["verdict"], tree["exit_code"]) == ("envkit.compare/1", "REGRESSION", 7)
    assert tree["smallest_p"] == pytest.approx(2 / 252)
    (row,) = tree["metrics"]
    assert row["interval"]["low"] < 1.3 < row["interval"]["high"]
    assert len(tree["first"]["launches"]) == 5
    assert tree["fingerprint"]["hw"].startswith("h:")


def test_nothing_timed_is_inconclusive() -> None:
    side = Side(name="a", records=(record(2.0, check_id="C14.dtype_choice"),))
    empty = compared(Side(name="a", records=side.records), side, interleaved=True)
    assert empty.exit_code == 5


def test_what_only_one_side_measured_is_noted_with_the_reason() -> None:
    whole = Side(name="a", records=(record(2.0),) * 5)
    other = record(2.0, check_id="C14.dtype_choice")
    broken = copy.deepcopy(record(2.0))
    row = next(check for check in broken["checks"] if check["samples"])
    row |= {"id": "C14", "samples": None, "verdict": "ERROR", "reason_code": "EXCEPTION", "message": "TypeError: range"}
    found = compared(whole, Side(name="b", records=(broken,) * 5), interleaved=True)
    assert (found.exit_code, found.notes) == (
        5,
        ("b measured no C14.bench.mlp.fp32: C14 is ERROR EXCEPTION, TypeError: range",),
    )
    turned = compared(Side(name="b", records=(broken,) * 5), whole, interleaved=True)
    assert turned.notes == found.notes
    assert compared(whole, whole, interleaved=True).notes == ()
    broken["checks"].remove(row)
    absent = compared(whole, Side(name="b", records=(broken,) * 5), interleaved=True)
    assert absent.notes == ("b measured no C14.bench.mlp.fp32: its record does not contain the check",)
    assert compared(whole, Side(name="c", records=(other,) * 5), interleaved=True).notes != ()


class Images:
    """Two images on one runner; notes which was launched."""

    def __init__(self, *, gate: str = "clean", exit_code: int = 0) -> None:
        self.order: list[str] = []
        self.only: list[str] = []
        self.gate, self.exit_code = gate, exit_code

    def subject(self, name: str, value: float) -> Subject:
        outer = self

        class Noting(Replay):
            def run(self, *args: Any, **options: Any) -> Any:
                outer.order.append(name)
                outer.only.append(" ".join(args[1][args[1].index("--tier") + 2 :]))
                return super().run(*args, **options)

        def answer(spec: dict[str, Any]) -> bytes:
            tree = document(timed(value, gate=outer.gate), observation("C05.fp32"), nonce=spec["nonce"])
            return printed(tree, spec["nonce"])

        runner = Noting(answer, image=inspected(MADE), exit_code=self.exit_code)
        return Subject(name=name, image=image_name(name), runner=runner, options=Options(launch=LAUNCH), plan=MADE)


def gathered(images: Images, *, seed: int = 0, launches: int | None = None, **changed: Any) -> Any:
    subjects = [images.subject("a", 2.0), images.subject("b", 3.0)]
    return gather(subjects, Silent(), launches=launches, seed=seed, least=5, **changed)


def test_images_take_turns_after_a_launch_that_does_not_count() -> None:
    images = Images()
    first, second = gathered(images)
    assert (len(first), len(second)) == (5, 5)
    assert images.order[:2] == ["a", "b"]
    pairs = [tuple(images.order[place : place + 2]) for place in range(2, 12, 2)]
    assert all(set(pair) == {"a", "b"} for pair in pairs)
    assert len(set(pairs)) == 2
    assert images.only == ["", "", *["--only C14"] * 10]


def test_the_order_comes_from_the_seed() -> None:
    orders = []
    for seed in (1, 1, 2, 3):
        images = Images()
        gathered(images, seed=seed)
        orders.append(images.order)
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) > 1


def test_noise_doubles_the_launches_and_no_more() -> None:
    first, second = gathered(Images(gate=NOISY), launches=6)
    assert (len(first), len(second)) == (12, 12)


def test_what_counts_is_kept() -> None:
    kept: list[int] = []
    gathered(Images(), keep=lambda place, record: kept.append(place) if record else None)
    assert (kept.count(0), kept.count(1)) == (5, 5)


def test_an_image_that_crashes_cannot_be_compared() -> None:
    with pytest.raises(VerificationError, match="a cannot be compared: the process crashed") as caught:
        gathered(Images(exit_code=139))
    assert caught.value.exit_code == 6


def test_an_image_in_which_nothing_is_timed_cannot_be_compared() -> None:
    runner = Replay(lambda spec: printed(document(nonce=spec["nonce"]), spec["nonce"]), image=inspected(MADE))
    subject = Subject(name="a", image=image_name("a"), runner=runner, options=Options(launch=LAUNCH))
    with pytest.raises(VerificationError, match="no check that ran is timed"):
        gather([subject], Silent(), launches=5, seed=0, least=5)


def test_an_engine_that_fails_is_told_as_such() -> None:
    runner = Replay(EngineError("the container could not be made"), image=inspected(MADE))
    subject = Subject(name="oci:a", image=image_name("0123456789ab"), runner=runner, options=Options(launch=LAUNCH))
    with pytest.raises(EngineError, match="oci:a cannot be compared: the container could not be made") as caught:
        gather([subject], Silent(), launches=5, seed=0, least=5)
    assert caught.value.hint == "envkit verify oci:a"  # podman has the image by its id only while this runs


def test_a_launch_proves_nothing() -> None:
    tree = record(2.0, options=Options(only=("C14",), launch=LAUNCH))
    assert tree["summary"]["verdict"] in ("NOT_VERIFIED", "ERROR")
    assert "LAUNCH" in {reason["code"] for reason in tree["summary"]["reasons"]}
    assert tree["run"]["launch"] == dict(LAUNCH)
