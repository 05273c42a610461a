"""Read pyproject.toml: PEP 621, dependency groups, and the tables of uv, Poetry and PDM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from envkit.ground import strictyaml, trees
from envkit.ground.errors import UsageError
from envkit.ground.versions import parse_constraint
from envkit.plan.requirements import FAMILY, Contents, Line, Target, included, index, index_of, skip, sort, take
from envkit.project.choice import DEFAULT, Choice

Where = Callable[[str, str], Line]
"""Returns a `Line` with a text, at the first line of the file that contains a needle; ` =` at its end means a key."""
NOT_INSTALLED = "the project itself is not installed; list its files under copy"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pyproject(name: str, folder: Path, choice: Choice = DEFAULT) -> Contents:
    """Read a pyproject.toml: the project's own requirements, and those of one variant or of the named extras.

    Raises:
        UsageError: the file is not TOML.
    """
    text = strictyaml.text_of(folder / name, root=folder)
    return of_tree(parsed(name, text), lines_of(name, text), folder, choice)


def of_tree(tree: Mapping[str, Any], where: Where, folder: Path, choice: Choice) -> Contents:
    """Return the contents of a project's description with the keys of pyproject.toml.

    Raises:
        UsageError: the project does not have an extra or group that was named.
    """
    project, poetry = table(tree, "project"), table(tree, "tool", "poetry")
    lines = [where(requirement, requirement) for requirement in texts(project.get("dependencies"))]
    lines += [where(f"{option} {url}", url) for option, url in _index_options(tree)]
    requirements = _python(project.get("requires-python"), table(poetry, "dependencies").get("python"), where)
    rows, elsewhere = requirement_lines(table(poetry, "dependencies"), where)
    lines, requirements = lines + rows, requirements + elsewhere + _dynamic(tree, where, folder)
    parts = _Parts(tree, where, choice, lines)
    taken, skipped = parts.taken, parts.skipped
    sources = _sources(tree, where, choice, parts.chosen)
    lines = [line for line in (*lines, *taken) if _named(line) not in sources.elsewhere]
    limits = texts(table(tree, "tool", "uv").get("constraint-dependencies"))
    lines += [replace(where(limit, limit), constraint=True) for limit in limits]
    requirements += sort(lines) + skipped + sources.contents
    for key, why in _UV_SKIPPED.items():
        if table(tree, "tool", "uv").get(key):
            requirements += skip(where(f"tool.uv.{key}", key), why)
    if project.get("name") or poetry.get("name"):
        line = where(f"the project {project.get('name') or poetry.get('name')}", "name")
        requirements += skip(line, NOT_INSTALLED)
    return requirements


def project_name(folder: Path) -> str | None:
    """Return the project's name in a folder's pyproject.toml, None if it has none or cannot be read."""
    path = folder / "pyproject.toml"
    try:
        tree = parsed(path.name, strictyaml.text_of(path, root=path.parent))
    except UsageError:  # other files can define a project, so this one may be missing or invalid
        return None
    name = table(tree, "project").get("name") or table(tree, "tool", "poetry").get("name")
    return name if isinstance(name, str) else None


def describes_project(path: Path) -> bool:
    """Return whether a pyproject.toml that is valid TOML has a table with requirements of a project or its groups."""
    tree = parsed(path.name, strictyaml.text_of(path, root=path.parent))
    tools = ("poetry", "uv", "pdm", "pixi", "flit", "hatch")
    return "project" in tree or "dependency-groups" in tree or any(table(tree, "tool", name) for name in tools)


def parsed(name: str, text: str) -> Mapping[str, Any]:
    """Return the tree of a project's TOML file.

    Raises:
        UsageError: the text is not TOML.
    """
    hint = f"fix {name}, or envkit init FILE to read another file"
    return trees.from_toml(text, f"{name} is not TOML", hint=hint)


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
        rows = [(at, line) for at, line in enumerate(lines, 1) if not line.lstrip().startswith("#")]
        # The whole text in quotes counts before a part of another: `einops`, of `einops ; python_version < "3.12"`.
        own = (f'"{key}"', f"'{key}'")
        whole = (at for at, line in rows if not is_key and (line.strip() == key or any(text in line for text in own)))
        at = next(whole, 0) or next((at for at, line in rows if fits(line)), 1)
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
            if local := re.fullmatch(r"[\^~<>=].*\+(cu\d+|cpu)", str(row.get("version", ""))):
                rest += index(line, local[1])  # only an exact version has a local part
            if isinstance(row.get("index"), str):
                rest += index_of(where(row["index"], row["index"]), name, row["index"])
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
        caret = re.fullmatch(r"([\^~])(\d+(?:\.\d+)*)((?:a|b|rc|\.?dev|\.?post)\d*)?(?:\+\S*)?", part)
        if caret:
            numbers = [int(number) for number in caret[2].split(".")]
            # A caret fixes the first number that is not zero: `^0.2.3` is `>=0.2.3,<0.3`, `^0.46b0` >=0.46b0,<0.47.
            first = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
            keep = first if caret[1] == "^" else min(1, len(numbers) - 1)
            clauses.append(f">={caret[2]}{caret[3] or ''},<{'.'.join(map(str, [*numbers[:keep], numbers[keep] + 1]))}")
        elif part and part != "*":
            clauses.append(part if part[0] in "<>=!~" else f"=={part}")
    return ",".join(clauses)


def _python(required: object, poetry: object, where: Where) -> Contents:
    text = required if isinstance(required, str) else _clauses(poetry) if isinstance(poetry, str) else ""
    if not text:
        return Contents()
    line = where(f"Python {required or poetry}", "requires-python" if required else "python")
    if required and line.where.endswith(":1"):
        line = where(f"Python {required}", "python_requires")  # of setup.cfg and setup.py
    try:
        parse_constraint(text, "python")
    except UsageError:
        return skip(line, "is not a Python version")
    return take(line, "python", text.replace(" ", ""))


# Groups that a project's developers install beside it.
_DEVELOPERS = re.compile(
    r"(?:.*[-_.])?(?:dev|develop|development|test|tests|testing|lint|docs?|ci|build|typing|release|format|style)\d*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """An extra or a group of a project."""

    key: str  # the table and the name
    name: str
    lines: list[Line]
    elsewhere: Contents = field(default_factory=Contents)
    is_extra: bool = False
    named: bool = False  # by the user
    developers: bool = False

    @property
    def has_torch(self) -> bool:
        return any(_named(line) in FAMILY for line in self.lines)

    @property
    def is_variant(self) -> bool:
        """Whether it has torch itself: an extra for examples may have torchvision."""
        return any(_named(line) == "torch" for line in self.lines)

    @property
    def option(self) -> str:
        return f"envkit init --{'extra' if self.is_extra else 'group'} {self.name}"


class _Parts:
    """The extras and groups of a project that are taken: those that the user names, and one variant with torch.

    Without a name it is the extra or group that has torch if nothing else has it, or whose index `tool.uv.sources`
    names. Of several, the one for CUDA is preferred to the one for the CPU.
    """

    def __init__(self, tree: Mapping[str, Any], where: Where, choice: Choice, own: list[Line]) -> None:
        known = _parts_of(tree, where, choice)
        for option, wanted, is_extra in (("extra", choice.extras, True), ("group", choice.groups, False)):
            names = [part.name for part in known if part.is_extra == is_extra]
            for name in wanted:
                if name not in names:
                    hint = f"--{option} {', '.join(names)}" if names else f"without --{option} {name}"
                    raise UsageError(f"the project has no {option} {name!r:.80}", hint=hint)
        taken = [part for part in known if part.named]
        by_source = _devices_of(tree)
        has_torch = any(_named(line) in FAMILY for line in own) or any(part.has_torch for part in taken)
        if not any((part.is_extra, part.name) in by_source for part in taken):
            variants = [
                part
                for part in known
                if not part.named
                and not part.developers
                and ((part.is_extra, part.name) in by_source or (part.is_variant and not has_torch))
            ]
            # Of equal ones, `max` takes the first.
            taken += [max(variants, key=lambda part: _suits(part, by_source, cpu=choice.cpu))] if variants else []
        self.taken = [line for part in taken for line in part.lines]
        self.chosen = {(part.is_extra, part.name) for part in taken}
        self.skipped = sum((part.elsewhere for part in taken), start=Contents())
        for part in taken:
            self.skipped += _named_cuda(part, where) if (part.is_extra, part.name) not in by_source else Contents()
        left = [part for part in known if part not in taken and (part.lines or part.elsewhere != Contents())]
        variant = next((part for part in taken if part.has_torch or (part.is_extra, part.name) in by_source), None)
        rest: list[_Part] = []
        for part in left:
            if part.has_torch or (part.is_extra, part.name) in by_source:
                reason = "it is for developers" if part.developers else "it does not name torch itself"
                own_torch = "the project itself names torch" if has_torch else reason
                why = f"torch is taken from {variant.key}" if variant else own_torch
                self.skipped += skip(_place(part, where), f"{why}; {part.option} takes this one")
            else:
                rest.append(part)
        if rest:
            text = f"the optional {', '.join(part.key for part in rest)}"
            line = replace(_place(rest[0], where), text=text)
            self.skipped += skip(line, f"not named; {rest[0].option} takes one of them")


def _place(part: _Part, where: Where) -> Line:
    is_table = part.key.startswith("tool.poetry")
    return where(part.key, part.key if is_table else f"{part.key.rpartition('.')[2]} =")


def _suits(part: _Part, by_source: Mapping[tuple[bool, str], str], *, cpu: bool) -> int:
    """Return how well a variant fits the wanted device: 2 if it is the one, 0 if it is the other."""
    device = by_source.get((part.is_extra, part.name), "")
    is_cpu = device == "cpu" or (not device and re.search(r"(?:^|[-_])cpu", part.name) is not None)
    is_cuda = device.startswith("cu") or (not device and re.search(r"gpu|cu(?:da)?\d*$", part.name) is not None)
    if is_cpu or is_cuda:
        return 2 if is_cpu == cpu else 0
    return 1


def _named_cuda(part: _Part, where: Where) -> Contents:
    """Return the CUDA version in the name of a variant without an index of its own: `cu128`, `cuda-12.4`."""
    match = re.search(r"(?:^|[-_])cu(?:da)?[-_]?(\d{2})\.?(\d)$", part.name)
    line = replace(_place(part, where), text=part.key)
    return take(line, "cuda", f"{match[1]}.{match[2]}") if match and part.has_torch else Contents()


def _devices_of(tree: Mapping[str, Any]) -> dict[tuple[bool, str], str]:
    """Return the device of each extra (True) or group (False) that has an index of its own: `cpu`, `cuda`, or empty."""
    indexes = {str(row.get("name", "")): row for row in _rows(table(tree, "tool", "uv").get("index"))}
    found: dict[tuple[bool, str], str] = {}
    for rows in table(tree, "tool", "uv", "sources").values():
        for row in [rows] if isinstance(rows, Mapping) else _rows(rows):
            for key in ("extra", "group"):
                if isinstance(row.get(key), str) and _applies(row.get("marker"), DEFAULT.platform):
                    url = str(indexes.get(str(row.get("index")), {}).get("url", ""))
                    devices = index(Line(where="", text=url), url).settings
                    device = next((one.field for one in devices), "")
                    found.setdefault((key == "extra", str(row[key])), device)
    return found


def _parts_of(tree: Mapping[str, Any], where: Where, choice: Choice) -> list[_Part]:
    own = str(table(tree, "project").get("name", ""))
    extras = {key: texts(rows) for key, rows in table(tree, "project", "optional-dependencies").items()}
    groups = table(tree, "dependency-groups")

    def part(key: str, name: str, lines: list[Line], elsewhere: Contents | None = None) -> _Part:
        is_extra = key.startswith("project.")
        return _Part(
            key=key,
            name=name,
            lines=lines,
            elsewhere=elsewhere or Contents(),
            is_extra=is_extra,
            named=name in (choice.extras if is_extra else choice.groups),
            developers="dev-dependencies" in key or _DEVELOPERS.fullmatch(name.lower()) is not None,
        )

    rows_of = {(f"dependency-groups.{key}", key): _group(groups, key) for key in groups}
    rows_of |= {(f"project.optional-dependencies.{key}", key): _extra(extras, key, own) for key in extras}
    rows_of[("tool.uv.dev-dependencies", "dev")] = texts(table(tree, "tool", "uv").get("dev-dependencies"))
    of_pdm = table(tree, "tool", "pdm", "dev-dependencies")
    rows_of |= {(f"tool.pdm.dev-dependencies.{key}", key): texts(rows) for key, rows in of_pdm.items()}
    found = [part(key, name, [where(row, row) for row in rows]) for (key, name), rows in rows_of.items()]
    poetry = table(tree, "tool", "poetry")
    of_poetry = {
        (f"tool.poetry.group.{key}", key): table(group, "dependencies") for key, group in table(poetry, "group").items()
    }
    of_poetry[("tool.poetry.dev-dependencies", "dev")] = table(poetry, "dev-dependencies")
    found += [part(key, name, *requirement_lines(rows, where)) for (key, name), rows in of_poetry.items()]
    # Tables that are not there have no rows; a group without requirements can be named.
    return [one for one in found if one.lines or one.elsewhere != Contents() or one.name in (*groups, *extras)]


def _extra(extras: Mapping[str, list[str]], name: str, own: str, _seen: frozenset[str] = frozenset()) -> list[str]:
    """Return the requirements of an extra, including those of extras that it names as `PROJECT[EXTRA]`."""
    requirements: list[str] = []
    for row in extras.get(name, []):
        match = re.fullmatch(r"\s*([A-Za-z0-9._-]+)\s*\[([^\]]*)\]\s*", row)
        if match is None or not own or canonicalize_name(match[1]) != canonicalize_name(own):
            requirements.append(row)
            continue
        for other in (text.strip() for text in match[2].split(",")):
            if other not in {*_seen, name}:
                requirements += _extra(extras, other, own, _seen | {name})
    return requirements


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


def _sources(tree: Mapping[str, Any], where: Where, choice: Choice, chosen: set[tuple[bool, str]]) -> _Sources:
    sources, uv = _Sources(), table(tree, "tool", "uv")
    indexes = _indexes(tree, where)
    used: dict[str, list[str]] = {}  # the packages that name an index
    for name, rows in table(uv, "sources").items():
        for row in [rows] if isinstance(rows, Mapping) else _rows(rows):
            of_part = next(((key == "extra", str(row[key])) for key in ("extra", "group") if key in row), None)
            if not _applies(row.get("marker"), choice.platform) or (of_part and of_part not in chosen):
                continue
            if any(key in row for key in ("git", "path", "url", "workspace")):
                sources.elsewhere.add(canonicalize_name(name))
                kind = next(key for key in ("git", "path", "url", "workspace") if key in row)
                sources.contents += skip(
                    where(f"{name} from {kind}", f"{name} ="),
                    _ELSEWHERE,
                )
            else:
                used.setdefault(str(row.get("index")), []).append(name)
    for name, source in _of_poetry(tree, choice):
        used.setdefault(source, []).append(name)
    # An index that a package names takes precedence over those that are searched for every package.
    for name, known in sorted(indexes.items(), key=lambda entry: entry[0] not in used):
        url = str(known.get("url", ""))
        line = where(url, url)
        is_explicit = known.get("explicit") is True or known.get("priority") == "explicit"
        if name in used or not is_explicit:
            # A flat index, in uv's and PDM's words, is a page that links to wheels.
            is_page = known.get("format") == "flat" or known.get("type") == "find_links"
            entry = index(line, url, page=is_page)
            if used.get(name) and not is_page:
                own = sum((index_of(line, package, url) for package in used[name]), start=Contents())
                entry = own if is_explicit else own + entry
                entry = replace(entry, settings=tuple(dict.fromkeys(entry.settings)))
            devices = [
                setting for setting in (*sources.contents.settings, *entry.settings) if setting.field in ("cuda", "cpu")
            ]
            if entry.settings and len(devices) > 1:
                entry = skip(line, f"it is for another variant than {devices[0].line.text}, which is used")
            sources.contents += entry
    return sources


def _of_poetry(tree: Mapping[str, Any], choice: Choice) -> Iterator[tuple[str, str]]:
    """Yield the packages of Poetry's tables that name a source, each with its name."""
    poetry = table(tree, "tool", "poetry")
    for part in (poetry, *(table(poetry, "group", key) for key in table(poetry, "group"))):
        for name, wanted in table(part, "dependencies").items():
            for spec in [wanted] if isinstance(wanted, Mapping) else _rows(wanted):
                is_linux = spec.get("platform", "linux") == "linux"
                if "source" in spec and is_linux and _applies(spec.get("markers"), choice.platform):
                    yield name, str(spec["source"])


