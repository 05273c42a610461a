"""The comparator tried on real launches: silent where nothing changed, loud where work was added, for an image too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.progress import Silent
from envkit.run.runners import make
from envkit.verify.compare.decide import Change, compare, overall
from envkit.verify.compare.launches import Subject, launch
from envkit.verify.compare.metrics import readings
from envkit.verify.driver import Options
from envkit.verify.selftest import self_test
from tests.engines.broken_worlds import Sound
from tests.engines.torch_breaks import CODE
from tests.support.payloads import module

cpu_bf16 = module("amp_bench").cpu_bf16
pytestmark = [pytest.mark.engine, pytest.mark.slow]
LAUNCHES = 5


def test_the_comparator_is_silent_without_a_change_and_loud_with_one(sound: Sound) -> None:
    # One check and the plain number of samples: enough for work that takes 1.5 and 3 times as long. The cheaper check
    # needs a processor with instructions for bfloat16.
    check = "C15" if cpu_bf16(Path("/proc/cpuinfo").read_text()) else "C14"
    options = Options(only=(check,), allow_cpu=True, launch={"threads": 1, "effort": 1})
    subject = Subject(name="A", image=sound.name, runner=make("docker"), options=options, plan=sound.plan)
    records: list[Mapping[str, Any]] = []

    def keep(side: int, record: Mapping[str, Any]) -> None:
        if side == 0:
            records.append(record)

    found = self_test(subject, Silent(), launches=LAUNCHES, seed=0, keep=keep)
    if not (found.silent and found.noticed):  # five launches in a hundred may differ by chance
        records.clear()
        found = self_test(subject, Silent(), launches=LAUNCHES, seed=1, keep=keep)
    assert found.silent
    assert found.noticed

    slower = replace(subject, image=sound.layer_of({}, "ENV BREAK=slow", base=sound.broken(CODE)))
    rows = compare(
        [readings(record) for record in records], [readings(launch(slower, Silent())) for _ in range(LAUNCHES)]
    )
    # On a machine that is never quiet nothing is said; "no slower" would be wrong.
    assert overall(rows) in (Change.REGRESSION, Change.INCONCLUSIVE)
