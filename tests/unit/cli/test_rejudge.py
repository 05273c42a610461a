from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from envkit.cli.main import run
from envkit.ground.paths import state_dir
from envkit.run import runners
from envkit.verify.record import seal
from envkit.verify.selftest import NAME
from tests.support.judging import Replay, document, inspected, plan, printed
from tests.support.launches import record, timed

VERIFY = ["verify", "img", "--only", "C14", "--progress", "quiet"]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How long a step takes in the image, which a test may change; a repeated body takes longer."""
    value = {"ms": 2.0}

    def answer(spec: dict[str, Any]) -> bytes:
        factor = (spec.get("launch") or {}).get("body_factor", 1)
        tree = document(timed(value["ms"] * factor), nonce=spec["nonce"])
        return printed(tree, spec["nonce"])

    replay = Replay(answer, image=inspected(plan(cuda=None)))
    monkeypatch.setattr(runners, "choose", lambda *_args, **_options: replay)
    return value


def test_a_record_is_judged_again_like_the_run(took: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    assert took
    code = run([*VERIFY, "-o", "r.json"])
    first = capsys.readouterr().out
    assert run(["verify", "--judge", "r.json", "-o", "again.json"]) == code
    captured = capsys.readouterr()
    assert captured.out.splitlines()[:-1] == first.splitlines()[:-1]
    assert "judged again from the record, with the record's own thresholds" in captured.err
    assert Path("again.json").read_bytes() == Path("r.json").read_bytes()
    assert len(list((state_dir() / "records").iterdir())) == 1


def test_the_thresholds_that_are_used_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.json").write_text(json.dumps(record(2.0)))
    assert run(["verify", "--judge", "r.json", "--thresholds", "shipped"]) == run(["verify", "--judge", "r.json"])
    assert "with the thresholds of this envkit" in capsys.readouterr().err
    text = (resources.files("envkit.verify") / "thresholds.yaml").read_text()
    Path("t.yaml").write_text(text)
    run(["verify", "--judge", "r.json", "--thresholds", "t.yaml"])
    assert "judged again from the record, with t.yaml" in capsys.readouterr().err
    Path("t.yaml").write_text(text.replace("  C17.difference:", "  C17.other:"))
    assert run(["verify", "--judge", "r.json", "--thresholds", "t.yaml"]) == 2
    assert "t.yaml: missing row C17.difference" in capsys.readouterr().err
    rows = text[text.index("  C17.difference:") :]
    row = rows[: rows.index("\n\n")].replace("C17.difference:", "C17.other:")
    Path("t.yaml").write_text(text.replace("  C17.difference:", f"{row}\n\n  C17.difference:"))
    assert run(["verify", "--judge", "r.json", "--thresholds", "t.yaml"]) == 2
    assert "t.yaml: unknown row C17.other" in capsys.readouterr().err
    assert run(["verify", "--judge", "r.json", "--thresholds", "none.yaml"]) == 2
    assert "--thresholds none.yaml cannot be read" in capsys.readouterr().err


def test_a_changed_record_exits_10_and_another_schema_2(capsys: pytest.CaptureFixture[str]) -> None:
    tree = record(2.0)
    tree["summary"]["verdict"] = "PASS"
    Path("r.json").write_text(json.dumps(tree))
    assert run(["verify", "--judge", "r.json"]) == 10
    assert "error: r.json: the record was changed after it was written" in capsys.readouterr().err
    Path("r.json").write_text(json.dumps({**tree, "sha256": seal(tree)}))
    assert run(["verify", "--judge", "r.json"]) == 10
    assert "the record contradicts itself" in capsys.readouterr().err
    Path("r.json").write_text(json.dumps({**tree, "schema": "envkit.verify/9"}))
    assert run(["verify", "--judge", "r.json"]) == 2
    assert "schema is 'envkit.verify/9'" in capsys.readouterr().err


def test_a_baseline_is_written_by_hand_and_held_to(took: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    for value in (2.0, 2.02, 1.98, 2.01, 1.99):
        took["ms"] = value
        run([*VERIFY, "--write-baseline", "b.json", "--reason", "first measurements"])
    assert "baseline: 1 metrics of this run added to b.json" in capsys.readouterr().err
    kept = Path("b.json").read_bytes()
    took["ms"] = 3.0
    run([*VERIFY, "--baseline", "b.json"])
    assert "SLOWER_THAN_BASELINE" in capsys.readouterr().out
    assert Path("b.json").read_bytes() == kept


def test_a_baseline_needs_a_reason(took: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    assert took
    assert run([*VERIFY, "--write-baseline", "b.json"]) == 2
    assert "--write-baseline needs --reason" in capsys.readouterr().err
    assert not Path("b.json").exists()


def test_the_self_test_tells_and_is_remembered(took: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    assert took
    assert run(["verify", "img", "--self-test", "--progress", "quiet", "-o", "s.json"]) == 0
    out = capsys.readouterr().out
    assert "A against A: no difference, 0 false alarms in 100 splits of 10 launches of the same image" in out
    assert "A against A slowed 1.5 times: detected" in out
    assert "C14.bench.mlp.fp32@cpu: REGRESSION, 1.50 times" in out
    assert json.loads(Path("s.json").read_bytes())["trusted"] is True
    (item,) = json.loads((state_dir() / NAME).read_bytes())["machines"].values()
    assert item["trusted"] is True


def test_where_clocks_cry_wolf_records_say_that_timing_only_informs(
    took: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert took
    run([*VERIFY, "-o", "r.json"])
    hw = json.loads(Path("r.json").read_bytes())["env"]["fingerprint"]["hw"]
    note = {"schema": "envkit.self-test/1", "machines": {hw: {"trusted": False}}}
    (state_dir() / NAME).write_text(json.dumps(note))
    run([*VERIFY, "-o", "r.json"])
    assert json.loads(Path("r.json").read_bytes())["run"]["timing_trusted"] is False
    capsys.readouterr()
