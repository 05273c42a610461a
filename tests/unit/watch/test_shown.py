"""A record as text, as a page, side by side with another, and as a file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from envkit.ground.errors import UsageError
from envkit.watch.advice import Advice
from envkit.watch.judge import judge
from envkit.watch.model import read
from envkit.watch.page import render_html
from envkit.watch.symptoms import load
from envkit.watch.text import bar, compared, gain, lines
from envkit.watch.timeline import draw, tracks
from tests.support.watched import card, on_cpu, process, record, sample, total
from tests.unit.watch.test_judge import COPIES, SLOW_LOADER

SLOW = on_cpu(SLOW_LOADER, num_workers=0)
ON_GPU = record(
    process(COPIES), samples=(sample(gpus=(card(),), waiting=0.3, steps=5.0), sample(at_s=11.0, gpus=(card(),)))
)


def test_the_text_begins_with_the_answer_and_ends_with_what_to_change() -> None:
    told = list(lines(SLOW, judge(SLOW), width=80))
    assert told[0] == "watch: data-bound: each step waits 60% of its time for data"
    assert "    change  num_workers=3 (now 0)" in told
    assert any(re.match(r"    waiting for data  █{18} +60%    60.0 ms$", line) for line in told)
    assert max(map(len, told)) <= 80


@pytest.mark.parametrize(
    ("range_", "text"),
    [
        ((1.0, 2.5), "up to 2.5x faster"),
        ((1.8, 2.2), "about 2.0x faster"),
        ((1.2, 3.0), "1.2x to 3.0x faster"),
        ((0.9, 6.0), "0.9x to 6.0x as fast"),
        ((1.0, 1.0), ""),
        (None, ""),
    ],
)
def test_a_gain_is_told_as_exactly_as_it_is_known(range_: tuple[float, float] | None, text: str) -> None:
    assert gain(Advice(id="a", text="b", gain=range_)) == text


def test_a_bar_has_as_many_cells_as_its_share() -> None:
    assert [len(bar(share)) for share in (0.0, 0.5, 1.0, 7.0)] == [0, 15, 30, 30]


def test_lost_events_and_missing_probes_are_told() -> None:
    one = replace(SLOW.processes[0], lost=7, facts=dict(SLOW.processes[0].facts) | {"probe_ddp": {"failed": "x"}})
    told = "\n".join(lines(replace(SLOW, processes=(one,)), judge(SLOW), width=100))
    assert "7 events came faster than they were read" in told
    assert "(probe_ddp)" in told


def test_two_records_stand_side_by_side() -> None:
    other = on_cpu({"next": total(0.01)}, num_workers=4)
    rows = {row[0].strip(): row[1:] for row in compared(judge(SLOW), judge(other))}
    assert rows["answer"] == ["data-bound", "compute-bound", ""]
    assert rows["waiting for data"] == ["60.0 ms", "1.0 ms", "0.02x"]
    assert rows["time per step"] == ["100.0 ms", "100.0 ms", "1.00x"]


def test_a_record_without_steps_has_no_time_per_step_in_a_comparison() -> None:
    rows = {row[0].strip(): row[1:] for row in compared(judge(SLOW), judge(replace(SLOW, processes=())))}
    assert rows["time per step"] == ["100.0 ms", "", ""]
    assert rows["waiting for data"] == ["60.0 ms", "", ""]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href") and not (value or "").startswith(("#", "data:")):
                self.outside.append(f"{tag} {value}")


def test_the_page_is_one_file_with_all_its_sections() -> None:
    page = Page()
    page.feed(render_html(ON_GPU, judge(ON_GPU)).decode())
    assert {"verdict", "step", "timeline", "limits", "record", "raw", "theme", "save"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert page.outside == []


def test_the_page_is_the_same_for_the_same_record_and_escapes_the_command() -> None:
    hostile = replace(ON_GPU, command=("python", "<script>alert(1)</script>"))
    text = render_html(hostile, judge(hostile))
    assert text == render_html(hostile, judge(hostile))
    assert b"<script>alert" not in text


def test_the_timeline_has_a_track_for_all_that_is_known_and_none_for_what_is_not() -> None:
    names = [one.name for one in tracks(ON_GPU)]
    assert names == [
        "waiting for data", "CPUs busy", "steps per second", "GPU 0 utilization", "GPU 0 clock", "GPU 0 memory",
    ]  # fmt: skip
    drawn = draw(ON_GPU)
    assert drawn is not None
    assert ET.fromstring(str(drawn)).tag == "figure"
    assert draw(replace(ON_GPU, samples=())) is None


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**ON_GPU.to_json(), "judgment": judge(ON_GPU).to_json()}))
    assert read(path) == ON_GPU
    assert judge(read(path)).to_json() == judge(ON_GPU).to_json()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema": "envkit.verify/1"}',
        '{"schema": "envkit.watch/1"}',
        '{"schema": "envkit.watch/1", "machine": 3}',
    ],
)
def test_what_is_no_record_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"a\.json is not a record of `envkit watch`"):
        read(path)


def test_a_missing_record_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "none.json")


def test_every_limit_and_gain_has_a_source() -> None:
    symptoms = load()
    assert all(symptoms.sources[name] for name in (*symptoms.limits, *symptoms.gains))
    assert set(symptoms.kinds) == {
        "data-bound", "copy-bound", "launch-bound", "compute-bound", "communication-bound", "memory-bound",
        "cpu-starved", "throttled", "failed", "waiting", "compiling", "rank-bound", "pinned",
    }  # fmt: skip
