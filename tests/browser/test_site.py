"""The documentation site as a browser shows it from disk: built without a warning, searched without another host."""

import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.chromium import Browser

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="no MkDocs here: pip install -e '.[docs]', or make docs"),
]
_TYPED = """(query => {
  const field = document.querySelector("input[name=query]");
  field.value = query;
  field.focus();
  field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
})"""
_FOUND = '[...document.querySelectorAll(".md-search-result__item a")].map(one => one.getAttribute("href"))'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(ROOT / "website/mkdocs.yml"),
        "-d",
        str(place),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize(
    "page",
    [
        "index.html",
        "how-to/cuda-version.html",
        "reference/failures.html",
        "reference/matrix.html",
        "reference/command-line.html",
        "reference/settings.html",
        "zh/zh-mirrors.html",
    ],
)
@pytest.mark.parametrize("width", [375, 1440])
def test_a_page_asks_no_other_host_and_complains_of_nothing(
    site: Path, browser: Browser, page: str, width: int
) -> None:
    browser.open(site / page, width=width)
    assert browser.complaints() == []
    assert browser.requests() == []
    assert browser.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("nvidia-smi", "how-to/cuda-version.html"),
        ("debian_security_mirror", "reference/settings.html"),
        ("镜像站", "zh/zh-mirrors.html"),
        ("平铺页面", "zh/zh-mirrors.html"),
    ],
)
def test_the_search_works_from_disk(site: Path, browser: Browser, query: str, page: str) -> None:
    browser.open(site / "index.html", width=1280)
    browser.value(f'{_TYPED}("{query}")')
    until = time.monotonic() + 30
    while not (found := browser.value(_FOUND)):
        assert time.monotonic() < until, "no result"
        browser.value("new Promise(resolve => setTimeout(resolve, 50))")
    assert any(page in address for address in found)
    assert browser.requests() == []


def test_a_page_that_would_load_from_another_host_ends_the_build(site: Path, tmp_path: Path) -> None:
    del site  # built before: what fails here is the picture
    copy = tmp_path / "envkit"
    shutil.copytree(ROOT / "website", copy / "website")
    shutil.copytree(ROOT / "docs", copy / "docs")
    with (copy / "docs/index.md").open("a") as page:
        page.write("\n![x](https://pictures.example.com/x.png)\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(copy / "website/mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "index.html loads https://pictures.example.com/x.png from another host" in done.stderr


def test_the_site_follows_the_readers_theme(site: Path, browser: Browser) -> None:
    for theme, scheme in (("light", "default"), ("dark", "slate")):
        browser.open(site / "index.html", width=1280, theme=theme)
        assert browser.value("document.body.dataset.mdColorScheme") == scheme


_SET = """(values => {
  const fields = document.querySelectorAll("#facts-filter input, #facts-filter select");
  fields.forEach((field, i) => {
    const option = field.options && [...field.options].find(one => one.text === values[i]);
    field.value = option ? option.value : values[i];
    field.dispatchEvent(new Event("input", {bubbles: true}));
  });
})"""
_SHOWN = """[...document.querySelectorAll("table tr")].filter(row => !row.hidden).slice(1)
  .map(row => [...row.cells].filter(cell => !cell.hidden).slice(0, 3).map(cell => cell.textContent))"""


def test_the_table_of_builds_is_filtered(site: Path, browser: Browser) -> None:
    browser.open(site / "reference/matrix.html", width=1440)
    every = len(browser.value(_SHOWN))
    assert every > 100
    assert browser.value('document.querySelector("#facts-filter output").value') == f"{every} of {every} builds"
    # A V100 with the driver 570 and torch 2.7: what is built for CUDA 12.8 has no code for it.
    browser.value(f'{_SET}(["2.7", "any", "Volta", "570.26", "any grade"])')
    assert [row[:2] for row in browser.value(_SHOWN)] == [
        ["2.7.1", "12.6"], ["2.7.1", "11.8"], ["2.7.0", "12.6"], ["2.7.0", "11.8"],
    ]  # fmt: skip
    browser.value(f'{_SET}(["2.7", "any", "Volta", "450.80.02", "any grade"])')
    assert [row[1] for row in browser.value(_SHOWN)] == ["11.8", "11.8"]
    browser.value(f'{_SET}(["", "any", "Volta", "595.45.04", "any grade"])')  # its last branch is 580
    assert browser.value(_SHOWN) == []
    browser.value(f'{_SET}(["", "any", "any", "", "any grade"])')
    assert len(browser.value(_SHOWN)) == every
