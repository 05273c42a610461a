"""Fresh interpreters: they answer, fail, or are ended in time with all they started."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

probe: Any = import_module("envkit.smoke.probe")


def test_an_answer_is_merged_in() -> None:
    found = probe.probe("import json, sys; print(json.dumps({'got': sys.argv[1:]}))", ["a", "b"], 30)
    assert (found["outcome"], found["got"]) == ("answered", ["a", "b"])


def test_a_failure_keeps_the_end_of_stderr() -> None:
    found = probe.probe("raise SystemExit('no such thing')", [], 30)
    assert (found["outcome"], found["returncode"], found["text"].strip()) == ("failed", 1, "no such thing")


def test_what_never_answers_is_ended_with_what_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(mark)!r}).touch(); time.sleep(0.05)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    found = probe.probe(code, [], 1.5)
    assert found["outcome"] == "timeout"
    mark.unlink(missing_ok=True)
    time.sleep(0.3)
    assert not mark.exists()


def test_a_part_of_the_payload_is_found_from_a_fresh_interpreter() -> None:
    found = probe.probe(probe.code_of("ranks"), ["gloo"], 30)
    assert found["outcome"] == "failed"
    assert "ranks.py" in found["text"]
    assert "list index out of range" in found["text"]
