from __future__ import annotations

import json
import re
from typing import Any

import pytest

from envkit.ground.text import cells, clean, fitted
from envkit.report.formats import pretty
from envkit.report.text import plain, render_text, report_lines, wrapped

LONG = "the relative error 3.1e-03 lies between the bands of fp32 and TF32, which no precision promised by it explains"


def check(check_id: str, verdict: str = "PASS", **changed: Any) -> dict[str, Any]:
    code = None if verdict == "PASS" else "SOME_CODE"
    found = {"id": check_id, "title": f"title of {check_id[:3]}", "verdict": verdict, "reason_code": code}
    rest = {"message": f"message of {check_id}", "advice": [], "gates": True, "observed": {}}
    return {**found, **rest, **changed}


def record(*checks: dict[str, Any], verdict: str = "PASS", **changed: Any) -> dict[str, Any]:
    counts = {kind: sum(item["verdict"] == kind for item in checks) for kind in ("PASS", "WARN", "FAIL", "SKIP")}
    summary = {"verdict": verdict, "exit_code": 0, "reasons": [], "counts": counts, "diagnosis": [], "gpu": "absent"}
    return {
        "subject": {"image": "registry.example.com/train:1", "name": "train", "size_bytes": 2_500_000_000, "tags": []},
        "run": {
            "tier": "quick",
            "runner": "docker",
            "duration_s": 12.34,
            "payload": {"exit_code": 0, "stderr_tail": []},
        },
        "env": {
            "host": {"cpu_model": "Test CPU", "effective": 4.0},
            "gpu": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}],
            "sw": {"torch": "2.7.1+cu126", "torch_cuda": "12.6", "python": "3.12.1"},
        },
        "checks": list(checks),
        "summary": {**summary, **changed},
    }


def test_the_verdict_comes_first_and_last_with_the_exit_code() -> None:
    lines = render_text(record(check("C05")), path="/state/r.json").splitlines()
    assert lines[0] == "PASS  train  registry.example.com/train:1"
    assert lines[1] == "  tier quick, runner docker, 12.3 s, 2.50 GB"
    assert lines[2].startswith("  torch 2.7.1+cu126, CUDA 12.6, Python 3.12.1, 2 x NVIDIA H200")
    assert lines[-2:] == ["PASS  1 passed. Exit code 0.", "record: /state/r.json"]


def test_an_image_by_id_is_called_by_its_tag() -> None:
    made = record(check("C05"))
    made["subject"] |= {"image": "sha256:" + "a" * 64, "tags": ["train:1", "train:2"]}
    assert render_text(made).splitlines()[0] == "PASS  train  train:1"


def test_each_check_has_one_line_with_id_title_verdict_and_message() -> None:
    text = render_text(record(check("C05.fp32"), check("C05.bf16"), check("C06")))
    assert "  PASS  C05  title of C05  2 findings: message of C05.fp32; message of C05.bf16" in text
    assert "  PASS  C06  title of C06  message of C06" in text


def test_what_is_wrong_is_told_in_full_with_advice_and_the_worst_first() -> None:
    checks = [
        check("C05.fp32", "WARN", message="low"),
        check("C05.bf16", "FAIL", message=LONG, advice=["set a", "or b"]),
    ]
    lines = render_text(record(*checks, verdict="FAIL")).splitlines()
    start = lines.index("  FAIL  C05  title of C05")
    assert lines[start + 1].startswith("        C05.bf16 SOME_CODE: the relative error")
    block = "\n".join(lines[start:])
    assert " ".join(LONG.split()) in " ".join(block.split())
    assert "        -> set a\n        -> or b\n        C05.fp32 WARN SOME_CODE: low" in block


def test_a_finding_that_informs_does_not_make_its_check_fail() -> None:
    assert "  WARN  C12  " in render_text(record(check("C12", "FAIL", gates=False)))


def test_what_was_not_checked_is_listed_by_reason() -> None:
    skipped = {"reason_code": "NO_GPU", "message": "torch sees no CUDA device here"}
    text = render_text(record(check("C05"), check("C09", "SKIP", **skipped), check("C10", "SKIP", **skipped)))
    assert "Not checked\n  C09, C10: torch sees no CUDA device here (NO_GPU)\n" in text
    assert "PASS  C09" not in text


def test_not_verified_reads_as_words_with_its_reason_and_advice() -> None:
    reasons = [{"code": "NO_GPU", "message": "no GPU took part", "advice": "run it on a GPU"}]
    text = render_text(record(check("C05"), verdict="NOT_VERIFIED", reasons=reasons, exit_code=5))
    assert text.startswith("NOT VERIFIED  train")
    assert "\nNO_GPU: no GPU took part\n  -> run it on a GPU\n" in text
    assert "\nNOT VERIFIED  1 passed. Exit code 5.\n" in text


def test_the_payloads_last_words_are_shown_when_kept() -> None:
    made = record(check("C05"))
    made["run"]["payload"] = {"exit_code": 139, "stderr_tail": ["C05 GEMM", "Segmentation fault"]}
    assert "Last output of the payload (exit code 139)\n  | C05 GEMM\n  | Segmentation fault" in render_text(made)


