from __future__ import annotations

import json
import zipfile
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.checks.c01_versions.observe import KNOWN_FIELDS
from envkit.checks.catalog import CheckEntry, catalog
from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, InterruptedRun, TimeLimitError
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.report.text import render_text
from envkit.run.model import Isolation
from envkit.verify.again import judge_again
from envkit.verify.driver import FOLDER, TAIL_LINES, CountingChecks, Options, verify_image
from envkit.verify.record import Record, schema, seal
from envkit.verify.user_data import UserData
from tests.support.again import assert_same_again
from tests.support.judging import Replay, document, inspected, observation, plan, printed
from tests.support.schema import faults

PLAN = plan(cuda=None, shm_mb=77)
IMAGE = inspected(PLAN)


def skips(spec: dict[str, Any]) -> bytes:
    """What a payload prints on which no check applies."""
    checks = [observation(entry.id, "host", "skip") for entry in catalog()]
    return printed(document(*checks, nonce=spec["nonce"]), spec["nonce"])


def verified(runner: Replay, options: Options | None = None) -> Record:
    record = verify_image(image_name("img"), PLAN, runner, Silent(), options)
    assert faults(record.tree, schema(), closed=True) == []
    assert_same_again(record)
    return record


class Weak(Replay):
    """A runner that cannot keep everything apart."""

    isolation = Isolation(level="weak", missing=("network", "shared-memory"))


def test_a_weak_isolation_is_on_record_and_in_the_report() -> None:
    record = verified(Weak(skips))
    assert record.tree["run"]["isolation"] == {"level": "weak", "missing": ["network", "shared-memory"]}
    assert "weak isolation (without network, shared-memory)" in render_text(record.tree, width=200)
    strong = verified(Replay(skips))
    assert strong.tree["run"]["isolation"] == {"level": "strong", "missing": []}
    assert "isolation" not in render_text(strong.tree, width=200)


def test_a_record_from_before_runners_told_of_isolation_is_judged_again() -> None:
    tree = dict(verified(Replay(skips)).tree)
    tree["run"] = {name: value for name, value in tree["run"].items() if name != "isolation"}
    tree["sha256"] = seal(tree)
    assert faults(tree, schema()) == []
    assert judge_again(tree).changed == ()
    assert "runner replay" in render_text(tree, width=200)


def codes(record: Record) -> list[str]:
    return [reason["code"] for reason in record.tree["summary"]["reasons"]]


def test_the_payload_and_the_spec_go_in_by_archive() -> None:
    runner = Replay(skips, image=IMAGE)
    record = verified(runner)
    assert runner.argv[0] == "/opt/env/bin/python"
    assert set(runner.files) == {f"{FOLDER}/payload.pyz", f"{FOLDER}/spec.json"}
    assert "envkit/smoke/__main__.py" in zipfile.ZipFile(BytesIO(runner.files[f"{FOLDER}/payload.pyz"])).namelist()
    assert runner.spec["torch"] == "2.7.1"
    assert runner.limits.shm_mb == 77
    assert record.tree["subject"]["plan"] == PLAN.digest


def test_a_check_knows_every_field_of_the_spec_that_a_run_adds_to_those_of_the_plan() -> None:
    """C01 is an ERROR for a field that it does not know, because no check would look at it."""
    runner = Replay(skips, image=IMAGE)
    data = UserData(folder=None, dataset="train:make", code={})
    verify_image(image_name("img"), PLAN, runner, Silent(), Options(data=data, launch={"effort": 1}, require_gpu=True))
    assert {"data", "launch"} <= set(runner.spec)
    assert set(runner.spec) <= KNOWN_FIELDS


def test_every_run_has_its_own_nonce_and_the_record_has_none() -> None:
    runner = Replay(skips, image=IMAGE)
    nonces = set()
    for _ in range(3):
        record = verified(runner)
        nonces.add(runner.spec["nonce"])
        assert runner.spec["nonce"] not in record.to_bytes().decode()
    assert len(nonces) == 3
    assert all(len(nonce) >= 32 for nonce in nonces)


def test_a_document_in_which_nothing_ran_is_an_error() -> None:
    record = verified(Replay(skips, image=IMAGE))
    assert (record.verdict, record.exit_code, codes(record)) == ("ERROR", 6, ["NOTHING_EXECUTED"])


@pytest.mark.parametrize(
    ("stdout", "words"),
    [
        (b"", "ends early"),
        (b"hello\nworld\n", "world"),
        (b'{"schema": "envkit.payload/1"}\n', "ends early"),
        (b"x" * (9 << 20), "bytes"),
    ],
)
def test_garbage_is_a_failed_verification(stdout: bytes, words: str) -> None:
    record = verified(Replay(lambda _: stdout, image=IMAGE))
    assert (record.verdict, record.exit_code, codes(record)) == ("ERROR", 6, ["PAYLOAD_OUTPUT"])
    assert words in record.tree["summary"]["reasons"][0]["message"]


def test_a_flood_is_a_failed_verification() -> None:
    record = verified(Replay(skips, exit_code=137, output_cut=True, image=IMAGE))
    assert (record.verdict, record.exit_code, codes(record)) == ("ERROR", 6, ["PAYLOAD_OUTPUT"])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
