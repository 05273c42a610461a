"""Read pyproject.toml: PEP 621, dependency groups, and the tables of uv, Poetry and PDM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from envkit.ground import foreign, strictyaml
from envkit.ground.errors import UsageError
from envkit.ground.versions import parse_constraint
from envkit.plan.requirements import FAMILY, Contents, Line, included, index, skip, sort, take

Where = Callable[[str, str], Line]
"""Returns a `Line` with a text, at the first line of the file that contains a needle; ` =` at its end means a key."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}


def pyproject(name: str, folder: Path) -> Contents:
    """Read a pyproject.toml.

    Raises:
        UsageError: the file is not TOML.
    """
    text = strictyaml.text_of(folder / name)
    tree = parsed(name, text)
    where = lines_of(name, text)
    project, poetry = table(tree, "project"), table(tree, "tool", "poetry")
    lines = [where(requirement, requirement) for requirement in texts(project.get("dependencies"))]
    lines += [where(f"{option} {url}", url) for option, url in _index_options(tree)]
    requirements = _python(project.get("requires-python"), table(poetry, "dependencies").get("python"), where)
    rows, elsewhere = requirement_lines(table(poetry, "dependencies"), where)
    lines, requirements = lines + rows, requirements + elsewhere + _dynamic(tree, where, folder)
    taken, skipped = _groups(tree, where)
    sources = _sources(tree, where)
    lines = [line for line in (*lines, *taken) if _named(line) not in sources.elsewhere]
    limits = texts(table(tree, "tool", "uv").get("constraint-dependencies"))
    lines += [replace(where(limit, limit), constraint=True) for limit in limits]
    requirements += sort(lines) + skipped + sources.contents
    for key, why in _UV_SKIPPED.items():
        if table(tree, "tool", "uv").get(key):
            requirements += skip(where(f"tool.uv.{key}", key), why)
    if project.get("name") or poetry.get("name"):
        line = where(f"the project {project.get('name') or poetry.get('name')}", "name")
        requirements += skip(line, "the project itself is not installed; list its files under copy")
    return requirements


def project_name(folder: Path) -> str | None:
    """Return the project's name in a folder's pyproject.toml, None if it has none or cannot be read."""
    path = folder / "pyproject.toml"
    try:
        tree = parsed(path.name, strictyaml.text_of(path))
    except UsageError:  # other files can define a project, so this one may be missing or invalid
        return None
    name = table(tree, "project").get("name") or table(tree, "tool", "poetry").get("name")
    return name if isinstance(name, str) else None


def parsed(name: str, text: str) -> Mapping[str, Any]:
    """Return the tree of a project's TOML file.

    Raises:
        UsageError: the text is not TOML.
    """
    hint = f"fix {name}, or envkit init FILE to read another file"
    return foreign.toml_tree(text, f"{name} is not TOML", hint=hint)


_UV_SKIPPED = {
    "override-dependencies": "overrides are not read; list the versions under pip",
    "no-build-isolation-package": "only wheels are installed",
}


