"""Write the text of an image definition from a project's files, with the lines that it leaves out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import ConflictError, EnvkitError, UsageError, masked
from envkit.plan.definition import SCHEMA, Definition, parse, shipped
from envkit.plan.definition import load as load_definition
from envkit.plan.names import repository
from envkit.plan.planner import plan_of
from envkit.plan.requirements import (
    FILE,
    MOST_LINES,
    UNDECIDED,
    Contents,
    Line,
    Package,
    Setting,
    Skipped,
    read,
    reading_once,
    sort,
    take,
)
from envkit.project.conda_files import environment, has_pixi, pixi
from envkit.project.container_files import cog, dockerfile, of_base
from envkit.project.toml_files import project_name, pyproject
from envkit.render.quoting import yaml

if TYPE_CHECKING:
    from envkit.facts.model import Facts


def _pyproject(name: str, folder: Path) -> Contents:
    """Read a pyproject.toml, including the table `tool.pixi`."""
    requirements = pyproject(name, folder)
    return requirements + pixi(name, folder) if has_pixi(folder / name) else requirements


# In the order in which a folder is searched; `choose` prefers files that name torch.
FILES: dict[str, Callable[[str, Path], Contents]] = {
    "cog.yaml": cog,
    "pixi.toml": pixi,
    "environment.yml": environment,
    "environment.yaml": environment,
    "pyproject.toml": _pyproject,
    "requirements.txt": lambda name, folder: Contents(settings=(_file(name),)) + sort(read(name, folder)),
    "Dockerfile": dockerfile,
}
# The file for a copy of the definition schema, so that editors complete and check keys without a network.
SCHEMA_FILE = ".envkit/image-1.schema.json"
_REQUEST = ("torch", "cuda", "cudnn", "python", "os", "source", "cpu")
_LISTS = ("conda", "apt", "ports", "volumes")
_COMPANIONS = ("torchvision", "torchaudio")
_SINGLE = ("user", "workdir")
_WORDS = ("entrypoint", "command")
# If no combination satisfies a project's file, these are dropped in this order. CUDA is dropped only if it is from a
# base image: torch from the Python index bundles its own, and the two often differ.
_DROPPABLE = ("source", "cudnn", "os", "flavor", "cuda")
# NVIDIA publishes toolkit images for these, but not for Debian.
_TOOLKIT_SYSTEMS = ("ubuntu24.04", "ubuntu22.04", "ubuntu20.04")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """The definition of a project."""

    file: str  # the file it was made from
    text: str
    taken: tuple[Setting, ...]
    skipped: tuple[Skipped, ...]
    conflict: EnvkitError | None  # why the request does not resolve
    others: tuple[str, ...] = ()  # files of the folder that were not read


def _file(name: str) -> Setting:
    return Setting(field=FILE, value=name, line=Line(where=name, text=name))


def reader_of(name: str) -> Callable[[str, Path], Contents]:
    """Return the reader for a file by its name.

    Raises:
        UsageError: there is no reader for such a name.
    """
    plain = Path(name).name
    if plain in FILES:
        return partial(_once, FILES[plain])
    for fits, kind in (
        (plain.endswith(".txt"), "requirements.txt"),
        (plain.endswith((".yml", ".yaml")), "environment.yml"),
        (plain.startswith("Dockerfile") or plain.endswith(".Dockerfile"), "Dockerfile"),
    ):
        if fits:
            return partial(_once, FILES[kind])
    raise UsageError(f"{name!r:.200} is not a file that envkit reads", hint=f"--from one of {', '.join(FILES)}")


def _once(reader: Callable[[str, Path], Contents], name: str, folder: Path) -> Contents:
    # A Dockerfile can name the same requirements file in thousands of lines.
    with reading_once():
        return reader(name, folder)


def is_project(name_or_path: str) -> bool:
    """Return whether an argument names a project's file or folder, not an image definition."""
    path = Path(name_or_path)
    if path.name in FILES or path.suffix in (".txt", ".Dockerfile") or path.name.startswith("Dockerfile"):
        return True
    return path.is_dir() and name_or_path not in shipped()


