"""The pages besides the report of one verification: one frame, all that they must say, and no foreign markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envkit.checks.sheet import Area, Interval, Intervals, Sides, Treemap
from envkit.report.html.charts import WIDE, areas, draw, span
from envkit.report.html.page import render_html
from envkit.report.reading import metric_title
from tests.support.pages import built_tree, comparison_tree, image_tree, pages, verified_tree
from tests.support.records import cpu_record

_VOID = {"br", "link", "meta", "wbr"}
POSITIVE = st.floats(min_value=1e-3, max_value=1e9)
NAMES = ["verify", "compare", "compare hostile", "compare too few", "verified", "verified hostile", "built",
         "built hostile", "image", "image hostile", "image unread", "watch", "watch hostile"]  # fmt: skip


class Page(HTMLParser):
    """Elements with their attributes and texts; every element is closed."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self._open: list[tuple[str, int]] = []
        self.feed(pages()[name].decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
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

    def section(self, ident: str) -> str:
        (text,) = [text for one, text in self.named("section") if one.get("id") == ident]
        return " ".join(text.split())


def test_every_page_is_checked() -> None:
    assert list(pages()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_whole(name: str) -> None:
    page = Page(name)
    ids = [one["id"] for _, one in page.elements if "id" in one]
    assert len(ids) == len(set(ids))
    for tag, one in page.elements:
        assert not [key for key in one if key.startswith("on") or key in ("src", "style")], tag
        for key in ("aria-labelledby", "aria-describedby"):
            assert set((one.get(key) or "").split()) <= set(ids)
        if tag == "a":
            assert str(one["href"])[1:] in ids
    contents = [text for _, text in page.named("nav")]
    assert len(contents) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(level <= before + 1 for before, level in pairwise(levels))
    drawn = [one for one, _ in page.named("svg") if one.get("role") == "img"]
    assert len(page.named("desc")) == len(drawn)
    assert all(text for _, text in page.named("desc"))
    assert len(page.named("caption")) == len(page.named("table"))


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("hostile")])
def test_foreign_text_makes_no_element(name: str) -> None:
    text = pages()[name].decode()
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text

    def shape(one: str) -> list[str]:
        # Text that is cut to a width may fill a picture's label or not; a <wbr> follows characters of a text.
        return [tag for tag, _ in Page(one).elements if tag not in ("wbr", "text")]

    assert shape(name) == shape(name.removesuffix(" hostile"))


def test_a_comparison_shows_each_interval_and_all_launches() -> None:
    page = Page("compare")
    assert page.section("verdict").startswith("REGRESSION B is slower than A A: train:1 B: train:2 exit code 7")
    assert "Largest slowdown of B +30% CNN training step, fp32, CPU lower is better" in page.section("verdict")
    assert "REGRESSION CNN training step, fp32, CPU: p 0.006; a change of 10% or more counts" in page.section(
        "intervals"
    )
    text = pages()["compare"].decode()
    metrics = comparison_tree()["metrics"]
    assert text.count('class="point fail"') == 2  # in both forms of the figure
    assert text.count('class="point skip"') == 2 * (len(metrics) - 1)
    assert text.count('class="mark s0"') == sum(len(row["first"]) for row in metrics)
    assert text.count('class="mark s1"') == sum(len(row["second"]) for row in metrics)


def test_a_comparison_of_too_few_launches_says_so() -> None:
    page = Page("compare too few")
    assert page.section("verdict").startswith("INCONCLUSIVE")
    assert "1 and 1 launches are usable, 5 per side are needed" in page.section("intervals")
    assert page.section("intervals").endswith("No metric has enough launches.")


def test_a_matrix_has_a_cell_for_each_pair_and_says_why() -> None:
    page = Page("verified")
    cells = [(one.get("class"), " ".join(text.split())) for one, text in page.named("td")]
    assert [kind for kind, _ in cells] == ["fail", "pass", "error", "error", "error", "none"]
    assert cells[1][1] == "PASS5 passed; 41 s"
    assert "C13.shm SHM_TOO_SMALL: the loader keeps 154 MB" in page.section("remarks")
    assert "the worker of train:cu126 ended" in page.section("remarks")
    assert "gpu-01NVIDIA H200, driver 580.95.05" in page.section("matrix")
    whole = max(len(str(one["record"])) for one in verified_tree()["proofs"])
    assert len(pages()["verified"]) < whole, "whole records are not in the page"


def test_a_matrix_of_builds_has_its_last_axis_across() -> None:
    page = Page("built")
    heads = [text for one, text in page.named("th")]
    assert heads == ["Image", "python 3.11", "python 3.12", "cuda 12.6", "cuda 12.8"]
    assert [one.get("class") for one, _ in page.named("td")] == ["pass", "fail", "not_verified", "skip"]
    assert len(built_tree()["images"]) == 3
    assert "the registry denied access" in page.section("remarks")


