"""What a pyproject.toml asks for: PEP 621, dependency groups, and the tables of uv and Poetry."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.ground.versions import parse_constraint
from envkit.plan.requirements import FAMILY, Asked, Left, Line, Sorted, index, sort

Where = Callable[[str, str], Line]
"""Returns a text with the line of the file on which a needle stands first."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}


def pyproject(name: str, folder: Path) -> Sorted:
    """Read a pyproject.toml.

    Raises:
        UsageError: the file is not TOML.
    """
    text = strictyaml.text_of(folder / name)
    tree = _parsed(name, text)
    where = lines_of(name, text)
    project, poetry = table(tree, "project"), table(tree, "tool", "poetry")
    lines = [where(one, one) for one in _texts(project.get("dependencies"))]
    lines += requirement_lines(table(poetry, "dependencies"), where)
    found = _python(project.get("requires-python"), table(poetry, "dependencies").get("python"), where)
    taken, left = _groups(tree, where)
    sources = _sources(tree, where)
    lines = [line for line in (*lines, *taken) if _named(line) not in sources.elsewhere]
    found += sort(lines) + left + sources.sorted
    for key, why in _UV_LEFT.items():
        if table(tree, "tool", "uv").get(key):
            found += _left(where(f"tool.uv.{key}", key), why)
    if project.get("name") or poetry.get("name"):
        line = where(f"the project {project.get('name') or poetry.get('name')}", "name")
        found += _left(line, "the project itself is not installed; copy puts its files into the image")
    return found


def project_name(folder: Path) -> str | None:
    """Return the name that the pyproject.toml of a folder gives, None where it gives none or cannot be read."""
    path = folder / "pyproject.toml"
    try:
        tree = _parsed(path.name, strictyaml.text_of(path))
    except UsageError:  # a project's other file is enough, so this one may be missing or broken
        return None
    found = table(tree, "project").get("name") or table(tree, "tool", "poetry").get("name")
    return found if isinstance(found, str) else None


def _parsed(name: str, text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"{name}: is not TOML: {error}", hint=f"fix {name}, or envkit init --from another file"
        ) from error


_UV_LEFT = {
    "override-dependencies": "versions that override others are not read; list them under pip",
    "constraint-dependencies": "constraints on packages that nothing lists are not read; list them under pip",
    "no-build-isolation-package": "only wheels are installed",
}


def lines_of(name: str, text: str) -> Where:
    """Return what finds the line of a text in a file; TOML readers give no places."""
    lines = text.splitlines()

    def where(shown: str, needle: str) -> Line:
        plain = re.compile(rf"(?<![A-Za-z0-9_-]){re.escape(needle)}(?![A-Za-z0-9_-])")
        at = next(
            (at for at, line in enumerate(lines, 1) if plain.search(line) and not line.lstrip().startswith("#")), 1
        )
        return Line(where=f"{name}:{at}", text=shown)

    return where


