"""The payload's archive, which goes into an image, and its document, which comes out and is not trusted."""

from __future__ import annotations

import ast
import hashlib
import hmac
import io
import json
import re
import tokenize
import zipfile
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from envkit.checks.catalog import catalog, folders
from envkit.ground.canonical import LARGEST_MEASURED, parse
from envkit.ground.errors import PayloadError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SCHEMA = "envkit.payload/1"
END_MARK = "envkit.payload.end"
MAX_BYTES = 8 * 1024 * 1024  # a trace alone may take half of it
MAX_OBSERVATIONS = 1000  # far more than all checks report for eight GPUs
STATUSES = ("ran", "skip", "error")

_ENTRY = "import sys\n\nfrom envkit.smoke.__main__ import main\n\nsys.exit(main())\n"
# The file of a check that goes into the archive, as `envkit/checks/<folder>.py`, without its judge and its texts.
_OBSERVE = "observe.py"
_INDENT = 4  # spaces, as ruff formats
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
_F_STRING = (getattr(tokenize, "FSTRING_START", None), getattr(tokenize, "FSTRING_END", None))
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip entry can have
_HINT = "envkit verify IMAGE -o FILE  # again; the image prints something the payload does not"
# ECMA-48: control sequences (ESC [ 31 m), strings that end with BEL or ST (ESC ] 0 ; title BEL), and the others.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~])", re.DOTALL)
# Control characters except tab and line feed, and the marks that change the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CHECK_ID = re.compile(r"C\d{2}(\.[A-Za-z0-9_.+-]{1,80})?")
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema": str,
    "nonce": str,
    "suite_version": str,
    "started": str,
    "duration_s": (int, float),
    "tier": str,
    "seed": int,
    "env": dict,
    "checks": list,
    "order": list,
}


def payload_archive() -> bytes:
    """Return the payload as a zip application that ``python FILE`` runs.

    Entries are sorted and dated 1980; sources have no docstrings or comments. Another build of zlib may compress to
    other bytes, so `suite_digest` identifies the suite, not a digest of the archive.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in _entries():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, on whatever system the archive is made
            entry.external_attr = 0o100644 << 16  # the upper 16 bits are the Unix mode
            archive.writestr(entry, data, compresslevel=9)
    return buffer.getvalue()


def suite_digest() -> str:
    """Return the SHA-256 of the payload's entries: the same on every machine, whatever comments say."""
    digest = hashlib.sha256()
    for name, data in _entries():
        # With the lengths, no other division into files gives the same bytes.
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


@cache
def _entries() -> tuple[tuple[str, bytes], ...]:
    root = resources.files("envkit")
    sources = [
        *_sources(root / "smoke", "smoke/"),
        ("checks/__init__.py", (root / "checks" / "__init__.py").read_bytes()),
    ]
    sources += [(f"checks/{folder.name}.py", (folder / _OBSERVE).read_bytes()) for folder in folders()]
    entries = {f"envkit/{name}": strip_source(data.decode()).encode() for name, data in sources}
    entries["envkit/__init__.py"] = b""  # the package itself; its version is not the payload's
    entries["envkit/checks/catalog.json"] = json.dumps(catalog_rows(), separators=(",", ":")).encode()
    entries["__main__.py"] = _ENTRY.encode()
    return tuple(sorted(entries.items()))


# Size matters: an exported job has the whole payload in a ConfigMap, which holds at most 1 MiB.
def strip_source(source: str) -> str:
    """Return Python source without comments, docstrings and insignificant spaces; each level is indented by one space.

    Names and line numbers do not change, so tracebacks stay readable and match the source.

    Raises:
        SyntaxError: the source is not Python.
    """
    lines = [line.encode() for line in source.splitlines()]  # positions in a syntax tree count bytes
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            _empty(lines, node.body[0], alone=len(node.body) == 1)
    # Positions of tokens count characters.
    text = [line.decode() for line in lines]
    kept: set[int] = set()  # lines inside a string
    flat: set[int] = set()  # lines inside brackets, whose indentation is insignificant
    gaps: list[tuple[int, int, int]] = []
    depth, last, in_text = 0, None, 0
    for token in tokenize.generate_tokens(io.StringIO("\n".join(text) + "\n").readline):
        row, column = token.start
        if token.type == tokenize.COMMENT:
            text[row - 1] = text[row - 1][:column]
        elif token.end[0] > row and token.string.strip():
            kept.update(range(row, token.end[0]))
        elif token.type == tokenize.NL and depth:
            flat.add(row)
        elif last is not None and tokenize.OP in (token.type, last.type) and last.end[0] == row and not in_text:
            gaps.append((row - 1, last.end[1], column))
        # Python 3.12 and newer tokenize the inside of f-strings, older ones do not: it stays unchanged.
        in_text += (token.type == _F_STRING[0]) - (token.type == _F_STRING[1])
        depth += (token.type == tokenize.OP) * ((token.string in _OPENING) - (token.string in _CLOSING))
        last = token
    # From the end of each line, so that the other positions stay valid.
    for row, begin, end in reversed(gaps):
        if row not in kept:
            text[row] = text[row][:begin] + text[row][end:]
    return "".join(
        f"{line if row in kept else line.strip() if row in flat else _narrow(line.rstrip())}\n"
        for row, line in enumerate(text)
    )