def test_an_image_shows_layers_packages_and_verifications() -> None:
    page = Page("image")
    assert "Size 1.74 GB all layers as stored; 3.49 GB unpacked" in page.section("verdict")
    listing = image_tree()["listing"]
    for ident, rows in (("layers", listing["layers"]), ("packages", listing["packages"])):
        drawn = pages()["image"].decode().partition(f'<section id="{ident}"')[2].partition("</section>")[0]
        keys = {"layers": 0, "packages": 3}[ident]  # kinds of packages
        known = [one for one in rows if one.get("unpacked")]
        assert drawn.count('class="tile t') == 2 * (len(known) + keys), "in both forms of the figure"
    assert "torch2.7.1+cu126BSD-3-Clause1.64 GB" in page.section("packages")
    assert "not drawn: 1." in page.section("packages")
    assert "NVIDIA H200" in page.section("verifications")
    assert "The sizes of the layers are unknown." in Page("image unread").section("layers")


@given(st.lists(POSITIVE, min_size=1, max_size=60))
def test_the_areas_of_a_treemap_are_the_values(values: list[float]) -> None:
    values.sort(reverse=True)
    found = areas(values, WIDE, 360)
    whole = sum(wide * high for _, _, wide, high in found)
    for value, (x, y, wide, high) in zip(values, found, strict=True):
        assert wide * high / whole == pytest.approx(value / sum(values), rel=1e-6, abs=1e-12)
        assert min(x, y) >= -1e-6
        assert x + wide <= WIDE + 1e-6
    assert whole == pytest.approx(WIDE * 360)


@example(1.0, 1e-10)  # values that hardly differ
@given(st.floats(0.01, 100), st.floats(0, 50))
def test_a_span_of_round_values_holds_both_ends(low: float, more: float) -> None:
    found = span(low, low + more, 5)
    assert found[0] <= low * (1 + 1e-6)
    assert found[-1] >= (low + more) * (1 - 1e-6)
    assert 2 <= len(found) <= 9


def _interval(ends: list[float], least: float) -> Interval:
    low, middle, high = ends
    return Interval("name", low, middle, high, least, label="1.0 SAME", kind="skip")


@given(st.lists(st.tuples(POSITIVE, POSITIVE, POSITIVE, st.floats(0.01, 2)), min_size=1, max_size=5))
def test_intervals_and_sides_stay_in_their_picture(rows: list[tuple[float, float, float, float]]) -> None:
    found = [_interval(sorted(row[:3]), row[3]) for row in rows]
    drawn = str(draw(Intervals("x", "t", "d", found, "as fast as A")))
    drawn += draw(Sides("y", "t", "d", [("A", [row[0] for row in rows]), ("B", [row[1] for row in rows])], "ms"))
    drawn += draw(Treemap("z", "t", "d", [Area("n", row[0], "1 GB", group) for row in rows for group in ("a", "")]))
    for value in re.findall(r' (?:x|x1|x2|cx)="([^"]+)"', drawn):
        assert -0.1 <= float(value) <= WIDE + 0.1


def test_a_comparison_says_in_its_numbers_what_was_required() -> None:
    numbers = Page("compare").section("metrics")
    assert (
        "A difference needs p below 0.05 (Holm); the smallest that these launches and metrics can reach is 0.0065"
        in numbers
    )
    assert "C14.bench.cnn.fp32@cpu" in numbers


@pytest.mark.parametrize(
    ("key", "title"),
    [
        ("C14.bench.mlp.bf16@gpu:0", "MLP training step, bf16, GPU 0"),
        ("C10.h2d_pinned_256MiB@gpu:0", "Copies and memory: h2d pinned 256MiB, GPU 0"),
        ("C99.other@cpu", "C99.other@cpu"),
        ("", ""),
    ],
)
def test_a_metric_is_named_in_words(key: str, title: str) -> None:
    assert metric_title(key) == title


def test_the_bottleneck_and_its_advice_are_at_the_top_of_a_watched_run() -> None:
    page = Page("watch")
    assert "Bottleneck copy-bound copies to the GPU take 30% of each step" in page.section("verdict")
    text = pages()["watch"].decode()
    assert text.index('id="verdict"') < text.index('<section id="limits"') < text.index('<section id="step"')


def test_a_matrix_of_builds_counts_what_was_built_and_what_was_verified() -> None:
    assert "Built 2 of 4 images" in Page("built").section("verdict")


def test_an_image_whose_runs_do_not_count_says_why() -> None:
    assert "1 run passed, but does not count: unsigned" in Page("image").section("verdict")


def test_without_a_gpu_the_page_says_how_to_verify() -> None:
    tree = cpu_record()
    failed = [check for check in tree["checks"] if check["verdict"] not in ("PASS", "SKIP")]
    tree["checks"] = [check for check in tree["checks"] if check not in failed]
    tree["summary"]["reasons"] = [{"code": "NO_GPU", "message": "no GPU took part", "advice": ""}]
    page = render_html(tree).decode()
    assert "Nothing failed. To verify the image, run envkit verify on a machine with an NVIDIA GPU" in page
    assert "No failures and no warnings." not in page
