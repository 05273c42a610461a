"""All cases: the rows of cases/*.yaml, and the archives."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.hostile import attestations, conda, images, layers, registries, sessions, wheels
from tests.hostile.archives import ARCHIVES
from tests.hostile.documents import DOCUMENTS
from tests.hostile.model import Case

_MAKERS = (
    attestations,
    conda,
    images,
    layers,
    registries,
    sessions,
    wheels,
)  # modules whose functions add themselves to ARCHIVES
_CASES = Path(__file__).parent / "cases"
_KEYS = frozenset(
    {
        "name",
        "text",
        "whole",
        "parts",
        "base",
        "change",
        "delete",
        "hex",
        "files",
        "links",
        "pipes",
        "sparse",
        "env",
        "run",
        "exit",
        "place",
    }
    | {"says", "gives", "secret", "writes", "why"}
)


@cache
def texts() -> tuple[Case, ...]:
    """The cases of all files of rows."""
    return tuple(case for path in sorted(_CASES.glob("*.yaml")) for case in _rows(path))


def archives() -> tuple[Case, ...]:
    """The cases that functions make."""
    return tuple(ARCHIVES)


def _rows(path: Path) -> list[Case]:
    sheet = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return [_case(path.stem, sheet, row) for row in sheet["cases"]]


def _case(group: str, sheet: dict[str, Any], row: dict[str, Any]) -> Case:
    assert row.keys() <= _KEYS, f"{group}: {row.keys() - _KEYS}"
    name = sheet["file"]
    texts = sheet.get("files", {}) | row.get("files", {})
    files = {place: _joined(text).encode() for place, text in texts.items() if place not in row.get("links", {})}
    data = _data(sheet, row)
    if data is not None:
        files[name] = data
    harmless = "gives" in row
    return Case(
        group=group,
        name=row["name"],
        run=tuple(row.get("run", sheet["run"])),
        files=files,
        links=row.get("links", {}),
        pipes=tuple(row.get("pipes", ())),
        sparse=row.get("sparse", {}),
        env=sheet.get("env", {}) | row.get("env", {}),
        exit=0 if harmless else row.get("exit", sheet.get("exit", 2)),
        place=row.get("place", name),
        says=tuple(row.get("says", ())),
        gives=tuple(row.get("gives", ())),
        secret=tuple(row.get("secret", ())),
        writes=tuple(row.get("writes", sheet.get("writes", ()))),
    )


def _data(sheet: dict[str, Any], row: dict[str, Any]) -> bytes | None:
    if "hex" in row:
        return bytes.fromhex(row["hex"])
    if "whole" in row:
        return _joined(row["whole"]).encode("utf-8", "surrogatepass")
    if "base" in row or "change" in row or "delete" in row:
        return _changed(row.get("base") or sheet["base"], row.get("change", ()), row.get("delete", ()))
    if "text" in row or "parts" in row:
        text: str = sheet.get("head", "") + _joined(row["text"] if "text" in row else row["parts"])
        return text.encode("utf-8", "surrogatepass")
    return None


def _joined(parts: str | list[Any]) -> str:
    if isinstance(parts, str):
        return parts
    return "".join(part if isinstance(part, str) else part["repeat"] * part["times"] for part in parts)


def _changed(base: str, change: list[Any], delete: list[Any]) -> bytes:
    tree = copy.deepcopy(DOCUMENTS[base]())
    for path, value in change:
        _at(tree, path[:-1])[path[-1]] = value
    for path in delete:
        del _at(tree, path[:-1])[path[-1]]
    return json.dumps(tree, indent=1).encode()


def _at(tree: Any, path: list[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
