"""The comparator on real launches whose clock counts work: silent without a change, loud with one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from envkit.ground.progress import Reporter, Silent
from envkit.image.name import ImageName, image_name
from envkit.run.model import STRONG, Isolation, RunLimits, RunResult
from envkit.verify.compare.decide import Change
from envkit.verify.compare.launches import Subject, gather
from envkit.verify.compare.metrics import CLEAN
from envkit.verify.compare.result import compared
from envkit.verify.compare.sides import Side
from envkit.verify.driver import Options
from envkit.verify.selftest import self_test
from tests.engines.broken_worlds import Forks, Sound
from tests.engines.torch_breaks import CODE
from tests.support.payloads import module

cpu_bf16 = module("amp_bench").cpu_bf16
pytestmark = [pytest.mark.engine, pytest.mark.long]
PACES = count()


@dataclass(slots=True)
class Counting:
    """Launches as forks of one container: by a clock that counts work, and judged as on a quiet machine."""

    forks: Forks
    breaks: str
    name: str = "docker"
    isolation: Isolation = STRONG

    def probe(self) -> str | None:
        """As Docker's runner."""
        return self.forks.probe()

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """As Docker's runner."""
        return self.forks.inspect(image)

    def run(
        self,
        image: ImageName,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,
        entrypoint: bool = False,
    ) -> RunResult:
        """The run at a pace of its own."""
        forks = self.forks.given(BREAK=self.breaks, CLOCK_SEED=str(next(PACES)))
        result = forks.run(image, argv, files, gpus=gpus, limits=limits, reporter=reporter, entrypoint=entrypoint)
        document, _, end = result.stdout.partition(b"\n")
        tree = json.loads(document)
        for item in tree["checks"]:
            if item["noise"]:
                item["noise"]["gate"] = CLEAN
        return replace(result, stdout=json.dumps(tree).encode() + b"\n" + end)


@pytest.fixture(scope="module")
def image(sound: Sound) -> str:
    """The image whose torch does what BREAK names."""
    return sound.broken(CODE)


@pytest.fixture(scope="module")
def forks(sound: Sound, image: str) -> Iterator[Forks]:
    """One container of it for all launches."""
    with sound.forks(image) as found:
        yield found


@pytest.fixture(scope="module")
def check() -> str:
    """One timed check; the cheaper of two needs a processor with instructions for bfloat16."""
    return "C15" if cpu_bf16(Path("/proc/cpuinfo").read_text()) else "C14"


def subject(sound: Sound, image: str, forks: Forks, check: str, breaks: str = "clock") -> Subject:
    options = Options(only=(check,), allow_cpu=True, launch={"threads": 1})
    return Subject(
        name=breaks, image=image_name(image), runner=Counting(forks, breaks), options=options, plan=sound.plan
    )


def test_the_comparator_is_silent_without_a_change_and_loud_with_one(
    sound: Sound, image: str, forks: Forks, check: str
) -> None:
    found = self_test(subject(sound, image, forks, check), Silent(), launches=None, seed=0)
    assert (found.silent, found.noticed, found.trusted) == (True, True, True)
    assert found.launches == 5
    for row in found.rows:
        assert median(row.second) / median(row.first) == pytest.approx(1.5, rel=0.02), row


def test_an_image_with_a_slower_torch_is_a_regression(sound: Sound, image: str, forks: Forks, check: str) -> None:
    sides = [subject(sound, image, forks, check, breaks) for breaks in ("clock", "clock,slow")]
    made = gather(sides, Silent(), launches=5, seed=0, least=5)
    first, second = (Side(name=one.name, records=records) for one, records in zip(sides, made, strict=True))
    found = compared(first, second, interleaved=True, seed=0)
    assert (found.change, found.exit_code) == (Change.REGRESSION, 7), found.notes
    assert {row.change for row in found.rows} == {Change.REGRESSION}
