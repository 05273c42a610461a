"""The HTML report as a browser shows it: nothing to complain of, nothing too wide, everything within reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.report.environment import without_identifiers
from envkit.report.html.page import SECTIONS, render_html
from tests.support.chromium import Browser
from tests.support.records import HOSTILE, cpu_record, dead_record, gpu_record

RECORDS = {"gpu": gpu_record(), "hostile": gpu_record(hostile=HOSTILE), "cpu": cpu_record(), "dead": dead_record()}
WIDE, PHONE = 1280, 360
TAB, ENTER, SHIFT = 9, 13, 8
_FOCUSED = "(e => e.id || e.getAttribute('href') || e.tagName)(document.activeElement)"
# How two colors differ, as WCAG 2 computes it.
_CONTRAST = """(() => {
  const lum = c => c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const e of document.querySelectorAll('main *, header *, nav *, footer *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length) continue;
    const svg = e.namespaceURI.endsWith('svg');
    const front = rgb(getComputedStyle(e)[svg ? 'fill' : 'color']).slice(0, 3);
    const [a, b] = [lum(front), lum(behind(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) bad.push([e.tagName, e.textContent.slice(0, 40), ratio.toFixed(2)]);
  }
  return bad;
})()"""


@pytest.fixture
def pages(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for name, tree in RECORDS.items():
        found[name] = tmp_path / f"{name}.html"
        found[name].write_bytes(render_html(tree))
    return found


def opened(browser: Browser) -> None:
    """Unfold everything."""
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")


@pytest.mark.parametrize("name", list(RECORDS))
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_a_browser_has_nothing_to_complain_of(
    browser: Browser, pages: dict[str, Path], name: str, theme: str, width: int
) -> None:
    browser.open(pages[name], width=width, theme=theme)
    opened(browser)
    assert browser.complaints() == []
    assert browser.requests() == []
    assert browser.value("document.images.length") == 0
    shown = browser.value(f"{json.dumps(list(SECTIONS))}.filter(id => document.getElementById(id)?.offsetHeight > 0)")
    assert shown == list(SECTIONS)


@pytest.mark.parametrize("name", list(RECORDS))
def test_a_phone_scrolls_one_way_only(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], width=PHONE)
    assert browser.value("document.documentElement.scrollWidth") == PHONE
    opened(browser)
    assert browser.value("document.documentElement.scrollWidth") == PHONE
    wide = """[...document.querySelectorAll('main *')].filter(
        e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, pre, symbol')).length"""
    assert browser.value(wide) == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser: Browser, pages: dict[str, Path], theme: str) -> None:
    browser.open(pages["gpu"], width=WIDE, theme=theme)
    opened(browser)
    assert browser.value(_CONTRAST) == []


def test_the_verdict_is_in_sight_at_once(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["gpu"], width=PHONE, height=640)
    assert browser.value("document.querySelector('h1').getBoundingClientRect().bottom") < 320
    assert browser.value("document.querySelector('#problems-h').getBoundingClientRect().top") < 1000


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["gpu"], width=WIDE)
    wanted = browser.value(
        """[...document.querySelectorAll('a[href], button, summary, [tabindex="0"]')]
        .filter(e => e.checkVisibility()).length"""
    )
    order, outlined = [], True
    for _ in range(wanted):
        browser.press("Tab", code=TAB)
        order.append(browser.value("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
        outlined = outlined and browser.value("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert order == sorted(set(order)), "in the order of the page, nothing twice"
    assert outlined
    browser.press("Tab", code=TAB)
    assert browser.value("document.activeElement === document.body || !document.hasFocus()")


def test_the_first_stop_skips_to_the_verdict(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["gpu"], width=WIDE)
    browser.press("Tab", code=TAB)
    assert browser.value(_FOCUSED) == "#main"
    assert browser.value("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter", code=ENTER, text="\r")
    assert browser.value(_FOCUSED) == "main"
    browser.press("Tab", code=TAB)
    assert browser.value("document.activeElement.closest('main') !== null")


def test_a_check_unfolds_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["gpu"], width=WIDE)
    browser.value("document.querySelector('.check > summary').focus()")
    browser.press("Enter", code=ENTER, text="\r")
    assert browser.value("document.querySelector('.check').open")


@pytest.mark.parametrize(("theme", "other"), [("light", "dark"), ("dark", "light")])
def test_the_theme_follows_the_system_and_the_button(
    browser: Browser, pages: dict[str, Path], theme: str, other: str
) -> None:
    browser.open(pages["gpu"], width=WIDE, theme=theme)
    back = "getComputedStyle(document.body).backgroundColor"
    pressed = "document.getElementById('theme').getAttribute('aria-pressed')"
    first = browser.value(back)
    assert browser.value(pressed) == str(theme == "dark").lower()
    browser.value("document.getElementById('theme').click()")
    assert browser.value(back) != first
    assert browser.value(pressed) == str(other == "dark").lower()
    browser.value("document.getElementById('theme').click()")
    assert browser.value(back) == first


def test_motion_stops_where_it_is_not_wanted(browser: Browser, pages: dict[str, Path]) -> None:
    scroll = "getComputedStyle(document.documentElement).scrollBehavior"
    browser.open(pages["cpu"], width=WIDE, motion=False)
    assert browser.value(scroll) == "auto"
    browser.open(pages["cpu"], width=WIDE)
    assert browser.value(scroll) == "smooth"


def test_the_record_can_be_saved(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"], width=WIDE)
    browser.value(
        """(() => {
          window.saved = new Promise(done => {
            const make = URL.createObjectURL;
            URL.createObjectURL = file => { file.text().then(done); return make(file); };
          });
          HTMLAnchorElement.prototype.click = function () { window.named = this.download; };
          document.getElementById('save').click();
        })()"""
    )
    tree: dict[str, Any] = json.loads(browser.value("window.saved"))
    assert tree == without_identifiers(RECORDS["hostile"])
    assert browser.value("window.named") == "record.json"


def test_pictures_have_their_names_in_the_accessibility_tree(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["gpu"], width=WIDE)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = {node["role"]["value"]: [] for node in nodes if not node.get("ignored") and "value" in node.get("role", {})}  # type: dict[str, list[str]]
    for node in nodes:
        if not node.get("ignored") and "role" in node:
            named[node["role"]["value"]].append(node.get("name", {}).get("value", ""))
    images = [name for role in ("image", "img", "graphics-document") for name in named.get(role, [])]
    assert "Host to device: bandwidth by size" in images
    assert "" not in images
    assert named["main"]
    assert named["navigation"] == ["Sections"]
    assert named["banner"]
    assert named["contentinfo"]
    assert all(named.get("region", ["x"]))
    assert [name for name in named["button"] if not name] == []
