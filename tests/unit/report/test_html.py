from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.text import clean
from envkit.report.environment import without_identifiers
from envkit.report.formats import KINDS, render
from envkit.report.html.markup import Markup, el
from envkit.report.html.page import SECTIONS, render_html
from tests.support.records import HOSTILE, check, cpu_record, dead_record, gpu_record

_VOID = {"br", "link", "meta", "wbr"}
RECORDS = {"gpu": gpu_record(), "hostile": gpu_record(hostile=HOSTILE), "cpu": cpu_record(), "dead": dead_record()}


class Page(HTMLParser):
    """The elements in order, each with its attributes, its ancestors' names and its own text."""

    def __init__(self, tree: dict[str, Any]) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.texts: dict[int, str] = {}
        self._open: list[tuple[str, int]] = []
        self.feed(render_html(tree).decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(name for name, _ in self._open)))
        if tag not in _VOID:
            self._open.append((tag, len(self.elements) - 1))

    def handle_endtag(self, tag: str) -> None:
        name, _ = self._open.pop()
        assert name == tag

    def handle_data(self, data: str) -> None:
        for _, index in self._open:
            self.texts[index] = self.texts.get(index, "") + data

    def named(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(found[1], self.texts.get(at, "")) for at, found in enumerate(self.elements) if found[0] == tag]


@pytest.fixture(params=list(RECORDS))
def page(request: pytest.FixtureRequest) -> Page:
    return Page(RECORDS[request.param])


def test_every_section_is_there_under_a_heading_and_in_the_navigation(page: Page) -> None:
    sections = [attributes.get("id") for attributes, _ in page.named("section")]
    assert [name for name in sections if name in SECTIONS] == list(SECTIONS)
    links = [attributes.get("href") for attributes, _ in page.named("a")]
    assert links == ["#main", *(f"#{name}" for name in SECTIONS)]


def test_headings_descend_without_a_gap(page: Page) -> None:
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(level <= before + 1 for before, level in pairwise(levels))


def test_ids_are_unique_and_every_reference_has_its_target(page: Page) -> None:
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in page.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert set((attributes.get(name) or "").split()) <= set(ids)
        if (attributes.get("href") or "").startswith("#"):
            assert str(attributes["href"])[1:] in ids


def test_pictures_and_tables_have_names(page: Page) -> None:
    drawn = [attributes for attributes, _ in page.named("svg") if attributes.get("role") == "img"]
    assert len(page.named("title")) == len(drawn) + 1
    assert all(text for _, text in page.named("title"))
    assert [text for _, text in page.named("desc") if not text] == []
    assert len(page.named("desc")) == len(drawn)
    others = [attributes for attributes, _ in page.named("svg") if attributes.get("role") != "img"]
    assert all(attributes.get("aria-hidden") == "true" for attributes in others)
    assert len(page.named("caption")) == len(page.named("table"))
    assert all(attributes.get("scope") for attributes, _ in page.named("th"))


def test_nothing_is_fetched_and_only_its_own_style_and_script_run(page: Page) -> None:
    (policy,) = [one["content"] for one, _ in page.named("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        ((attributes, text),) = page.named(tag)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
        assert "src" not in attributes
    for tag, attributes, _ in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")], tag
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))


def test_foreign_text_makes_no_element_and_no_attribute() -> None:
    def shape(tree: dict[str, Any]) -> list[str]:
        # A <wbr> only follows the characters of a text.
        return [name for name, _, _ in Page(tree).elements if name != "wbr"]

    # The same record with harmless words has exactly the same elements.
    assert shape(gpu_record(hostile=HOSTILE)) == shape(gpu_record(hostile="harmless words"))
    text = render_html(gpu_record(hostile=HOSTILE)).decode()
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_the_raw_record_can_be_read_back() -> None:
    for tree in RECORDS.values():
        ((_, raw),) = [found for found in Page(tree).named("pre") if found[0].get("id") == "raw"]
        assert json.loads(raw) == without_identifiers(tree)


def needs(tree: dict[str, Any]) -> dict[str, str]:
    """What the box of what was not measured says."""
    page = Page(tree)
    (box,) = [text for one, text in page.named("div") if one.get("class") == "box"]
    named = zip(page.named("dt"), page.named("dd"), strict=True)
    return {name: value for (_, name), (_, value) in named if f"{name}{value}" in box}


def test_what_needs_a_gpu_stands_in_one_box() -> None:
    found = needs(cpu_record())
    assert next(iter(found)) == "Needs a GPU"
    assert found["Needs a GPU"].startswith("Bandwidth between host and GPU, Copy/compute overlap, ")
    assert found["Needs the tier deep"] == "Storage"
    absent = [text for attributes, text in Page(cpu_record()).named("p") if attributes.get("class") == "absent"]
    assert absent == ["No failures and no warnings.", "No rule was applied.", "Too few samples in this run."]