def _indexes(tree: Mapping[str, Any], where: Where) -> dict[str, Mapping[str, Any]]:
    """Return the indexes of uv, Poetry and PDM by name.

    Raises:
        UsageError: two of one tool have the same name, so it is not known which one a package means.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for rows in (table(tree, "tool", "uv").get("index"), *(table(tree, "tool", x).get("source") for x in _WITH_SOURCE)):
        names: set[str] = set()
        for at, row in enumerate(_rows(rows)):
            name = str(row.get("name", f"{at}"))
            if name in names:
                line = where(name, str(row.get("url", "")))
                raise UsageError(f"{line.where}: two indexes have the name {name!r:.80}", hint="rename one of them")
            names.add(name)
            found.setdefault(name, row)
    return found


_WITH_SOURCE = ("poetry", "pdm")


def _applies(marker: object, platform: str) -> bool:
    """Return whether a marker can be true on a platform."""
    try:
        return not isinstance(marker, str) or Target(platform=platform).holds(Marker(marker)) is not False
    except ValueError:  # of an invalid marker, too
        return False


def _named(line: Line) -> str:
    match = _NAME.match(line.text.rpartition("#")[2] if line.text.startswith("git+") else line.text)
    return canonicalize_name(match.group()) if match else ""


def _rows(value: object) -> Iterator[Mapping[str, Any]]:
    yield from (row for row in value if isinstance(row, Mapping)) if isinstance(value, list) else ()