IDS = st.sampled_from(
    [entry.id for entry in catalog()] + ["C05.fp32.512", "C10.h2d_pinned_256MiB", "C12.throughput.cpu"]
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["host", "gpu", "sw", "flags"]), JSON),
    st.lists(
        st.fixed_dictionaries(
            {
                "id": IDS,
                "subject": st.sampled_from(["cpu", "gpu:0", "::x"]),
                "status": st.sampled_from(["ran", "skip", "error"]),
                "observed": st.dictionaries(st.text(max_size=5), JSON, max_size=3),
                "controls": st.lists(JSON | st.just({"name": "c", "held": True}), max_size=2),
            },
            optional={
                "reason": st.none() | st.fixed_dictionaries({"code": st.text(max_size=5), "message": JSON}),
                "samples": JSON,
                "stats": JSON | st.dictionaries(st.sampled_from(["median", "n"]), JSON),
                "noise": JSON,
                "duration_s": JSON,
            },
        ),
        max_size=4,
        unique_by=lambda item: (item["id"], item["subject"]),
    ),
)
def test_no_document_breaks_the_judge_the_record_or_the_report(
    env: dict[str, Any], checks: list[dict[str, Any]]
) -> None:
    def answer(spec: dict[str, Any]) -> bytes:
        return printed({**document(*checks, nonce=spec["nonce"]), "env": env}, spec["nonce"])

    record = verified(Replay(answer, image=IMAGE))
    assert record.exit_code in (0, 5, 6, 124)
    assert all(char.isprintable() or char == "\n" for char in render_text(record.tree))


def test_another_runs_output_is_not_this_runs() -> None:
    record = verified(Replay(lambda _: printed(document(nonce="old"), "old"), image=IMAGE))
    assert (record.verdict, record.exit_code, codes(record)) == ("ERROR", 6, ["PAYLOAD_OUTPUT"])


def doubled(spec: dict[str, Any]) -> bytes:
    return skips(spec) + skips(spec)


def claimed(spec: dict[str, Any]) -> bytes:
    """What an image prints that answers for the payload and lets every check pass without a control."""
    checks = [observation(entry.id, "host", controls=[]) for entry in catalog()]
    return printed(document(*checks, nonce=spec["nonce"]), spec["nonce"])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda spec: skips(spec)[:-30], "the payload's output ends early"),
        (lambda spec: skips(spec)[500:], "the payload's document is not JSON"),
        (doubled, "the image printed a second document with the nonce of this run"),
        (
            lambda spec: printed(document(nonce="old"), spec["nonce"]),
            "the payload's document carries the nonce of another run",
        ),
        (lambda spec: printed({**document(nonce=spec["nonce"]), "checks": "fine"}, spec["nonce"]), "no usable checks"),
    ],
)
def test_a_document_that_cannot_be_this_runs_is_an_error_with_the_reason(answer: Any, words: str) -> None:
    record = verified(Replay(answer, image=IMAGE))
    assert (record.verdict, record.exit_code, codes(record)) == ("ERROR", 6, ["PAYLOAD_OUTPUT"])
    assert words in record.tree["summary"]["reasons"][0]["message"]
    assert words in render_text(record.tree, width=200)


def test_a_claim_that_everything_passed_without_a_control_is_an_error() -> None:
    record = verified(Replay(claimed, image=IMAGE))
    assert (record.verdict, record.exit_code) == ("ERROR", 6)
    assert record.tree["summary"]["diagnosis"] == ["CONTROL_MISSING"]


def test_nan_in_the_document_is_refused() -> None:
    def nan(spec: dict[str, Any]) -> bytes:
        tree = document(observation("C05", observed={"error": float("nan")}), nonce=spec["nonce"])
        return printed(tree, spec["nonce"])

    assert codes(verified(Replay(nan, image=IMAGE))) == ["PAYLOAD_OUTPUT"]


def test_a_claim_of_success_followed_by_exit_1_is_a_failure() -> None:
    record = verified(Replay(skips, exit_code=1, stderr=b"C00\nSegmentation trouble\n", image=IMAGE))
    assert (record.verdict, record.exit_code, codes(record)) == ("FAIL", 6, ["PAYLOAD_EXIT"])
    assert record.tree["run"]["payload"] == {"exit_code": 1, "stderr_tail": ["C00", "Segmentation trouble"]}


def test_sigbus_names_the_shared_memory() -> None:
    record = verified(Replay(lambda _: b"", exit_code=135, image=IMAGE))
    assert (record.verdict, record.exit_code, codes(record)) == ("FAIL", 6, ["SHM_TOO_SMALL"])
    missing = [check for check in record.tree["checks"] if check["id"].startswith("C")]
    assert {check["message"] for check in missing} == {"not reported: SHM_TOO_SMALL"}


