"""What indexes and pages list: the files of a page of links (HTML, PEP 503) or of a package (JSON, PEP 691)."""

from __future__ import annotations

import html.parser
import json
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from envkit.ground.errors import IntegrityError
from envkit.lock import sizes
from envkit.lock.index_locations import without_login

_MOST = 16 << 20  # bytes of a page; those of PyG and of OpenMMLab have less than 1 MiB
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_CLOSED = ("html", "body", "a")

Row = dict[str, Any]
"""A file: `name`, `url`, and `sha256`, `size`, `uploaded`, `requires_python`, each None if unknown, and `yanked`."""


def ask(url: str, *, ca_bundle: str | None, patient: bool = True) -> list[Row]:
    """Return the files that a page or the list of a package links to.

    Args:
        url: the page.
        ca_bundle: PEM file.
        patient: retry transient failures.

    Raises:
        NoPageError: the server has no such page.
        EnvironmentProblem: the server does not answer, or the page is larger than 16 MiB.
        IntegrityError: the page is cut short.
        UsageError: the PEM file cannot be read.
        ValueError: the answer is not a list of files.
    """
    data, kind, at = sizes.page(url, accept=_ACCEPT, most=_MOST, ca_bundle=ca_bundle, patient=patient)
    try:
        return from_json(data, at) if kind.endswith("json") else from_html(data, at)
    # Nested too deeply or of another shape: the answer is untrusted.
    except (RecursionError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(str(error)) from error


def from_json(data: bytes, url: str) -> list[Row]:
    """Return the rows of a list in JSON; raises ValueError, TypeError, KeyError or AttributeError if it is none."""
    tree = json.loads(data)
    rows = []
    for entry in tree["files"]:
        hashes = entry.get("hashes") or {}
        rows.append({
            "name": entry["filename"], "url": urljoin(url, entry["url"]), "sha256": hashes.get("sha256"),
            "size": entry.get("size"), "uploaded": entry.get("upload-time"),
            # `yanked` is true, or the reason as text.
            "requires_python": entry.get("requires-python"), "yanked": bool(entry.get("yanked")),
        })  # fmt: skip
    return rows


def from_html(data: bytes, url: str) -> list[Row]:
    """Return the rows of a page.

    Raises:
        IntegrityError: the page is cut short.
        ValueError: it is not UTF-8.
    """
    parser = _Anchors(url)
    parser.feed(data.decode())
    # A page that ends too early would be read as an index without the files that come later.
    if parser.open or parser.rawdata.strip():
        where = f"inside <{parser.open[-1]}>" if parser.open else "inside a tag"
        raise cut(url, f"it ends {where}")
    return [row for row in parser.rows if row["name"].endswith((".whl", ".tar.gz", ".zip", ".tar.bz2"))]


def cut(url: str, where: str) -> IntegrityError:
    """Return the error of a page of which the end is missing."""
    return IntegrityError(f"{without_login(url)} is refused: the page is cut short, {where}", hint="try again later")


class _Anchors(html.parser.HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.rows = url, list[Row]()
        self.open: list[str] = []  # elements of `_CLOSED` without their end

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            self.open.remove(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _CLOSED:
            self.open.append(tag)
        values = dict(attrs)
        href = values.get("href")
        if tag != "a" or not href:
            return
        # PEP 503: torch-2.7.1%2Bcu126-cp312-cp312-linux_x86_64.whl#sha256=...
        url, fragment = urldefrag(urljoin(self.url, href))
        _, _, digest = fragment.partition("sha256=")
        self.rows.append({
            "name": unquote(urlsplit(url).path.rpartition("/")[2]), "url": url, "sha256": digest[:64] or None,
            "size": None, "uploaded": None, "requires_python": values.get("data-requires-python"),
            "yanked": "data-yanked" in values,
        })  # fmt: skip
