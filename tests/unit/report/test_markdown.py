from __future__ import annotations

import pytest

from envkit.report.markdown import render_markdown
from tests.support.records import HOSTILE, cpu_record, dead_record, gpu_record


def text(tree: dict[str, object], limit: int | None = None) -> str:
    return render_markdown(tree, limit=limit).decode()


def test_the_verdict_comes_first_then_what_is_wrong_with_its_advice() -> None:
    found = text(gpu_record())
    assert found.startswith("## ❌ FAIL: train\n\nImage: registry.example.com/team/train@sha256:ccc")
    assert "1 failed, 1 error" in found
    fail, error, warn = (found.index(word) for word in ("#### ❌ FAIL C13", "#### 🛑 ERROR C17", "#### ⚠️ WARN C10"))
    assert fail < error < warn
    assert "  - → Start the container with --shm-size=" in found
    assert "`envkit verify IMAGE --tier standard --only C12`" in found


def test_the_numbers_are_tables() -> None:
    found = text(gpu_record())
    assert "| 256 MiB | 55.2 | 18.1 | 3.05 | 38.4 | 11.0 | 3.49 |" in found
    assert "| decoding | no | once | 655 | 1082 | 3982 | 3982 |" in found
    assert "| mlp | bf16 | 1.4 | 6.50x | 301.0 | 1.3e-04 | 5.2e-03 |" in found
    assert "| a training step | 41.2 | 100% |" in found
    assert "| nccl | 8 | 0 | 2.2e-16 | 270.0 | 472.5 |" in found
    assert "| simplejpeg | 769 | 81 | 0 |" in found


def test_what_the_numbers_say_follows_their_table() -> None:
    found = text(gpu_record())
    use = "num\\_workers=8, prefetch\\_factor=2, persistent\\_workers=True: 3904 samples/s"
    assert f"- Recommended on this machine, bound by decoding: {use}" in found
    assert "- Bottleneck data: the loader is the bottleneck: starved 35%" in found
    assert "- → The loader alone is slower than the device" in found
    assert "- The machine was busy during some of these" in found


def test_without_data_there_are_no_tables_and_without_faults_no_list() -> None:
    found = text(cpu_record())
    assert "What was measured" not in found
    assert "Problems" not in found
    assert "| ⏭️ SKIP | C04 " in found


def test_every_row_has_as_many_cells_as_its_head() -> None:
    for tree in (gpu_record(), gpu_record(hostile=HOSTILE), dead_record()):
        width = 0
        for line in text(tree).splitlines():
            cells = line.replace("\\|", "").count("|")
            assert line.startswith("|") or not width or not line or cells == 0
            if not line.startswith("|"):
                width = 0
            elif width:
                assert cells == width, line
            else:
                width = cells


@pytest.mark.parametrize("limit", [60_000, 4000, 3000, 300, 40, 1])
def test_a_limit_is_kept_and_the_verdict_stays(limit: int) -> None:
    found = text(gpu_record(), limit)
    assert len(found.encode()) <= limit
    if limit >= 300:
        assert found.startswith("## ❌ FAIL: train")
    assert ("All checks" in found) == (limit == 60_000)


def test_foreign_text_is_no_markup() -> None:
    found = text(gpu_record(hostile="<b>x</b> **bold** [l](u) |cell| @someone a@b `code` #1"))
    assert "<b>" not in found
    assert "&lt;b&gt;x&lt;/b&gt; \\*\\*bold\\*\\* \\[l\\](u) \\|cell\\| @\u200bsomeone a@b `code` \\#1" in found


def test_a_backtick_without_its_partner_is_only_that() -> None:
    assert "a \\` b" in text(gpu_record(hostile="a ` b"))
