"""Read Pipfile, setup.cfg and setup.py, whose requirements a pyproject.toml could have, too.

Nothing is run: of a setup.py only what its text says is read, and what it computes is lost by name.
"""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envkit.ground import foreign, strictyaml
from envkit.ground.errors import UsageError
from envkit.plan.requirements import Contents, Line, included, skip
from envkit.project.choice import DEFAULT, Choice
from envkit.project.toml_files import lines_of, of_tree, parsed, table

_MARKERS = ("sys_platform", "platform_machine", "platform_system", "os_name", "python_version", "implementation_name")
_FILE = re.compile(r"[\w./-]+\.(?:txt|in)")
_COMPUTED = "the program computes it; list the requirements in the definition"


def pipfile(name: str, folder: Path, choice: Choice = DEFAULT) -> Contents:
    """Read a Pipfile; `--group dev` takes its dev-packages, too.

    Raises:
        UsageError: the file is not TOML.
    """
    text = strictyaml.text_of(folder / name, root=folder)
    tree = parsed(name, text)
    requires = table(tree, "requires")
    python = requires.get("python_version") or requires.get("python_full_version")
    poetry: dict[str, Any] = {
        "dependencies": ({"python": python} if isinstance(python, str) else {}) | _rows(table(tree, "packages")),
        "group": {"dev": {"dependencies": _rows(table(tree, "dev-packages"))}},
        "source": tree.get("source"),
    }
    return of_tree({"tool": {"poetry": poetry}}, lines_of(name, text), folder, choice)


def _rows(packages: Mapping[str, Any]) -> dict[str, Any]:
    """Return packages of a Pipfile as dependencies of Poetry: `index` is `source`, and markers are one text."""
    rows: dict[str, Any] = {}
    for package, wanted in packages.items():
        if not isinstance(wanted, Mapping):
            rows[package] = wanted
            continue
        row = {key: value for key, value in wanted.items() if key not in (*_MARKERS, "index", "markers")}
        parts = [str(wanted["markers"])] if wanted.get("markers") else []
        parts += [f"{key} {wanted[key]}" for key in _MARKERS if isinstance(wanted.get(key), str)]
        row |= {"source": wanted["index"]} if isinstance(wanted.get("index"), str) else {}
        row |= {"markers": " and ".join(f"({part})" for part in parts)} if parts else {}
        rows[package] = row
    return rows


def setup_cfg(name: str, folder: Path, choice: Choice = DEFAULT) -> Contents:
    """Read the section `options` of a setup.cfg.

    Raises:
        UsageError: it has no such section, or is not an INI file.
    """
    text = strictyaml.text_of(folder / name, root=folder)
    config = configparser.RawConfigParser(strict=False)
    try:
        config.read_string(text)
    except configparser.Error as error:
        place = f"{name}:{getattr(error, 'lineno', 1)}"
        raise UsageError(f"{place}: not an INI file", hint="envkit init FILE to read another file") from error
    if not any(section == "options" or section.startswith("options.") for section in config.sections()):
        raise UsageError(
            f"{name} has no section [options] with requirements", hint="envkit init FILE to read another file"
        )
    options = dict(config["options"]) if config.has_section("options") else {}
    extras = dict(config["options.extras_require"]) if config.has_section("options.extras_require") else {}
    listed = options.get("install_requires", "")
    project = {
        "name": config.get("metadata", "name", fallback=None),
        "requires-python": options.get("python_requires"),
        "dependencies": [] if listed.startswith("file:") else _lines(listed),
        "optional-dependencies": {extra: _lines(value) for extra, value in extras.items()},
    }
    where = lines_of(name, text)
    contents = of_tree({"project": project}, where, folder, choice)
    for file in listed.removeprefix("file:").split(",") if listed.startswith("file:") else ():
        contents += included(where(file.strip(), file.strip()), file.strip(), folder)
    return contents


def _lines(value: str) -> list[str]:
    """Return the requirements of a value: one a line, or separated by semicolons if it is one line without markers."""
    lines = value.strip().splitlines()
    if len(lines) == 1 and not re.search(r";\s*\(*\s*(?:python|platform|sys|os|implementation|extra)_?", value):
        lines = value.split(";")
    plain = (line.partition(" #")[0].strip() for line in lines)
    return [line for line in plain if line and not line.startswith("#")]


