from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import PayloadError
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.verify import trace
from envkit.verify.driver import Options, verify_image
from envkit.verify.trace import packed_trace, unpacked, write_trace
from tests.support import judging
from tests.support.judging import Replay, plan, printed

EVENTS = {"traceEvents": [{"name": "train", "ph": "X", "ts": 1, "dur": 2}]}


def document(raw: bytes, **changed: Any) -> dict[str, Any]:
    found = {"format": trace.FORMAT, "steps": 8, "bytes": len(raw), "data": base64.b64encode(raw).decode()}
    return {"trace": {**found, **changed}}


def test_a_trace_is_written_packed_or_plain(tmp_path: Path) -> None:
    packed = packed_trace(document(gzip.compress(json.dumps(EVENTS).encode())))
    write_trace(packed, tmp_path / "t.json")
    write_trace(packed, tmp_path / "t.json.gz")
    assert json.loads((tmp_path / "t.json").read_text()) == EVENTS
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())) == EVENTS


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (None, "returned no trace"),
        ({}, "returned no trace"),
        ({"trace": "x"}, "returned no trace"),
        ({"trace": {"error": "RuntimeError: no profiler"}}, "could not record a trace: RuntimeError: no profiler"),
        (document(b"not gzip"), "cannot be read"),
        (document(gzip.compress(b"not json")), "cannot be read"),
        (document(gzip.compress(b"[" * 100000)), "cannot be read"),
        (document(gzip.compress(json.dumps(EVENTS).encode())[:-9]), "cut short"),
        (document(gzip.compress(b"[]")), "has no events"),
        (document(b"", data="*"), "cannot be read"),
        (document(b"", format="pickle"), "could not record a trace"),
    ],
)
def test_what_is_no_trace_is_told(tree: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        packed_trace(tree)
    assert caught.value.hint


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_BYTES", 1 << 16)
    with pytest.raises(ValueError, match="longer than 65536"):
        unpacked(gzip.compress(bytes(1 << 20)))


def test_a_run_is_asked_for_a_trace_and_hands_its_document_over() -> None:
    good = document(gzip.compress(json.dumps(EVENTS).encode()))
    runner = Replay(lambda spec: printed({**judging.document(nonce=spec["nonce"]), **good}, spec["nonce"]))
    seen: list[Any] = []
    options = Options(only=("C05",), on_trace=seen.append)
    record = verify_image(image_name("image"), plan(cuda=None), runner, Silent(), options)
    assert runner.argv[-1] == "--trace"
    assert json.loads(unpacked(packed_trace(seen[0]))) == EVENTS
    assert b'"trace"' not in record.to_bytes()


def test_no_trace_is_asked_for_where_nobody_wants_one() -> None:
    runner = Replay(lambda spec: printed(judging.document(nonce=spec["nonce"]), spec["nonce"]))
    verify_image(image_name("image"), plan(cuda=None), runner, Silent(), Options(only=("C05",)))
    assert "--trace" not in runner.argv