@pytest.mark.requirement("R36")
def test_the_payloads_last_words_are_no_commands_of_a_ci_system() -> None:
    made = record(check("C05", "FAIL", message="x ##[add-mask]y"))
    words = ["##vso[task.setvariable variable=a]b", "a ##[group]c", "::stop-commands::d"]
    made["run"]["payload"] = {"exit_code": 139, "stderr_tail": words}
    text = render_text(made)
    assert not re.search(r"##\w*\[|^\s*::", text, re.MULTILINE)
    assert "##" not in pretty(made)
    assert json.loads(pretty(made)) == made


def test_the_benchmarks_have_their_tables() -> None:
    copies = [
        check(f"C10.{way}_{kind}_256MiB", observed={"gb_per_s": rate})
        for way, kind, rate in (("h2d", "pinned", 50.0), ("h2d", "pageable", 20.0), ("d2h", "pinned", 40.5))
    ]
    amp = {"step_ms": 1.5, "time_ratio_to_fp32": 0.5, "peak_bytes": 3 << 20, "loss_rel_err": 2e-5, "grad_rel_l2": None}
    lines = render_text(record(*copies, check("C14.bench.mlp.bf16", observed=amp))).splitlines()
    start = lines.index("Copies with pinned and pageable memory, GB/s")
    assert lines[start + 1].split() == [
        "size",
        "H2D",
        "pinned",
        "pageable",
        "ratio",
        "D2H",
        "pinned",
        "pageable",
        "ratio",
    ]
    assert lines[start + 2].split() == ["256", "MiB", "50.0", "20.0", "2.50", "40.5", "-", "-"]
    start = lines.index("Mixed precision, one training step")
    assert lines[start + 1].split()[-6:] == ["peak", "MiB", "loss", "err", "grad", "err"]
    assert lines[start + 2].split() == ["mlp", "bf16", "1.5", "2.00x", "3.0", "2.0e-05", "-"]


def test_there_is_no_table_where_nothing_was_measured() -> None:
    text = render_text(record(check("C05")))
    assert "Page-locked" not in text
    assert "Mixed precision" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_lines_fit_the_width(width: int) -> None:
    checks = [check("C05", message=LONG), check("C06", "FAIL", message=LONG, advice=[LONG]), check("C07", "SKIP")]
    lines = report_lines(record(*checks, verdict="FAIL"), width=width)
    assert [plain(line) for line in lines if cells(plain(line)) > width] == []


def test_color_repeats_what_the_words_say() -> None:
    made = record(check("C05"), check("C06", "FAIL", message=LONG), verdict="FAIL")
    colored = render_text(made, color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == render_text(made)


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J", "a\nb\rc", "\u202eevil", "::error file=x::y", "##[command]x", "[bold]x[/bold]", "\x9b1m"]
)
def test_foreign_text_steers_neither_terminal_nor_ci(hostile: str) -> None:
    made = record(check("C05", "FAIL", message=hostile, advice=[hostile], title=hostile))
    made["subject"]["image"] = hostile
    for text in (render_text(made), render_text(made, width=40)):
        assert all(char.isprintable() or char == "\n" for char in text)
        assert not any(line.lstrip().startswith(("::", "##")) for line in text.splitlines())


def test_wide_characters_count_twice_and_marks_not_at_all() -> None:
    assert cells("日本") == 4
    assert cells("e\u0301") == 1
    assert fitted("日本語です", 5) == "日本…"
    assert fitted("short", 5) == "short"


def test_a_long_word_is_broken_and_an_empty_text_is_one_line() -> None:
    assert len(wrapped("x" * 100, 40, first="  ")) == 3
    assert [plain(line) for line in wrapped("", 40, first="- ")] == ["-"]


def test_clean_text_is_one_line() -> None:
    assert clean("a\x1b[31m\n b\t c") == "a [31m b c"


def test_the_brief_form_has_what_failed_in_full_and_the_rest_in_a_few_lines() -> None:
    skipped = {"reason_code": "NO_GPU", "message": "no GPU here"}
    checks = (
        *(check(f"C{number:02}") for number in range(1, 20)),
        check("C20", "FAIL", reason_code="WRONG", message="it is wrong", advice=["Repair it."]),
        *(check(f"C{number}", "SKIP", **skipped) for number in range(30, 40)),
    )
    made = record(*checks, verdict="FAIL", exit_code=6)
    lines = render_text(made, path="/state/r.json", brief=True, rows=[("run it", "envkit run")]).splitlines()
    assert len(lines) <= 4 + 10  # the finding, and the rest
    assert [line for line in lines[:3] if "WRONG: it is wrong" in line or "-> Repair it." in line] == lines[1:3]
    assert "FAIL  train: 1 failed, 19 passed, 10 skipped. Exit code 6." in lines
    assert "  left out  10 findings: no GPU here" in lines
    assert "  run it    envkit run" in lines
    assert lines[-1] == "record: /state/r.json"
    assert not any("C05" in line for line in lines)


def test_the_brief_form_shows_the_last_output_of_a_payload_that_died() -> None:
    made = record(check("C05"), verdict="ERROR", exit_code=6)
    made["run"]["payload"] = {"exit_code": 139, "stderr_tail": ["Segmentation fault"]}
    assert "  | Segmentation fault" in render_text(made, brief=True)
    assert "Segmentation" not in render_text(record(check("C05")), brief=True)