def load(name_or_path: str, facts: Facts) -> tuple[Definition, tuple[Skipped, ...]]:
    """Return an image definition, and for a project's file the lines that the definition leaves out.

    For a project's file it is the definition that `envkit init` writes, so both give the same packages. Its name is
    that of the project (`image_name`), because names of images become their tags.

    Args:
        name_or_path: a shipped definition, a definition file, a project's file, or a project's folder.
        facts: to check that a project's request resolves.

    Raises:
        UsageError: nothing has this name, or the file has errors.
    """
    if not is_project(name_or_path):
        return load_definition(name_or_path), ()
    path = Path(name_or_path)
    if path.is_dir():
        path = path / choose(path)[0]
    if not path.is_file():
        raise UsageError(f"{path}: the file does not exist", hint=f"ls {shlex.quote(str(path.parent))}")
    drafted = draft(path.name, path.parent, facts)
    for row in drafted.skipped:
        if row.excluded:
            raise UsageError(f"{row.line.where}: {row.line.text} {row.why}", hint="remove one of the two lines")
    definition = replace(parse(drafted.text, where=str(path), folder=path.parent), name=image_name(path.parent))
    return definition, tuple(row for row in drafted.skipped if not row.harmless)


def image_name(folder: Path) -> str:
    """Return the name of a project's image: the name in its pyproject.toml, else its folder's, as a repository name."""
    return repository(project_name(folder) or folder.resolve().name)