def test_a_gpu_that_is_there_is_not_asked_for() -> None:
    assert list(needs(gpu_record())) == ["Did not run, or measured nothing"]


def test_the_headline_numbers_carry_what_they_compare_with_and_their_direction() -> None:
    tree = gpu_record()
    check(tree, "C15.gemm.bf16")["derived"]["limit_tflops"] = 1000.0
    (row,) = [text for one, text in Page(tree).named("ul") if one.get("class") == "tiles"]
    assert [" ".join(line.split()) for line in row.strip().split("\n")] == [
        "Host to device 55.2 GB/s 88% of the link's 63 GB/s higher is better",
        "Device to host 38.4 GB/s 61% of the link's 63 GB/s higher is better",
        "Best loader setting 8 workers 3904 samples/s, bound by decoding, 6.1x num_workers=0",
        "AMP speedup 2.4 to 6.5x a training step in bf16 against fp32 higher is better",
        "Matrix products 755 TFLOP/s bf16 products, 76% of the GPU's peak 1000 higher is better",
        "Starved share 35% of a training step waits for its loader lower is better",
    ]
    assert "the GPU&#x27;s peak 1000" in render_html(tree).decode()


def test_what_was_not_measured_has_no_tile() -> None:
    assert [one for one, _ in Page(cpu_record()).named("ul") if one.get("class") == "tiles"] == []


def test_a_precision_has_one_color_in_every_figure() -> None:
    text = render_html(gpu_record()).decode()
    drawn = re.findall(r">(?:\w+ )?(fp32|tf32|fp16|bf16)</text><rect [^>]*class=\"fill ([\w-]+)\"", text)
    drawn += re.findall(
        r">(?:\w+ )?(fp32|tf32|fp16|bf16)</text><line [^>]*></line><circle [^>]*class=\"mark ([\w-]+)\"", text
    )
    assert len(drawn) == 9 + 9 + 9 + 4
    assert {(name, fill) for name, fill in drawn} == {(name, f"p-{name}") for name in ("fp32", "tf32", "fp16", "bf16")}


def test_identifiers_of_gpus_are_hidden_unless_asked_for() -> None:
    tree = gpu_record()
    uuid = tree["env"]["gpu"][0]["uuid"]
    check(tree, "C10.link")["observed"]["seen"] = f"on {uuid}, MIG-{uuid[4:]}"
    check(tree, "C10.link")["message"] = f"GPU {uuid} is slow"
    assert uuid[4:] not in render("html", tree).decode()
    assert uuid in render("html-full", tree).decode()
    assert tree["env"]["gpu"][0]["uuid"] == uuid, "the record itself stays"


def test_the_environment_has_labels_and_units() -> None:
    page = Page(gpu_record())
    terms = {name: text for (_, name), (_, text) in zip(page.named("dt"), page.named("dd"), strict=True)}
    assert terms["Shared memory"] == "64 MiB"
    assert terms["Memory limit of the container"] == "128 GB"
    assert terms["Compute capability"] == "9.0"
    assert terms["Memory"] == "140.4 GiB"
    assert terms["Fastest link"] == "PCIe 5.0 x16"
    assert terms["UUID"] == "hidden"
    assert terms["CUDA of PyTorch"] == "12.6"
    assert terms["Size unpacked"] == "2.996 GiB"
    assert "memcg_gb" not in terms


def test_checks_stand_below_their_topics_and_failures_come_first() -> None:
    (section,) = [text for one, text in Page(gpu_record()).named("section") if one.get("id") == "checks"]
    told = " ".join(section.split())
    topics = [
        "Data loading FAIL /dev/shm holds the declared loader C13",
        "Correct results ERROR no_grad",
        "Copies and memory WARN H2D and D2H",
        "Training and several processes WARN mini training",
        "Mixed precision PASS AMP semantics",
    ]
    places = [told.index(topic) for topic in topics]
    assert places == sorted(places)
    assert told.index("WARN H2D and D2H bandwidth, link state C10") < told.index("PASS copy and compute overlap C11")


def test_every_picture_is_drawn_where_there_is_data() -> None:
    names = [
        text.removesuffix(" higher is better").removesuffix(" lower is better")
        for _, text in Page(gpu_record()).named("figcaption")
    ]
    assert names == [
        "Host to device: bandwidth by size",
        "Device to host: bandwidth by size",
        "A copy and kernels, alone and together",
        "Loader throughput, bound by decoding",
        "Loader throughput, bound by waiting for storage",
        "Speed of a step, fp32 = 1",
        "Memory of a step, fp32 = 1",
        "Gradient error against fp32",
        "Rate of a matrix product",
        "Memory kept for backward by batch size, fp32 = 1",
        "A call, eager and compiled",
        "A step, with and without its loader",
        "Decoding JPEG, 500 x 375",
        "Decoding JPEG, 1920 x 1080",
        "Clock under load",
        "Samples of C10",
        "Samples of C11",
        "Samples of C14",
        "Samples of C15",
        "Samples of C20",
        "Samples of C21",
        "Samples of C22",
        "Samples of C23",
        "Samples of C24",
    ]


