"""Every GPU, device memory, links and absolute rates, on a model of GPUs that has one fault at a time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.catalog import judges, select
from envkit.checks.model import Verdict
from envkit.ground.errors import EnvironmentProblem
from envkit.verify.exitcode import summarize
from envkit.verify.judge import Judged, judge
from tests.support.payloads import module, observer
from tests.support.standin import StandIn

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")

SPEC: dict[str, Any] = {"gpu": True, "torch": torch.__version__, "python": "3"}
Seen = dict[tuple[str, str], tuple[Verdict, str | None]]


@pytest.fixture
def standin(tmp_path: Path) -> StandIn:
    return StandIn.prepare(tmp_path)


def judged(standin: StandIn, check: str, **variables: str) -> tuple[Judged, ...]:
    document = standin.document("--tier", "standard", "--only", check, spec=SPEC, **variables)
    for item in document["checks"]:
        if item["noise"]:
            item["noise"]["gate"] = item["noise"]["gpu_gate"] = "clean"  # the device has its own clock
    return judge(document, SPEC, select("standard", [check]), judges())


def seen(found: tuple[Judged, ...]) -> Seen:
    return {(item.id, item.subject): (item.finding.verdict, item.finding.reason_code) for item in found}


@pytest.mark.long
def test_gpus_are_measured_side_by_side_and_counted(standin: StandIn) -> None:
    found = judged(standin, "C26", STANDIN_COUNT="3")
    told = seen(found)
    assert [told["C26.gpu", f"gpu:{index}"] for index in range(3)] == [(Verdict.PASS, None)] * 3
    assert found[-1].finding.message == "measured 3 of 3 GPUs"
    assert set(found[0].finding.derived["of_siblings"]) == {"h2d_gb_per_s", "d2h_gb_per_s", "tflops"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("kernel", (Verdict.FAIL, "GPU_COMPUTES_WRONG")),
        ("copy", (Verdict.FAIL, "COPY_WRONG")),
        ("slow", (Verdict.FAIL, "PRODUCTS_BELOW_FLOOR")),
        ("cores", (Verdict.FAIL, "PRODUCTS_BELOW_FLOOR")),
        # The machine does not say which CPUs are next to the GPU.
        ("lanes", (Verdict.WARN, "SIBLINGS_DIFFER")),
        ("lost", (Verdict.FAIL, "GPU_FAILS")),
        ("hangs", (Verdict.FAIL, "GPU_HANGS")),
    ],
)
def test_one_sick_gpu_among_sound_ones_is_named(
    standin: StandIn, fault: str, expected: tuple[Verdict, str | None]
) -> None:
    if not standin.has_driver and fault in ("slow", "cores"):
        pytest.skip("the clock of the model needs its driver: apt-get install gcc")
    found = judged(standin, "C26", STANDIN_COUNT="3", STANDIN_SICK="2", STANDIN_FAULT=fault)
    told = seen(found)
    assert [told["C26.gpu", f"gpu:{index}"] for index in (0, 1)] == [(Verdict.PASS, None)] * 2
    assert told["C26.gpu", "gpu:2"] == expected
    if expected[0] is Verdict.FAIL:
        assert summarize(found, SPEC).exit_code == EnvironmentProblem.exit_code
    if fault in ("lost", "hangs"):
        assert told["C26.coverage", "host"] == (Verdict.WARN, "GPUS_NOT_MEASURED")
        assert found[-1].finding.message.startswith("measured 2 of 3 GPUs; not measured: gpu:2 Stand-in: it")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", {"C27.pattern": (Verdict.PASS, None), "C27.copy": (Verdict.PASS, None)}),
        ("bits", {"C27.pattern": (Verdict.FAIL, "DEVICE_MEMORY_WRONG")}),
        ("lanes", {"C27.copy": (Verdict.FAIL, "DEVICE_MEMORY_SLOW")}),
    ],
)
@pytest.mark.long
def test_device_memory_that_loses_a_bit_or_is_slow_is_noticed(
    standin: StandIn, fault: str, expected: dict[str, tuple[Verdict, str | None]]
) -> None:
    if not standin.has_driver and fault == "lanes":
        pytest.skip("the memory bus of the model needs its driver: apt-get install gcc")
    told = seen(judged(standin, "C27", STANDIN_FAULT=fault))
    assert {name: told[name, "gpu:0"] for name in expected} == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", (Verdict.PASS, None)),
        ("turns", (Verdict.WARN, "COPIES_TAKE_TURNS")),
        ("copy", (Verdict.FAIL, "COPY_WRONG")),
    ],
)
def test_copies_both_ways_overlap_and_arrive(
    standin: StandIn, fault: str, expected: tuple[Verdict, str | None]
) -> None:
    told = seen(judged(standin, "C28", STANDIN_FAULT=fault))
    assert told["C28.both_ways", "gpu:0"] == expected
    assert told["C28.matrix", "gpu:0"] == (Verdict.SKIP, "ONE_GPU")


@pytest.mark.long
def test_copies_between_gpus_are_compared(standin: StandIn) -> None:
    good = seen(judged(standin, "C28", STANDIN_COUNT="2"))
    assert good["C28.matrix", "gpu:0"] == (Verdict.WARN, "NO_PEER_ACCESS")
    assert good["C28.nvlink", "gpu:0"] == (Verdict.SKIP, "NO_NVLINK")
    broken = seen(judged(standin, "C28", STANDIN_COUNT="2", STANDIN_FAULT="copy", STANDIN_SICK="1"))
    assert broken["C28.matrix", "gpu:0"] == (Verdict.FAIL, "COPY_WRONG")


@pytest.mark.long
def test_a_gpu_that_is_slow_at_everything_is_no_better_for_its_ratio(standin: StandIn) -> None:
    if not standin.has_driver:
        pytest.skip("the clock of the model needs its driver: apt-get install gcc")
    told = seen(judged(standin, "C15", STANDIN_FAULT="slow"))
    assert told["C15.gemm.fp16", "gpu:0"] == (Verdict.FAIL, "PRODUCTS_BELOW_FLOOR")


@pytest.mark.parametrize("inverted", [False, True])
def test_a_pattern_notices_one_bit_wherever_it_is(inverted: bool) -> None:
    check = observer("c27_device_memory")
    memory = torch.empty(100_003, dtype=torch.int64)
    check.fill(torch, memory, inverted)
    assert check.changed(torch, memory, inverted) == 0
    assert check.changed(torch, memory, not inverted) == memory.numel()
    for at in (0, 50_000, 100_002):
        memory[at] ^= 1
        assert check.changed(torch, memory, inverted) == 1
        memory[at] ^= 1


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1 << 30, (1 << 30) + 1])
def test_parts_of_a_pattern_cover_it_once(count: int) -> None:
    parts = observer("c27_device_memory").slices(count)
    assert [parts[0][0], parts[-1][1]] == [0, count]
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(parts))


def test_gpus_of_the_driver_that_torch_does_not_have_are_listed() -> None:
    assert observer("c26_every_gpu").unseen(range(4), {1, 3}) == [0, 2]


def test_processes_take_turns(tmp_path: Path) -> None:
    one_gpu, probe = module("one_gpu"), module("probe")
    file, log = tmp_path / "turns", tmp_path / "log"
    root = Path(module("probe").__file__).parents[2]
    code = (
        f"import sys, time; sys.path.insert(0, {str(root)!r})\n"
        "from envkit.smoke.one_gpu import in_turns\n"
        "for _ in range(200):\n"
        "    with in_turns(sys.argv[1]), open(sys.argv[2], 'a') as log:\n"
        "        log.write('in '), log.flush(), log.write('out '), log.flush()\n"
    )
    processes = [probe.start(code, [str(file), str(log)]) for _ in range(2)]
    assert [end["outcome"] for end in probe.finish_all(processes, 60.0)] == ["answered"] * 2
    assert log.read_text().split() == ["in", "out"] * 400
    with one_gpu.in_turns(str(file)):
        assert file.exists()
