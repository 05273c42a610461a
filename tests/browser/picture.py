"""Write docs/report.png: `python -m tests.browser.picture`. It shows the top of the report of a committed record."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from envkit.report.html.page import render_html
from tests.support.chromium import Browser

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks/results/cpu-2cores.json"
PICTURE = ROOT / "docs/report.png"
WIDTH, HEIGHT = 1440, 1250
COLORS = 128  # enough for text, charts and the colors of verdicts


def main() -> int:
    """Render the record, photograph its first sections, write the picture."""
    command = shutil.which("chromium")
    if command is None:
        sys.stderr.write("chromium is not installed\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_bytes(render_html(json.loads(RECORD.read_text())))
        browser = Browser(command, Path(folder, "profile"))
        try:
            browser.open(page, width=WIDTH)
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
            shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        finally:
            browser.close()
        whole = Path(folder, "whole.png")
        whole.write_bytes(base64.b64decode(shot["data"]))
        Image.open(whole).convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            PICTURE, optimize=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