def test_what_is_wrong_comes_worst_first_with_its_advice() -> None:
    found = Page(gpu_record())
    problems = [text for attributes, text in found.named("article")]
    assert [re.match(r"[A-Z]+ .*(C\d\d)", text.strip().split("\n")[0])[1] for text in problems] == [  # type: ignore[index] # each has one
        "C13",
        "C17",
        "C10",
        "C23",
    ]
    assert "Start the container with --shm-size=" in problems[0]
    assert found.named("article")[3][1].rstrip().endswith("envkit verify IMAGE --tier standard --only C12.")


def test_thresholds_carry_their_sources() -> None:
    page = Page(gpu_record())
    (table,) = [text for _, text in page.named("table") if text.strip().startswith("Rules and their numbers")]
    assert "thresholds: C10.h2d_pinned" in table
    assert "microsoft/superbench-results v0.4.0" in table


def test_the_payloads_last_words_are_shown() -> None:
    assert "Segmentation fault" in next(text for _, text in Page(dead_record()).named("details"))


def test_a_busy_machine_is_told_of() -> None:
    tree = gpu_record()
    check(tree, "C10.h2d_pinned_1MiB")["noise"] = {"gate": "CPU pressure 0.42 above 0.10"}
    sections = [found for found in Page(tree).named("section") if found[0].get("class") == "topic"]
    assert [one["id"] for one, text in sections if "machine was busy" in text] == ["bandwidth", "loading"]


def test_a_topic_says_what_to_do_and_shows_a_table_without_a_picture_unfolded() -> None:
    page = Page(gpu_record())
    topics = {one["id"]: text for one, text in page.named("section") if one.get("class") == "topic"}
    assert "Recommended on this machine, bound by decoding: num_workers=8, prefetch_factor=2" in topics["loading"]
    assert "Bottleneck data: the loader is the bottleneck" in topics["step"]
    assert "Find the loader's best settings on this machine" in topics["step"]
    assert "The numbers" in topics["step"]
    assert "nccl80" in re.sub(r"\s", "", topics["collectives"])
    assert "The numbers" not in topics["collectives"]


def test_parts_of_a_step_that_overlap_are_not_laid_end_to_end() -> None:
    tree = gpu_record()
    assert "Of which waiting for data" not in render_html(tree).decode()
    check(tree, "C23.training")["observed"]["data_wait_s"] = 0.04
    text = render_html(tree).decode()
    assert "Of which waiting for data" in text
    assert "The host waits for data while the device still computes" in text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(RECORDS))
def test_the_same_record_gives_the_same_bytes(kind: str, name: str) -> None:
    first = render(kind, RECORDS[name])
    assert first == render(kind, json.loads(json.dumps(RECORDS[name])))
    assert first.endswith(b"\n")
    assert first.decode()


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_whose_measurements_have_other_types_is_shown_all_the_same(kind: str) -> None:
    tree = gpu_record()
    for index, item in enumerate(tree["checks"]):
        broken: list[Any] = [None, "x", [1], {"values": "x"}, True]
        item["samples"] = broken[index % 5] if index % 5 in (0, 3) else None
        item["observed"] = dict.fromkeys(item["observed"], broken[(index + 1) % 5])
        item["derived"] = {"limit": broken[index % 5]}
        item["rule"] = {"type": "informs", "fail_below": broken[index % 5]}
    assert render(kind, tree)


def test_text_is_escaped_unless_it_is_markup() -> None:
    assert el("p", "<&\"'", Markup("<br>"), None, ["a", el("b", 1)], class_="x", hidden=True, id=None) == (
        '<p class="x" hidden>&lt;&amp;&quot;&#x27;<br>a<b>1</b></p>'
    )
    assert el("meta", content='"><script>') == '<meta content="&quot;&gt;&lt;script&gt;">'
    assert el("p", "a", " b ", "c") == "<p>a b c</p>"


@given(st.text())
def test_any_text_stays_text_in_an_element_and_in_an_attribute(text: str) -> None:
    seen: list[tuple[str, object]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append((tag, attrs))

        def handle_data(self, data: str) -> None:
            seen.append(("", data))

    reader = Reader()
    reader.feed(el("p", "x", text, "y", title=text))
    reader.close()
    shown = clean(text)
    blanks = (" " if text[:1] == " " else "", " " if text[-1:] == " " and text != " " else "")
    assert seen == [("p", [("title", shown)]), ("", f"x{blanks[0]}{shown}{blanks[1]}y")]