def _narrow(line: str) -> str:
    bare = line.lstrip(" ")
    return " " * ((len(line) - len(bare)) // _INDENT) + bare


def _empty(lines: list[bytes], docstring: ast.stmt, *, alone: bool) -> None:
    """Remove a docstring. If the body has nothing else, or its line goes on, an empty string replaces it."""
    first, last = docstring.lineno - 1, (docstring.end_lineno or docstring.lineno) - 1
    rest = lines[last][docstring.end_col_offset :]
    instead = b'""' if alone or rest.lstrip().startswith(b";") else b""
    lines[first] = lines[first][: docstring.col_offset] + instead + rest
    for row in range(first + 1, last + 1):
        lines[row] = b""


def catalog_rows() -> list[dict[str, Any]]:
    """Return the catalog for the payload, which has no YAML parser, in the order in which the checks run."""
    return [
        {
            "id": entry.id,
            "folder": entry.folder,
            "title": entry.title,
            "tier": entry.tier,
            "needs": entry.needs,
            "budget_s": entry.budget_s,
            "budgets_s": dict(entry.budgets),
        }
        for entry in catalog()
    ]


def last_line(nonce: str) -> str:
    """Return the last line of the payload's output."""
    return f"{END_MARK} {nonce}"


def parse_document(raw: bytes, nonce: str) -> dict[str, Any]:
    """Return the payload's document from everything that the container wrote to its standard output.

    An entry point may print text before it. The document is the line before the last; the last line repeats the nonce,
    which shows that the output is complete and belongs to this run. Escape codes and other invisible characters are
    removed from every string.

    Raises:
        PayloadError: the output is too long, cut off, of another run or not strict JSON, has two documents, or its
            document lacks a field.
    """
    if not nonce:
        raise PayloadError("this run has no nonce, so its document cannot be distinguished from another run's")
    if len(raw) > MAX_BYTES:
        raise PayloadError(f"the payload printed {len(raw)} bytes, more than the limit of {MAX_BYTES}", hint=_HINT)
    lines = raw.rstrip().rsplit(b"\n", 2)
    if not hmac.compare_digest(lines[-1].strip(), last_line(nonce).encode()):
        tail = _clean(lines[-1][-200:].decode("utf-8", "replace")) if raw.strip() else "nothing"
        raise PayloadError(f"the payload's output ends early; its last line is: {tail}", hint=_HINT)
    # With two end marks it is unknown which document is the payload's.
    if any(line.strip() == lines[-1].strip() for line in raw.splitlines()[:-1]):
        raise PayloadError("the image printed a second document with the nonce of this run", hint=_HINT)
    if len(lines) < 2:  # noqa: PLR2004 - the document and the nonce
        raise PayloadError("the payload printed its last line and no document", hint=_HINT)
    document = _clean(_decode(lines[-2]))
    _check_fields(document, nonce)
    assert isinstance(document, dict)
    return document


def _sources(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    sources: list[tuple[str, bytes]] = []
    for item in folder.iterdir():
        if item.is_dir() and item.name != "__pycache__":
            sources.extend(_sources(item, f"{prefix}{item.name}/"))
        elif item.name.endswith(".py"):
            sources.append((prefix + item.name, item.read_bytes()))
    return sources


def _decode(line: bytes) -> Any:
    try:
        return parse(line.decode("utf-8"), largest=LARGEST_MEASURED, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the payload's document is not JSON: {_clean(str(error))[:200]}", hint=_HINT) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("an object has the same key twice")
    return mapping


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _UNPRINTABLE.sub("", _ESCAPES.sub("", value))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _check_fields(document: Any, nonce: str) -> None:
    if not isinstance(document, dict):
        raise PayloadError("the payload's document is not a JSON object", hint=_HINT)
    for name, kind in _FIELDS.items():
        # In Python, True is an integer.
        if not isinstance(document.get(name), kind) or isinstance(document.get(name), bool):
            raise PayloadError(f"the payload's document has no usable {name}: {document.get(name)!r:.80}", hint=_HINT)
    if document["schema"] != SCHEMA:
        raise PayloadError(f"the payload's document is {document['schema']!r:.80}, expected {SCHEMA!r}", hint=_HINT)
    if not hmac.compare_digest(document["nonce"].encode(), nonce.encode()):
        raise PayloadError("the payload's document carries the nonce of another run", hint=_HINT)
    if len(document["checks"]) > MAX_OBSERVATIONS:
        raise PayloadError(f"the payload's document has {len(document['checks'])} observations", hint=_HINT)
    seen: set[tuple[str, str]] = set()
    for position, item in enumerate(document["checks"]):
        fault = observation_fault(item)
        if fault is None and (item["id"], item["subject"]) in seen:
            fault = f"{item['id']} on {item['subject']} appears twice"
        if fault is not None:
            raise PayloadError(f"checks[{position}] of the payload's document: {fault}", hint=_HINT)
        seen.add((item["id"], item["subject"]))


def observation_fault(item: Any) -> str | None:
    """Return why an entry of a document's checks cannot be judged, None if it can."""
    if not isinstance(item, dict):
        return "not an object"
    identity, reason = item.get("id"), item.get("reason")
    sound = {
        "id": isinstance(identity, str) and _CHECK_ID.fullmatch(identity) is not None,
        "subject": isinstance(item.get("subject"), str),
        "status": item.get("status") in STATUSES,
        "observed": isinstance(item.get("observed"), dict),
        "controls": isinstance(item.get("controls"), list),
        "reason": reason is None or (isinstance(reason, dict) and isinstance(reason.get("code"), str)),
    }
    return next((f"{name} is {item.get(name)!r:.80}" for name, good in sound.items() if not good), None)
