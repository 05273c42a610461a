from __future__ import annotations

import random
from pathlib import Path

import pytest

from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.verify.compare.launches import LAUNCH, Subject
from envkit.verify.driver import Options
from envkit.verify.selftest import NAME, distrusted, judge_self_test, remember, self_test
from tests.support.judging import Replay, document, inspected, plan, printed
from tests.support.launches import NOISY, side, timed

STEADY = [1.00, 1.01, 0.99, 1.02, 0.98]
AGAIN = [1.005, 0.995, 1.015, 0.985, 1.001]
SLOW = [1.5 * value for value in STEADY]


def test_a_steady_machine_is_silent_and_notices_the_slowdown() -> None:
    found = judge_self_test(side(STEADY), side(AGAIN), side(SLOW), hw="h:1", seed=0)
    assert (found.silent, found.noticed, found.trusted, found.alarms) == (True, True, True, 0)
    assert found.to_json()["schema"] == "envkit.self-test/1"


def test_launches_that_differ_though_nothing_changed_are_an_alarm() -> None:
    found = judge_self_test(side(STEADY), side(SLOW), side(SLOW), hw="h:1", seed=0)
    assert (found.silent, found.trusted) == (False, False)


def test_a_slowdown_that_is_not_there_is_not_noticed() -> None:
    assert judge_self_test(side(STEADY), side(AGAIN), side(AGAIN), hw="h:1", seed=0).noticed is False


def launched(drift: float = 0.0, gate: str = "clean") -> tuple[Replay, list[float]]:
    """A runner whose launches take 1 ms, and as much longer as the payload was told to repeat its bodies."""
    factors: list[float] = []
    noise = random.Random(0)

    def answer(spec: dict[str, dict[str, float]]) -> bytes:
        factor = spec["launch"].get("body_factor", 1.0)
        factors.append(factor)
        value = factor * noise.uniform(0.99, 1.01) * (1 + drift * len(factors))
        return printed(document(timed(value, gate=gate), nonce=str(spec["nonce"])), str(spec["nonce"]))

    return Replay(answer, image=inspected(plan(cuda=None))), factors


@pytest.mark.parametrize("gate", ["clean", NOISY])
def test_three_sides_take_turns_and_a_drift_of_the_machine_is_no_alarm(gate: str) -> None:
    runner, factors = launched(drift=0.005, gate=gate)
    subject = Subject(name="img", image=image_name("img"), runner=runner, options=Options(only=("C14",), launch=LAUNCH))
    found = self_test(subject, Silent(), launches=None, seed=0)
    assert (found.silent, found.noticed) == (True, True)
    assert found.launches == (5 if gate == "clean" else 10)
    rounds = [sorted(factors[place : place + 3]) for place in range(0, len(factors), 3)]
    assert rounds == [[1.0, 1.0, 1.5]] * (found.launches + 1)


def test_the_outcome_is_remembered_by_hardware(tmp_path: Path) -> None:
    assert distrusted(tmp_path) == frozenset()
    remember(tmp_path, judge_self_test(side(STEADY), side(SLOW), side(SLOW), hw="h:bad", seed=0))
    remember(tmp_path, judge_self_test(side(STEADY), side(AGAIN), side(SLOW), hw="h:good", seed=0))
    assert distrusted(tmp_path) == {"h:bad"}
    remember(tmp_path, judge_self_test(side(STEADY), side(AGAIN), side(SLOW), hw="h:bad", seed=0))
    assert distrusted(tmp_path) == frozenset()


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": "x"}', '{"schema": "envkit.self-test/1", "machines": 3}'])
def test_a_damaged_note_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    assert distrusted(tmp_path) == frozenset()
