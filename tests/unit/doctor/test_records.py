from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.doctor.model import Diagnosis, Finding, Severity
from envkit.doctor.records import diagnose_record, read_record
from envkit.ground.errors import UsageError


def record(*checks: dict[str, Any], **env: Any) -> dict[str, Any]:
    return {
        "schema": "envkit.verify/1",
        "run": {"started": "2026-01-01T00:00:00Z"},
        "subject": {"image": "train"},
        "env": {"host": {"effective": 8.0}, "gpu": [{"name": "A100"}], **env},
        "checks": list(checks),
        "summary": {"verdict": "WARN"},
    }


def check(ident: str, verdict: str, code: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": ident,
        "verdict": verdict,
        "reason_code": code,
        "message": f"{ident} says so",
        "subject": "host",
        **more,
    }


def training(full: float = 0.1, without: float = 0.1, alone: float = 0.05, **more: Any) -> dict[str, Any]:
    observed = {
        "step_s": full,
        "step_without_loader_s": without,
        "loader_alone_s": alone,
        "data_wait_s": 0.0,
        "h2d_s": 0.001,
        "launch_share": 0.1,
        "threads": 1,
        "loader": {"num_workers": 4},
        **more,
    }
    return check("C23.training", "PASS", observed=observed, noise={"gate": "clean"})


def symptoms(*checks: dict[str, Any], **env: Any) -> dict[str, Finding]:
    found = diagnose_record(record(*checks, **env), "try")
    return {one.id: one for one in found.sections[1].findings}


def checks_of(found: Diagnosis) -> tuple[Finding, ...]:
    return found.sections[0].findings


def test_a_starved_job_explains_what_the_monitor_shows() -> None:
    found = symptoms(training(full=0.4, without=0.1, alone=0.4))
    assert {one.severity for one in found.values()} == {Severity.WARN}
    assert "during 75% of each step" in found["util-sawtooth"].cause
    assert found["util-sawtooth"].fix[0].startswith("Loading must become 4.0x as fast: 16 workers are needed")
    assert found["scaling-sublinear"].title.endswith("the shared loader allows 12% efficiency with 2 GPUs")
    assert "needs up to 16.0 CPUs" in found["cpu-high-gpu-idle"].evidence[0].text
    assert "more CPUs than available" in found["cpu-high-gpu-idle"].title


def test_a_fed_job_rules_the_loader_out() -> None:
    found = symptoms(training(full=0.101, without=0.1, alone=0.01))
    assert {one.severity for one in found.values()} == {Severity.INFO}
    assert found["util-sawtooth"].title == "GPU utilization jumps up and down: the loader is not the cause"
    assert "feed 10.0 devices" in found["scaling-sublinear"].title
    assert any("C20" in line for line in found["scaling-sublinear"].check)


def test_a_loader_that_could_keep_up_and_does_not_has_to_overlap() -> None:
    found = symptoms(training(full=0.2, without=0.1, alone=0.09, data_wait_s=0.1, loader={"num_workers": 0}))
    assert "let it prefetch with num_workers > 0 (now 0)" in found["util-sawtooth"].fix[0]
    assert "loading does not overlap" in found["cpu-high-gpu-idle"].title


def test_enough_cpus_for_more_workers_gives_their_number() -> None:
    found = symptoms(training(full=0.2, without=0.1, alone=0.2, loader={"num_workers": 2}))
    assert "num_workers=4 or more (now 2)" in found["util-sawtooth"].fix[0]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 10**400, "8", None])
def test_what_counts_nothing_is_not_reckoned_with(odd: Any) -> None:
    host = {"host": {"effective": odd}}
    found = symptoms(training(full=0.4, alone=0.4, loader={"num_workers": odd}, threads=odd, launch_share=odd), **host)
    assert "the container has an unknown number of CPUs" in found["cpu-high-gpu-idle"].evidence[0].text
    assert "launches not measured" in found["mem-full-util-low"].evidence[0].text


def test_launches_that_limit_are_named() -> None:
    found = symptoms(training(launch_share=0.95))
    assert "launches kernels too slowly" in found["util-low-mem-free"].title
    assert "launches kernels too slowly" in found["mem-full-util-low"].title
    assert "was not measured" in symptoms(training(launch_share=None))["util-low-mem-free"].cause


def test_workers_that_take_cpus_from_training_are_told_apart() -> None:
    found = symptoms(training(full=0.2, without=0.1, alone=0.05, data_wait_s=0.001))
    assert found["cpu-high-gpu-idle"].title.endswith("workers and training compete for CPUs")
    assert found["util-sawtooth"].fix[0].startswith("Workers take CPU time from training: use fewer than 4 workers")


