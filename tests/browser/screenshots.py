"""Draw every HTML page: `python -m tests.browser.screenshots FOLDER`; `--docs` writes the pictures of docs/.

FOLDER gets each page of `tests/support/pages.py` as PNG, light and dark, at the width of a phone and of a desk, and as
the PDF that a printer would get. Look at all of them after a change of a page's text, style or figures.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from envkit.report.html.page import render_html
from tests.support.chromium import Browser
from tests.support.pages import pages

ROOT = Path(__file__).parents[2]
PAGES = ("verify", "compare", "verified", "built", "image", "watch")
WIDTHS, THEMES = (375, 1440), ("light", "dark")
A4_INCHES = {"paperWidth": 8.27, "paperHeight": 11.69}
RECORD = ROOT / "benchmarks/results/h200.json"  # for the picture of the README
REPORT = ROOT / "docs/report.png"
PICTURES = ROOT / "docs/pictures"
WIDE, NARROW, TOP = 1440, 1100, 1250
COLORS = 128  # enough for text, charts and the colors of verdicts


def draw_all(browser: Browser, folder: Path, work: Path) -> None:
    """Write every page in every form into `folder`; `work` is for files that may go."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        page = _written(work / f"{name}.html", pages()[name])
        for theme in THEMES:
            for width in WIDTHS:
                browser.open(page, width=width, theme=theme)
                browser.screenshot(folder / f"{name}-{width}-{theme}.png")
        browser.open(page, width=WIDE)
        printed = browser.call("Page.printToPDF", printBackground=True, **A4_INCHES)
        (folder / f"{name}.pdf").write_bytes(base64.b64decode(printed["data"]))


def draw_docs(browser: Browser, work: Path) -> None:
    """Write the pictures of the documentation: the top of a real report, and the other pages from made-up numbers."""
    PICTURES.mkdir(exist_ok=True)
    _picture(browser, _written(work / "report.html", render_html(json.loads(RECORD.read_text()))), REPORT, WIDE, TOP)
    for name, last in (("compare", "launches"), ("verified", "matrix"), ("image", "packages"), ("watch", "limits")):
        page = _written(work / f"{name}.html", pages()[name])
        browser.open(page, width=NARROW)
        height = browser.value(f"Math.ceil(document.getElementById('{last}').getBoundingClientRect().bottom) + 16")
        _picture(browser, page, PICTURES / f"{name}.png", NARROW, height)


def _picture(browser: Browser, page: Path, file: Path, width: int, height: int) -> None:
    """Write the top of a page as a small PNG."""
    browser.open(page, width=width)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    whole = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    whole.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)


def _written(file: Path, page: bytes) -> Path:
    file.write_bytes(page)
    return file


def main() -> int:
    """Draw what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="for every page in every form")
    wanted.add_argument("--docs", action="store_true", help="write docs/report.png and docs/pictures")
    asked = parser.parse_args()
    command = shutil.which("chromium")
    if command is None:
        sys.stderr.write("chromium is not installed; as root: apt-get install chromium fonts-dejavu-core\n")
        return 9
    with tempfile.TemporaryDirectory() as work:
        browser = Browser(command, Path(work, "profile"))
        try:
            if asked.docs:
                draw_docs(browser, Path(work))
            else:
                draw_all(browser, asked.folder, Path(work))
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