def setup_py(name: str, folder: Path, choice: Choice = DEFAULT) -> Contents:
    """Read the call of `setup` in a setup.py, and the setup.cfg beside it if the call has no requirements.

    Raises:
        UsageError: it is not Python, or calls no `setup`.
    """
    text = strictyaml.text_of(folder / name, root=folder)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"{name}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError(f"{where}: not Python code", hint="envkit init FILE to read another file") from error
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call) and _calls_setup(node)), None)
    if call is None:
        raise UsageError(f"{name} does not call setup()", hint="envkit init FILE to read another file")
    arguments = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    reader = _Reader(name, folder, tree)
    if "install_requires" not in arguments and _has_options(folder / "setup.cfg"):
        return setup_cfg("setup.cfg", folder, choice)
    own = reader.texts(arguments.get("install_requires"))
    extras = reader.table(arguments.get("extras_require"))
    python = reader.value(arguments.get("python_requires"))
    project = {
        "name": reader.value(arguments.get("name")),
        "requires-python": python if isinstance(python, str) else None,
        "dependencies": own,
        "optional-dependencies": extras,
    }
    return of_tree({"project": project}, lines_of(name, text), folder, choice) + reader.rest


def _has_options(path: Path) -> bool:
    text = strictyaml.text_of(path, root=path.parent) if foreign.is_file(path) else ""
    return re.search(r"^\[options\]", text, re.MULTILINE) is not None


def _calls_setup(call: ast.Call) -> bool:
    function = call.func
    return (isinstance(function, ast.Name) and function.id == "setup") or (
        isinstance(function, ast.Attribute) and function.attr == "setup"
    )


class _Reader:
    """Values that the text of a program says: literals, and names that are given one of them once."""

    def __init__(self, name: str, folder: Path, tree: ast.Module) -> None:
        self._name, self._folder = name, folder
        self._values: dict[str, ast.expr] = {}
        self._functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        changed: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                target = node.targets[0].id
                changed |= {target} & self._values.keys()
                self._values[target] = node.value
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                changed.add(node.target.id)
        self._values = {key: value for key, value in self._values.items() if key not in changed}
        self.rest = Contents()  # what is not in a literal

    def value(self, node: ast.expr | None, depth: int = 8) -> Any:
        """Return the value of an expression; None if it is not a literal."""
        if isinstance(node, ast.Name) and depth:
            return self.value(self._values.get(node.id), depth - 1)
        try:
            return ast.literal_eval(node) if node is not None else None
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None

    def texts(self, node: ast.expr | None) -> list[str]:
        """Return a list of requirements; those of the files that the expression names are added to `rest`."""
        value = self.value(node)
        if isinstance(value, list | tuple):
            return [text for text in value if isinstance(text, str)]
        if node is None:
            return []
        line = Line(where=f"{self._name}:{node.lineno}", text="install_requires")
        files = [file for file in dict.fromkeys(self._files(node)) if foreign.is_file(self._folder / file)]
        for file in files:
            self.rest += included(Line(where=line.where, text=file), file, self._folder)
        if not files:
            self.rest += skip(line, _COMPUTED)
        return []

    def table(self, node: ast.expr | None) -> dict[str, list[str]]:
        """Return the extras; those that are computed are added to `rest`."""
        while isinstance(node, ast.Name):
            node = self._values.pop(node.id, None)
        if not isinstance(node, ast.Dict):
            if node is not None:
                self.rest += skip(Line(where=f"{self._name}:{node.lineno}", text="extras_require"), _COMPUTED)
            return {}
        extras = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name, rows = self.value(key), self.value(value)
            if isinstance(name, str) and isinstance(rows, list | tuple):
                extras[name] = [text for text in rows if isinstance(text, str)]
            else:
                self.rest += skip(
                    Line(where=f"{self._name}:{value.lineno}", text=f"the extra {name or ''}".strip()), _COMPUTED
                )
        return extras

    def _files(self, node: ast.AST, depth: int = 3) -> Iterator[str]:
        """Yield the names of requirements files in an expression, and in the functions and names that it uses."""
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and _FILE.fullmatch(part.value):
                yield part.value.removeprefix("./")
            elif isinstance(part, ast.Name) and depth:
                inner = self._values.get(part.id) or self._functions.get(part.id)
                yield from self._files(inner, depth - 1) if inner is not None else ()