def test_a_run_that_broke_off_says_why_and_not_what_is_missing() -> None:
    broken = record(check("C01.versions", "ERROR", "NOT_OBSERVED"))
    reasons = [{"code": "PYTHON_MISSING", "message": "no python", "advice": "install it"}, {"code": "PARTIAL"}]
    found = checks_of(diagnose_record({**broken, "summary": {"verdict": "FAIL", "reasons": reasons}}, "try"))
    assert [(one.id, one.severity) for one in found] == [
        ("python-missing", Severity.ERROR),
        ("partial", Severity.INFO),
    ]
    assert found[0].fix == ("install it",)


def test_more_gpus_and_their_collective_are_taken_into_account() -> None:
    collective = check("C20.bandwidth", "PASS", observed={"busbw_gb_per_s": 228.0})
    found = symptoms(training(alone=0.025), collective, gpu=[{}] * 8)
    assert found["scaling-sublinear"].title.endswith("allows 50% efficiency with 8 GPUs")
    assert found["scaling-sublinear"].evidence[1].text == "all_reduce reaches 228.0 GB/s (C20)"


def test_a_busy_machine_is_told_of() -> None:
    noisy = {**training(), "noise": {"gate": "busy"}}
    assert next(iter(symptoms(noisy))) == "measured-while-busy"


@pytest.mark.parametrize(
    "checks",
    [
        (),
        (check("C23.training", "SKIP", "NO_TORCH", observed={}),),
        (check("C23.training", "PASS", observed={"step_s": 0, "step_without_loader_s": 1, "loader_alone_s": 1}),),
        (check("C23.training", "PASS", observed="odd"),),
        (check("C23.training", "PASS", observed={"step_s": True, "step_without_loader_s": None}),),
        (training(full=float("nan")),),
        (training(full=1.0, alone=float("inf")),),
        (training(full=1.0, alone=1e300),),
        (training(full=10**400),),
        (training(full=1.0, without=1e-300, alone=1.0),),
    ],
)
def test_without_timings_the_command_that_takes_them_is_named(checks: tuple[dict[str, Any], ...]) -> None:
    (finding,) = symptoms(*checks).values()
    assert finding.id == "not-measured"
    assert finding.fix == ("envkit verify IMAGE --tier standard --only C23 -o record.json",)


def test_failed_checks_become_findings_the_worst_first() -> None:
    found = checks_of(
        diagnose_record(
            record(
                check("C13.shm", "WARN", "SHM_TIGHT", advice=["Give it more."]),
                check("C01.versions", "FAIL", "CPU_BUILD_INSTALLED"),
                check("C21.jpeg", "FAIL", "SOMETHING_NEW", gates=False),
                check("C05.gemm", "PASS"),
            ),
            "try",
        )
    )
    assert [(one.id, one.severity) for one in found] == [
        ("cpu-build-installed", Severity.ERROR),
        ("shm-tight", Severity.WARN),
        ("something-new", Severity.WARN),
    ]
    assert found[0].cause.startswith("The solver or the index")
    assert found[0].evidence[0].text == "C01.versions (host): FAIL CPU_BUILD_INSTALLED"
    assert found[1].fix == ("Give it more.",)


def test_what_was_found_is_named_before_what_could_not_be_found_out() -> None:
    noisy, starved = check("C12.io", "INCONCLUSIVE", "NOISY"), check("C23.training", "WARN", "DATA_BOUND")
    found = diagnose_record(record(noisy, starved), "try")
    assert [one.id for one in checks_of(found)] == ["data-bound", "noisy"]
    assert found.conclusion == "C23.training says so"


def test_a_record_is_never_at_fault_itself() -> None:
    found = diagnose_record({"schema": "envkit.verify/1", "checks": "odd", "env": 3, "summary": []}, "try")
    assert found.exit_code == 0
    assert found.conclusion == "all checks of the record passed or were skipped"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "its schema is None"),
        ('{"schema": "envkit.plan/1"}', "its schema is 'envkit.plan/1'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_record(path)
    with pytest.raises(UsageError, match="no such file"):
        read_record(tmp_path / "nothing.json")


def test_a_record_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record(training())))
    assert read_record(path)["checks"][0]["id"] == "C23.training"


def test_the_error_of_a_check_is_looked_up_and_not_only_repeated() -> None:
    broken = check("C12.loader", "FAIL", "LOADER_BROKE", message="OSError: [Errno 24] Too many open files: '/x'")
    (found,) = checks_of(diagnose_record(record(broken), "try"))
    assert found.id == "loader-broke"
    assert found.cause
    assert "ulimit" in " ".join((*found.check, *found.fix))


def test_a_variable_of_the_run_that_no_check_names_is_a_finding() -> None:
    flags = {"CUDA_LAUNCH_BLOCKING": "1", "CUDA_MODULE_LOADING": "LAZY"}
    found = checks_of(diagnose_record(record(flags=flags), "try"))
    assert [finding.id for finding in found] == ["cuda-launch-blocking"]
    named = check("C00.env", "WARN", "BAD_CUDA_ENV", message="CUDA_LAUNCH_BLOCKING=1 makes launches synchronous")
    assert len(checks_of(diagnose_record(record(named, flags=flags), "try"))) == 1