def table(tree: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return a table by its keys, an empty one where there is none."""
    for key in keys:
        found = tree.get(key)
        tree = found if isinstance(found, Mapping) else {}
    return tree


def requirement_lines(rows: Mapping[str, Any], where: Where) -> list[Line]:
    """Return dependencies of a table (Poetry, pixi) as lines of a requirements file."""
    found = []
    for name, wanted in rows.items():
        if name == "python":
            continue
        for one in wanted if isinstance(wanted, list) else [wanted]:
            row = one if isinstance(one, Mapping) else {"version": str(one)}
            path = next((str(row[key]) for key in ("git", "url", "path") if key in row), None)
            extras = f"[{','.join(row['extras'])}]" if row.get("extras") else ""
            text = f"{name}{extras}{_clauses(str(row.get('version', '*')))}"
            text += f" ; {row['markers']}" if row.get("markers") else ""
            text += f" ; python_version {python}" if (python := _marker_of(row.get("python"))) else ""
            found.append(where(f"git+{path}#{name}" if path else text, name))
    return found


def _marker_of(python: object) -> str:
    found = re.fullmatch(r"\s*(<=|>=|<|>|==)\s*([0-9.]+)\s*", str(python or ""))
    return f"{found[1]} '{found[2]}'" if found else ""


def _clauses(version: str) -> str:
    """Translate Poetry's versions: `^2.1` is `>=2.1,<3`, `~2.1` is `>=2.1,<2.2`, `2.1` is `==2.1`."""
    found = []
    for part in version.replace(" ", "").split(","):
        caret = re.fullmatch(r"([\^~])(\d+(?:\.\d+)*)", part)
        if caret:
            numbers = [int(number) for number in caret[2].split(".")]
            first = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
            keep = first if caret[1] == "^" else min(1, len(numbers) - 1)
            found.append(f">={caret[2]},<{'.'.join(map(str, [*numbers[:keep], numbers[keep] + 1]))}")
        elif part and part != "*":
            found.append(part if part[0] in "<>=!~" else f"=={part}")
    return ",".join(found)


def _python(required: object, poetry: object, where: Where) -> Sorted:
    text = required if isinstance(required, str) else _clauses(poetry) if isinstance(poetry, str) else ""
    if not text:
        return Sorted()
    line = where(f"Python {required or poetry}", "requires-python" if required else "python")
    try:
        parse_constraint(text, "python")
    except UsageError:
        return _left(line, "is not a Python version that envkit can read")
    return Sorted(asked=(Asked(field="python", value=text.replace(" ", ""), line=line),))


def _groups(tree: Mapping[str, Any], where: Where) -> tuple[list[Line], Sorted]:
    """Return the lines of optional groups that name torch, and the other groups as left."""
    groups = {f"dependency-groups.{key}": rows for key, rows in table(tree, "dependency-groups").items()}
    extras = table(tree, "project", "optional-dependencies")
    groups |= {f"project.optional-dependencies.{key}": rows for key, rows in extras.items()}
    taken: list[Line] = []
    left, torch = Sorted(), ""
    rows_of = [(key, [where(one, one) for one in _texts(rows)]) for key, rows in groups.items()]
    for key, one in table(tree, "tool", "poetry", "group").items():
        rows_of.append((f"tool.poetry.group.{key}", requirement_lines(table(one, "dependencies"), where)))
    for key, lines in rows_of:
        if any(_named(line) in FAMILY for line in lines) and not torch:
            torch, taken = key, lines
        elif lines:
            why = f"torch is taken from {torch}" if torch and any(_named(one) in FAMILY for one in lines) else ""
            left += _left(
                where(key, key if key.startswith("tool.poetry") else key.rpartition(".")[2]),
                why or "the group is optional and does not name torch",
            )
    return taken, left


class _Sources:
    """What `tool.uv.sources` and sources of Poetry say: indexes of torch, and packages from elsewhere."""

    def __init__(self) -> None:
        self.sorted = Sorted()
        self.elsewhere: set[str] = set()


def _sources(tree: Mapping[str, Any], where: Where) -> _Sources:
    found, uv = _Sources(), table(tree, "tool", "uv")
    indexes = {str(row.get("name", "")): str(row.get("url", "")) for row in _rows(uv.get("index"))}
    indexes |= {
        str(row.get("name", "")): str(row.get("url", "")) for row in _rows(table(tree, "tool", "poetry").get("source"))
    }
    used: set[str] = set()
    for name, rows in table(uv, "sources").items():
        for row in [rows] if isinstance(rows, Mapping) else _rows(rows):
            if any(key in row for key in ("git", "path", "url", "workspace")):
                found.elsewhere.add(canonicalize_name(name))
                kind = next(key for key in ("git", "path", "url", "workspace") if key in row)
                found.sorted += _left(
                    where(f"{name} from {kind}", name),
                    "it is a path or URL, and only names with versions can be locked",
                )
            elif _applies(row.get("marker")):
                used |= {str(row.get("index"))}
    for row in table(tree, "tool", "poetry", "dependencies").values():
        used |= {str(row["source"])} if isinstance(row, Mapping) and "source" in row else set()
    for name, url in indexes.items():
        line = where(url, url)
        if name in used or not table(uv, "sources"):
            part = index(line, url)
            devices = [one for one in (*found.sorted.asked, *part.asked) if one.field in ("cuda", "cpu")]
            if part.asked and len(devices) > 1:
                part = _left(line, f"another variant than {devices[0].line.text}, which is taken")
            found.sorted += part
    return found


def _applies(marker: object) -> bool:
    try:
        return not isinstance(marker, str) or Marker(marker).evaluate(_LINUX)
    except InvalidMarker:
        return False


def _named(line: Line) -> str:
    found = _NAME.match(line.text.rpartition("#")[2] if line.text.startswith("git+") else line.text)
    return canonicalize_name(found.group()) if found else ""


def _left(line: Line, why: str) -> Sorted:
    return Sorted(left=(Left(line=line, why=why),))


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _rows(value: object) -> Iterator[Mapping[str, Any]]:
    yield from (row for row in value if isinstance(row, Mapping)) if isinstance(value, list) else ()