def _index_options(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in (table(tree, "tool", "uv"), table(tree, "tool", "uv", "pip")):
        for key in ("index-url", "extra-index-url", "find-links"):
            value = part.get(key)
            for url in [value] if isinstance(value, str) else texts(value):
                yield f"--{key}", url


def _dynamic(tree: Mapping[str, Any], where: Where, folder: Path) -> Contents:
    """Read the requirements files from which the project's build backend takes its dependencies."""
    if "dependencies" not in texts(table(tree, "project").get("dynamic")):
        return Contents()
    row = table(tree, "tool", "setuptools", "dynamic", "dependencies").get("file")
    files = [row] if isinstance(row, str) else texts(row)
    # The plug-in hatch-requirements-txt.
    hook = table(tree, "tool", "hatch", "metadata", "hooks", "requirements_txt").get("files")
    files += texts(hook)
    requirements = Contents()
    for file in files:
        requirements += included(where(file, file), file, folder)
    if not files:
        requirements += skip(
            where("dynamic dependencies", "dynamic"), "the build backend computes them; list them under pip"
        )
    return requirements


def lines_of(name: str, text: str) -> Where:
    """Return a function that finds a text's line in a file: Python's TOML parser does not report line numbers."""
    lines = text.splitlines()

    def where(shown: str, needle: str) -> Line:
        key, is_key, _ = needle.partition(" =")
        word = (
            rf"\s*[\"']?{re.escape(key)}[\"']?\s*="
            if is_key
            # Not within a longer name: `torch` is no part of `pytorch-lightning` or `torch-geometric`.
            else rf"(?<![A-Za-z0-9_-]){re.escape(key)}(?![A-Za-z0-9_-])"
        )
        fits = re.compile(word).match if is_key else re.compile(word).search
        at = next((at for at, line in enumerate(lines, 1) if fits(line) and not line.lstrip().startswith("#")), 1)
        return Line(where=f"{name}:{at}", text=shown)

    return where


def table(tree: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return a table by its keys; it is empty if there is none."""
    for key in keys:
        value = tree.get(key)
        tree = value if isinstance(value, Mapping) else {}
    return tree


def texts(value: object) -> list[str]:
    """Return the texts of a list; none if the value is no list."""
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def requirement_lines(rows: Mapping[str, Any], where: Where) -> tuple[list[Line], Contents]:
    """Return the dependencies of a table (Poetry, pixi) as lines of a requirements file, and those that cannot be."""
    lines, rest = [], Contents()
    for name, wanted in rows.items():
        if name == "python":
            continue
        for entry in wanted if isinstance(wanted, list) else [wanted]:
            row = entry if isinstance(entry, Mapping) else {"version": str(entry)}
            kind = next((key for key in ("git", "url", "path", "file") if key in row), None)
            if kind:
                rest += skip(where(f"{name} from {kind} {row[kind]}", f"{name} ="), _ELSEWHERE)
                continue
            if row.get("optional") is True:
                rest += skip(where(f"{name}{_clauses(str(row.get('version', '*')))}", f"{name} ="), _OPTIONAL)
                continue
            extras = f"[{','.join(texts(row.get('extras')))}]" if texts(row.get("extras")) else ""
            line = where(f"{name}{extras}{_clauses(str(row.get('version', '*')))}{_marker_of(row)}", f"{name} =")
            lines.append(line)
            if isinstance(row.get("index"), str):
                rest += index(where(row["index"], row["index"]), row["index"])
    return lines, rest


_ELSEWHERE = "it is a path or URL, and only names with versions can be locked"
_OPTIONAL = "it is optional: only an extra installs it"


def _marker_of(row: Mapping[str, Any]) -> str:
    """Return the `markers`, `platform` and `python` of a Poetry dependency as one marker; empty without any."""
    parts = [f"({row['markers']})"] if row.get("markers") else []
    parts += [f"sys_platform == '{row['platform']}'"] if row.get("platform") else []
    for clause in _clauses(str(row.get("python", "*"))).split(",") if row.get("python") else ():
        sign, version = re.fullmatch(r"([<>=!~]*)(.*)", clause, re.DOTALL).groups()  # type: ignore[union-attr]
        parts += [f"python_version {sign} '{version}'"] if clause else []
    return f" ; {' and '.join(parts)}" if parts else ""


def _clauses(version: str) -> str:
    """Translate Poetry's versions: `^2.1` is `>=2.1,<3`, `~2.1` is `>=2.1,<2.2`, `2.1` is `==2.1`."""
    clauses = []
    # Poetry also separates clauses by blanks: `>=2.0 <3`. A blank after an operator separates nothing: `>= 2.0`.
    for part in re.sub(r"(?<![<>=!~^,\s])\s+(?=[<>=!~^])", ",", version).replace(" ", "").split(","):
        caret = re.fullmatch(r"([\^~])(\d+(?:\.\d+)*)", part)
        if caret:
            numbers = [int(number) for number in caret[2].split(".")]
            # A caret fixes the first number that is not zero: `^0.2.3` is `>=0.2.3,<0.3`.
            first = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
            keep = first if caret[1] == "^" else min(1, len(numbers) - 1)
            clauses.append(f">={caret[2]},<{'.'.join(map(str, [*numbers[:keep], numbers[keep] + 1]))}")
        elif part and part != "*":
            clauses.append(part if part[0] in "<>=!~" else f"=={part}")
    return ",".join(clauses)


def _python(required: object, poetry: object, where: Where) -> Contents:
    text = required if isinstance(required, str) else _clauses(poetry) if isinstance(poetry, str) else ""
    if not text:
        return Contents()
    line = where(f"Python {required or poetry}", "requires-python" if required else "python")
    try:
        parse_constraint(text, "python")
    except UsageError:
        return skip(line, "is not a Python version")
    return take(line, "python", text.replace(" ", ""))


def _groups(tree: Mapping[str, Any], where: Where) -> tuple[list[Line], Contents]:
    """Return the lines of the first optional group that names torch, and the other groups as skipped."""
    named = table(tree, "dependency-groups")
    groups = {f"dependency-groups.{key}": _group(named, key) for key in named}
    extras = table(tree, "project", "optional-dependencies")
    groups |= {f"project.optional-dependencies.{key}": texts(rows) for key, rows in extras.items()}
    groups["tool.uv.dev-dependencies"] = texts(table(tree, "tool", "uv").get("dev-dependencies"))
    of_pdm = table(tree, "tool", "pdm", "dev-dependencies")
    groups |= {f"tool.pdm.dev-dependencies.{key}": texts(rows) for key, rows in of_pdm.items()}
    taken: list[Line] = []
    skipped, torch = Contents(), ""
    rows_of = [
        (key, [where(requirement, requirement) for requirement in rows], Contents()) for key, rows in groups.items()
    ]
    poetry = table(tree, "tool", "poetry")
    of_poetry = {
        f"tool.poetry.group.{key}": table(group, "dependencies") for key, group in table(poetry, "group").items()
    }
    for key, rows in {**of_poetry, "tool.poetry.dev-dependencies": table(poetry, "dev-dependencies")}.items():
        rows_of.append((key, *requirement_lines(rows, where)))
    for key, lines, elsewhere in rows_of:
        if any(_named(line) in FAMILY for line in lines) and not torch:
            torch, taken, skipped = key, lines, skipped + elsewhere
        elif lines or elsewhere != Contents():
            why = f"torch is taken from {torch}" if torch and any(_named(line) in FAMILY for line in lines) else ""
            skipped += skip(
                where(key, key if key.startswith("tool.poetry") else key.rpartition(".")[2]),
                why or "the group is optional and does not name torch",
            )
    return taken, skipped


def _group(groups: Mapping[str, Any], name: str, _seen: frozenset[str] = frozenset()) -> list[str]:
    """Return the requirements of a dependency group, including those of the groups that it includes."""
    requirements: list[str] = []
    rows = groups.get(name)
    for entry in rows if isinstance(rows, list) else []:
        if isinstance(entry, str):
            requirements.append(entry)
        elif isinstance(entry, Mapping) and (other := str(entry.get("include-group"))) not in {*_seen, name}:
            requirements += _group(groups, other, _seen | {name})
    return requirements


class _Sources:
    """The contents of `tool.uv.sources` and Poetry's sources: torch's indexes, and packages not from an index."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.elsewhere: set[str] = set()  # names


def _sources(tree: Mapping[str, Any], where: Where) -> _Sources:
    sources, uv = _Sources(), table(tree, "tool", "uv")
    tables = (uv.get("index"), table(tree, "tool", "poetry").get("source"), table(tree, "tool", "pdm").get("source"))
    indexes = {str(row.get("name", "")): row for rows in tables for row in _rows(rows)}
    used: set[str] = set()
    for name, rows in table(uv, "sources").items():
        for row in [rows] if isinstance(rows, Mapping) else _rows(rows):
            if any(key in row for key in ("git", "path", "url", "workspace")):
                sources.elsewhere.add(canonicalize_name(name))
                kind = next(key for key in ("git", "path", "url", "workspace") if key in row)
                sources.contents += skip(
                    where(f"{name} from {kind}", f"{name} ="),
                    _ELSEWHERE,
                )
            elif _applies(row.get("marker")):
                used |= {str(row.get("index"))}
    poetry = table(tree, "tool", "poetry")
    for part in (poetry, *(table(poetry, "group", key) for key in table(poetry, "group"))):
        for wanted in table(part, "dependencies").values():
            for spec in [wanted] if isinstance(wanted, Mapping) else _rows(wanted):
                if "source" in spec and spec.get("platform", "linux") == "linux" and _applies(spec.get("markers")):
                    used |= {str(spec["source"])}
    # An index that a package names takes precedence over those that are searched for every package.
    for name, known in sorted(indexes.items(), key=lambda entry: entry[0] not in used):
        url = str(known.get("url", ""))
        line = where(url, url)
        if name in used or not (known.get("explicit") is True or known.get("priority") == "explicit"):
            entry = index(line, url)
            devices = [
                setting for setting in (*sources.contents.settings, *entry.settings) if setting.field in ("cuda", "cpu")
            ]
            if entry.settings and len(devices) > 1:
                entry = skip(line, f"it is for another variant than {devices[0].line.text}, which is used")
            sources.contents += entry
    return sources


def _applies(marker: object) -> bool:
    try:
        return not isinstance(marker, str) or Marker(marker).evaluate(_LINUX)
    except InvalidMarker:
        return False


def _named(line: Line) -> str:
    match = _NAME.match(line.text.rpartition("#")[2] if line.text.startswith("git+") else line.text)
    return canonicalize_name(match.group()) if match else ""


def _rows(value: object) -> Iterator[Mapping[str, Any]]:
    yield from (row for row in value if isinstance(row, Mapping)) if isinstance(value, list) else ()