def choose(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the file of a folder to read, and the others that could be read.

    Raises:
        UsageError: the folder has no such file.
    """
    present = [name for name in FILES if (folder / name).is_file()]
    if not present:
        raise UsageError(
            f"{folder.resolve()} has none of {', '.join(FILES)}",
            hint="envkit init FILE, or cd to the folder of the project",
        )
    chosen = next((name for name in present if _names_torch(name, folder)), present[0])
    return chosen, tuple(name for name in present if name != chosen)


def _names_torch(name: str, folder: Path) -> bool:
    try:
        return bool(reader_of(name)(name, folder).of("torch"))
    # The error of an unreadable file is reported if the file is chosen.
    except EnvkitError:
        return False


def draft(name: str, folder: Path, facts: Facts) -> Drafted:
    """Return the definition of a project.

    Args:
        name: of the file to read, in `folder`.
        folder: where the definition will be.
        facts: to check that the request resolves.

    Raises:
        UsageError: the file cannot be read.
    """
    requirements = _unique(_referring(reader_of(name)(name, folder), folder))
    requirements = _with_markers(requirements, name, folder, facts)
    drafted, droppable = _drafted(name, requirements, folder, facts), list(_DROPPABLE)
    for system in _TOOLKIT_SYSTEMS if requirements.of("flavor") and not requirements.of("os") else ():
        with_system = requirements + take(requirements.of("flavor")[0].line, "os", system)
        drafted = _drafted(name, with_system, folder, facts)
        if drafted.conflict is None:
            return drafted
    while drafted.conflict is not None and droppable:
        key = droppable.pop(0)
        if not requirements.of(key) or (key == "cuda" and not of_base(requirements.of(key)[0].line)):
            continue
        without = _without(
            requirements, key, f"no combination satisfies the rest with {key} {requirements.of(key)[0].value}"
        )
        drafted = _drafted(name, without, folder, facts)
        requirements = without if drafted.conflict is None else requirements
    return drafted if drafted.conflict is None else _drafted(name, requirements, folder, facts)


def _with_markers(requirements: Contents, name: str, folder: Path, facts: Facts) -> Contents:
    """Evaluate markers for the Python that the request resolves to, and pin that Python in the definition."""
    open_lines = [row.line for row in requirements.skipped if row.why.startswith(UNDECIDED)]
    if not open_lines:
        return requirements
    try:
        python = plan_of(parse(_text(name, requirements), where=name, folder=folder), {}, facts).resolution.python
    except (ConflictError, UsageError):
        return requirements
    pinned = Setting(field="python", value=python, line=open_lines[0])
    settings = (*(setting for setting in requirements.settings if setting.field != "python"), pinned)
    skipped = tuple(row for row in requirements.skipped if not row.why.startswith(UNDECIDED))
    return _unique(replace(requirements, settings=settings, skipped=skipped) + sort(open_lines, python=python))


def _drafted(name: str, requirements: Contents, folder: Path, facts: Facts) -> Drafted:
    text, conflict = _text(name, requirements), None
    try:
        plan_of(parse(text, where=name, folder=folder), {}, facts)
    except (ConflictError, UsageError) as error:
        conflict = error
    packages = tuple(Setting(field="pip", value=package.spec, line=package.line) for package in requirements.packages)
    packages += tuple(
        Setting(field="constraints", value=constraint.spec, line=constraint.line)
        for constraint in requirements.constraints
    )
    skipped = tuple(replace(row, line=replace(row.line, text=masked(row.line.text))) for row in requirements.skipped)
    return Drafted(file=name, text=text, taken=(*requirements.settings, *packages), skipped=skipped, conflict=conflict)


def _without(requirements: Contents, key: str, why: str) -> Contents:
    dropped = tuple(Skipped(line=setting.line, why=why) for setting in requirements.of(key))
    return replace(
        requirements,
        settings=tuple(setting for setting in requirements.settings if setting.field != key),
        skipped=(*requirements.skipped, *dropped),
    )


def _referring(requirements: Contents, folder: Path) -> Contents:
    """Let the definition name a requirements file if all of its lines can be used; otherwise list its packages."""
    left = MOST_LINES  # of all files, because each is read with all that it includes
    for reference in requirements.of(FILE):
        lines = read(reference.value, folder) if left > 0 else ()
        left -= len(lines)
        own = {line.where for line in lines}
        if left <= 0 or any(not row.harmless for row in sort(lines).skipped):
            requirements = replace(
                requirements, settings=tuple(other for other in requirements.settings if other != reference)
            )
        else:
            requirements = replace(
                requirements,
                packages=tuple(package for package in requirements.packages if package.line.where not in own),
                constraints=tuple(package for package in requirements.constraints if package.line.where not in own),
            )
    return requirements


def _unique(requirements: Contents) -> Contents:
    """Keep one value for each key, the first, and skip the lines that contradict it."""
    bad = {(row.line.where, row.line.text) for row in requirements.skipped if not row.harmless}
    settings: list[Setting] = []
    skipped: list[Skipped] = []
    first: dict[str, Setting] = {}
    for setting in requirements.settings:
        # CUDA and CPU exclude each other, so they share one entry.
        key = "cuda" if setting.field == "cpu" else setting.field
        if (setting.line.where, setting.line.text) in bad or (setting.line.constraint and setting.field in _COMPANIONS):
            continue  # the versions of companions follow from the torch of the request
        # Several constraints on torch are joined by `_request`.
        if key in (*_LISTS, "env", "labels", "copy", FILE, "torch"):
            settings += [] if any((x.field, x.value) == (setting.field, setting.value) for x in settings) else [setting]
        # A line without a version (`torchaudio`) yields to a later one that has a version.
        elif key not in first or not first[key].value:
            settings = [x for x in settings if x is not first.get(key)]
            first[key] = setting
            settings.append(setting)
        elif setting.value and (setting.field, setting.value) != (first[key].field, first[key].value):
            skipped.append(Skipped(line=setting.line, why=f"{first[key].line.where} has {first[key].value}"))
    packages, constraints = (
        # Reversed here and below, so that of equal lines the first one stays, in the order of the file.
        {package.spec: package for package in reversed(rows) if (package.line.where, package.line.text) not in bad}
        for rows in (requirements.packages, requirements.constraints)
    )
    return Contents(
        settings=tuple(settings),
        packages=tuple(reversed(packages.values())),
        constraints=tuple(reversed(constraints.values())),
        skipped=(*requirements.skipped, *skipped),
    )


def _text(name: str, requirements: Contents) -> str:
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_FILE}",
        f"# Written by `envkit init` from {name}. `envkit help images` describes every key.",
        f"schema: {SCHEMA}",
        f"title: {yaml(f'Made from {name}')}",
        *_request(requirements),
        *(["flavor: devel  # the CUDA toolkit and compilers"] if requirements.of("flavor") else []),
    ]
    audio = requirements.of("torchaudio")
    lines += [f"companions: [numpy, torchvision, torchaudio]  # {audio[0].line.where}"] if audio else []
    lines += _list(FILE, [file.value for file in requirements.of(FILE)])
    lines += _list("conda", [package.value for package in requirements.of("conda")])
    lines += _list("pip", [package.spec for package in requirements.packages])
    lines += _list("constraints", [constraint.spec for constraint in requirements.constraints])
    for key in _LISTS[1:]:
        lines += _list(key, [setting.value for setting in requirements.of(key)])
    for key in ("env", "labels"):
        rows = dict(setting.value.split("=", 1) for setting in requirements.of(key))
        lines += (
            [f"{key}:", *(f"  {label}: {json.dumps(value, ensure_ascii=False)}" for label, value in rows.items())]
            if rows
            else []
        )
    for key in _SINGLE:
        lines += [f"{key}: {json.dumps(requirements.of(key)[0].value)}"] if requirements.of(key) else []
    copies = [json.loads(setting.value) for setting in requirements.of("copy")]
    rows_of = [f"  - {{from: {json.dumps(source)}, to: {json.dumps(target)}}}" for source, target in copies]
    lines += (
        ["copy:", *rows_of]
        if rows_of
        else ["# copy:", "#   - {from: ., to: .}  # the files of the project, below workdir"]
    )
    for key in _WORDS:
        lines += [f"{key}: {requirements.of(key)[0].value}" for _ in requirements.of(key)[:1]]
    left_out = [row for row in requirements.skipped if not row.harmless]
    lines += ["", "# Left out:"] if left_out else []
    lines += [f"#   {row.line.where}: {_comment(row.line.text)}: {_comment(row.why)}" for row in left_out]
    return "\n".join(lines) + "\n"


def _request(requirements: Contents) -> list[str]:
    rows = []
    for key in _REQUEST:
        settings = [setting for setting in requirements.of(key) if setting.value]
        if settings:
            constraint = ",".join(dict.fromkeys(setting.value for setting in settings))
            origins = ", ".join(dict.fromkeys(setting.line.where for setting in settings))
            rows.append(f"  {key}: {'true' if key == 'cpu' else json.dumps(constraint)}  # {origins}")
    return ["request:", *rows] if rows else []


def _list(key: str, values: Sequence[str]) -> list[str]:
    return [f"{key}:", *(f"  - {json.dumps(value)}" for value in values)] if values else []


def _comment(text: str) -> str:
    plain = "".join(char if char.isprintable() else " " for char in masked(text))
    return plain if len(plain) <= 160 else f"{plain[:160]}..."  # noqa: PLR2004 - a comment's line


def shown(taken: Iterable[Setting]) -> list[tuple[str, str, str]]:
    """Return rows to print: the key of the definition, its value, and the line that it comes from."""
    rows = []
    for setting in taken:
        prefix = "request." if setting.field in _REQUEST else ""
        value = " to ".join(json.loads(setting.value)) if setting.field == "copy" else setting.value or "any version"
        rows.append((f"{prefix}{setting.field}", value, setting.line.where))
    return rows


__all__ = ["FILES", "Drafted", "Package", "choose", "draft", "reader_of", "shown"]
