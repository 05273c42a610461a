"""Every page as a browser shows it, and as axe-core judges it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import IN_CI
from tests.support.chromium import Browser
from tests.support.pages import pages

PAGES = ("verify", "compare", "verified", "built", "image", "watch")
OTHERS = ("compare hostile", "compare too few", "verified hostile", "built hostile", "image hostile", "image unread",
          "watch hostile")  # fmt: skip
PHONE, TABLET, DESK = 375, 800, 1440
# The package carries axe-core's one file; nothing of the rest is used.
_AXE = "axe-playwright-python==0.1.8"
_UNFOLD = "document.querySelectorAll('details').forEach(one => one.open = true)"
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
_RUN = """axe.run(document, %s).then(found => found.violations.map(
    one => [one.id, one.impact, one.nodes.slice(0, 3).map(node => node.html.slice(0, 160))]))"""
_TOO_WIDE = """[...document.querySelectorAll('body *')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, pre, symbol, .unseen')).length"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("axe")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(folder),
        _AXE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = next(iter(folder.glob("*.whl")), None)
    if found is None:
        reason = f"no axe-core here: {done.stderr.strip()[-300:]}"
        if IN_CI:
            pytest.fail(reason)
        pytest.skip(reason)
    with zipfile.ZipFile(found) as wheel:
        return wheel.read("axe_playwright_python/axe.min.js").decode()


def opened(browser: Browser, folder: Path, name: str, *, width: int, theme: str = "light") -> None:
    file = folder / f"{name}.html"
    file.write_bytes(pages()[name])
    browser.open(file, width=width, theme=theme)


@pytest.mark.parametrize("name", [*PAGES, *OTHERS])
def test_a_browser_has_nothing_to_complain_of_at_any_width(browser: Browser, tmp_path: Path, name: str) -> None:
    for width in (PHONE, TABLET, DESK):
        opened(browser, tmp_path, name, width=width)
        browser.value(_UNFOLD)
        assert browser.value("document.documentElement.scrollWidth") == width
        assert browser.value(_TOO_WIDE) == 0
        assert browser.complaints() == []
        assert browser.requests() == []


def test_the_contents_stand_at_the_side_where_there_is_room(browser: Browser, tmp_path: Path) -> None:
    box = "document.querySelector('{}').getBoundingClientRect()"
    beside = f"{box.format('nav')}.right < {box.format('main')}.left"
    columns = (
        "new Set([...document.querySelectorAll('#pictures .topic')].map(e => e.getBoundingClientRect().left)).size"
    )
    found = []
    for width in (PHONE, TABLET, DESK):
        opened(browser, tmp_path, "verify", width=width)
        found.append((browser.value(beside), browser.value(columns)))
    assert found == [(False, 1), (False, 2), (True, 3)]


@pytest.mark.parametrize("name", ["verify", "verified", "image"])
def test_paper_shows_tables_whole(browser: Browser, tmp_path: Path, name: str) -> None:
    opened(browser, tmp_path, name, width=718)  # A4 between its margins
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.value(_UNFOLD.replace("details", ".topic details"))
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert browser.value(cut) == 0
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.long
@pytest.mark.parametrize("name", [*PAGES, "compare too few", "image unread"])
@pytest.mark.parametrize("seen", [(PHONE, "light"), (DESK, "dark")])
def test_axe_finds_no_fault(browser: Browser, tmp_path: Path, axe: str, name: str, seen: tuple[int, str]) -> None:
    width, theme = seen
    opened(browser, tmp_path, name, width=width, theme=theme)
    # All checks and samples of a record at once take axe minutes; they have one form.
    shown = "details" if name != "verify" else ".topic details, #environment details, .check:first-of-type"
    browser.value(_UNFOLD.replace("details", shown))
    browser.value(f"{axe};0")
    assert browser.value(_RUN % json.dumps(_RULES)) == []


@pytest.mark.long
def test_axe_finds_a_planted_fault(browser: Browser, tmp_path: Path, axe: str) -> None:
    opened(browser, tmp_path, "built", width=DESK)
    browser.value("document.querySelector('nav').insertAdjacentHTML('beforeend', '<button></button>')")
    browser.value(f"{axe};0")
    assert [one[0] for one in browser.value(_RUN % json.dumps(_RULES))] == ["button-name"]