def test_a_killed_payload_is_out_of_memory_where_the_engine_says_so() -> None:
    assert codes(verified(Replay(lambda _: b"", exit_code=137, oom_killed=True, image=IMAGE))) == ["OUT_OF_MEMORY"]


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (TimeLimitError("the run took longer than 5 s"), "TIME_LIMIT", 124),
        (EngineError("the container could not be made"), "ENGINE", 8),
        (EnvironmentProblem("the engine went away"), "SURROUNDINGS", 9),
    ],
)
def test_a_run_that_never_ended_is_a_record_with_its_exit_code(error: EnvkitError, code: str, exit_code: int) -> None:
    record = verified(Replay(error, image=IMAGE))
    assert (record.verdict, record.exit_code, codes(record)) == ("ERROR", exit_code, [code])
    assert record.tree["run"]["payload"]["exit_code"] is None
    assert record.tree["summary"]["reasons"][0]["message"] == error.message


def test_an_interruption_is_no_record() -> None:
    with pytest.raises(InterruptedRun):
        verify_image(image_name("img"), PLAN, Replay(InterruptedRun(2), image=IMAGE), Silent())


def test_stderr_is_kept_short_and_harmless() -> None:
    stderr = b"\x1b[31mred\x1b[0m \x07\n" * 100 + b"last\n"
    tail = verified(Replay(skips, exit_code=1, stderr=stderr, image=IMAGE)).tree["run"]["payload"]["stderr_tail"]
    assert len(tail) == TAIL_LINES
    assert tail[-2:] == ["red ", "last"]


def test_a_narrowed_run_says_what_it_left_out() -> None:
    runner = Replay(skips, image=IMAGE)
    record = verified(runner, Options(only=("C00",)))
    assert runner.argv[-2:] == ("--only", "C00")
    assert record.tree["run"]["selected"] == ["C00"]
    left = {check["id"] for check in record.tree["checks"] if check["reason_code"] == "NOT_SELECTED"}
    assert left == {entry.id for entry in catalog() if entry.tier == "quick" and entry.id != "C00"}


def test_without_a_plan_the_labels_promise() -> None:
    runner = Replay(skips, image=IMAGE)
    record = verify_image(image_name("img"), None, runner, Silent())
    assert_same_again(record)
    assert (runner.spec["torch"], runner.spec["python"], runner.spec["gpu"]) == ("2.7.1", "3.12", False)
    assert codes(record) == ["NOTHING_EXECUTED"]


def test_without_plan_and_labels_nothing_is_promised_and_any_python_will_do() -> None:
    runner = Replay(skips)
    record = verify_image(image_name("img"), None, runner, Silent())
    assert_same_again(record)
    assert runner.argv[:2] == ("/bin/sh", "-c")
    assert {key for key, value in runner.spec.items() if value} == {"nonce"}
    assert "NO_PLAN" in codes(record)


def test_a_required_gpu_is_required_of_a_cpu_image_too() -> None:
    record = verified(Replay(skips, image=IMAGE), Options(require_gpu=True))
    assert (record.verdict, record.exit_code) == ("NOT_VERIFIED", 5)
    assert codes(record)[0] == "NO_GPU"


def test_the_time_limit_leaves_room_for_every_check() -> None:
    runner = Replay(skips, image=IMAGE)
    verified(runner)
    whole = sum(entry.budget_s for entry in catalog() if entry.tier == "quick")
    assert runner.limits.timeout_s > 4 * whole
    verified(runner, Options(timeout_s=12.0))
    assert runner.limits.timeout_s == 12.0


def test_the_image_is_looked_at_before_it_is_run() -> None:
    record = verified(Replay(skips, image={**IMAGE, "user": "root"}))
    assert record.verdict == "FAIL"
    assert json.loads(record.to_bytes())["summary"]["diagnosis"][0] == "RUNS_AS_ROOT"


def test_the_catalog_is_not_empty() -> None:
    assert all(isinstance(entry, CheckEntry) for entry in catalog())
    assert len(catalog()) > 5


class Counts(Silent):
    """Keeps the progress it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def advance(self, done: int, total: int | None) -> None:
        self.seen.append((done, total))


def test_progress_counts_the_checks_that_the_payload_names() -> None:
    counts = Counts()
    counting = CountingChecks(counts, catalog()[:3])
    first, second, _ = (entry.id for entry in catalog()[:3])
    for line in (f"{first} a title", "a warning of torch", "C99 not selected", f"{second} a title", f"{first} a title"):
        counting.log(line)
    assert counts.seen == [(0, 3), (1, 3)]


def test_what_is_looked_up_is_what_the_image_starts_and_not_what_the_plan_says() -> None:
    runner = Replay(skips, image=inspected(PLAN, entrypoint=["/start.sh"], cmd=["x"], workdir="/app"))
    verified(runner)
    assert runner.spec["start"] == {"entrypoint": ["/start.sh"], "command": ["x"], "workdir": "/app", "volumes": []}
    assert [item["name"] for item in runner.spec["packages"]] == ["torch", "torchvision", "einops"]


def test_the_host_starts_nothing_by_itself() -> None:
    class Host(Replay):
        name = "host"

    runner = Host(skips, image=inspected(PLAN, entrypoint=[], cmd=["/usr/bin/python3"]))
    verified(runner)
    assert runner.spec["start"] is None
    assert runner.spec["packages"]
