"""From what a project's files ask for to the text of an image definition, with the lines that it cannot take over."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import ConflictError, EnvkitError, UsageError, masked
from envkit.plan.definition import SCHEMA, Definition, parse, shipped
from envkit.plan.definition import load as load_definition
from envkit.plan.names import repository
from envkit.plan.planner import plan_of
from envkit.plan.requirements import FILE, UNDECIDED, Asked, Left, Line, Package, Sorted, read, sort
from envkit.project.conda_files import environment, has_pixi, pixi
from envkit.project.container_files import cog, dockerfile, of_base
from envkit.project.toml_files import project_name, pyproject
from envkit.render.quoting import yaml

if TYPE_CHECKING:
    from envkit.facts.model import Facts


def _pyproject(name: str, folder: Path) -> Sorted:
    """Read a pyproject.toml with the table that pixi has in it."""
    requirements = pyproject(name, folder)
    return requirements + pixi(name, folder) if has_pixi(folder / name) else requirements


# In the order in which a folder is searched; a file that names torch comes before one that does not.
FILES: dict[str, Callable[[str, Path], Sorted]] = {
    "cog.yaml": cog,
    "pixi.toml": pixi,
    "environment.yml": environment,
    "environment.yaml": environment,
    "pyproject.toml": _pyproject,
    "requirements.txt": lambda name, folder: Sorted(asked=(_file(name),)) + sort(read(name, folder)),
    "Dockerfile": dockerfile,
}
# Where the schema of definitions lies beside one, so that editors complete and check its keys without a network.
SCHEMA_FILE = ".envkit/image-1.schema.json"
_REQUEST = ("torch", "cuda", "cudnn", "python", "os", "source", "cpu")
_LISTS = ("conda", "apt", "ports", "volumes")
_COMPANIONS = ("torchvision", "torchaudio")
_SINGLE = ("user", "workdir")
_WORDS = ("entrypoint", "command")
# What gives way, in this order, if nothing fits all that a project's file says. CUDA only where it is a base image's:
# torch from the Python index brings its own, and the two often differ.
_GIVES_WAY = ("source", "cudnn", "os", "flavor", "cuda")
# NVIDIA has images with the toolkit for these, and for none with Debian.
_TOOLKIT_SYSTEMS = ("ubuntu24.04", "ubuntu22.04", "ubuntu20.04")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """The definition of a project."""

    file: str  # that it was made from
    text: str
    taken: tuple[Asked, ...]
    left: tuple[Left, ...]
    conflict: EnvkitError | None  # nothing fits the request
    others: tuple[str, ...] = ()  # files of the folder that were not read


def _file(name: str) -> Asked:
    return Asked(field=FILE, value=name, line=Line(where=name, text=name))


def reader_of(name: str) -> Callable[[str, Path], Sorted]:
    """Return what reads a file, which its name tells.

    Raises:
        UsageError: the name is none that envkit knows.
    """
    plain = Path(name).name
    if plain in FILES:
        return FILES[plain]
    for fits, kind in (
        (plain.endswith(".txt"), "requirements.txt"),
        (plain.endswith((".yml", ".yaml")), "environment.yml"),
        (plain.startswith("Dockerfile") or plain.endswith(".Dockerfile"), "Dockerfile"),
    ):
        if fits:
            return FILES[kind]
    raise UsageError(f"{name!r:.200} is not a file that envkit reads", hint=f"--from one of {', '.join(FILES)}")


def is_project(name_or_path: str) -> bool:
    """Whether an argument names a project's file, or the folder of a project, and not an image definition."""
    path = Path(name_or_path)
    if path.name in FILES or path.suffix in (".txt", ".Dockerfile") or path.name.startswith("Dockerfile"):
        return True
    return path.is_dir() and name_or_path not in shipped()


def load(name_or_path: str, facts: Facts) -> tuple[Definition, tuple[Left, ...]]:
    """Return an image definition, and what is lost where a project's file takes its place.

    The definition is the one that `envkit init` writes for the file, so both give the same packages. Its name is
    that of the project (`image_name`), because names of images become their tags.

    Args:
        name_or_path: a shipped image, a definition file, a project's file, or a project's folder.
        facts: whether a project's request has an answer.

    Raises:
        UsageError: nothing has this name, or the file has faults.
    """
    if not is_project(name_or_path):
        return load_definition(name_or_path), ()
    path = Path(name_or_path)
    if path.is_dir():
        path = path / choose(path)[0]
    if not path.is_file():
        raise UsageError(f"{path}: the file does not exist", hint=f"ls {shlex.quote(str(path.parent))}")
    drafted = draft(path.name, path.parent, facts)
    for loss in drafted.left:
        if loss.excluded:
            raise UsageError(f"{loss.line.where}: {loss.line.text} {loss.why}", hint="remove one of the two lines")
    definition = replace(parse(drafted.text, where=str(path), folder=path.parent), name=image_name(path.parent))
    return definition, tuple(left for left in drafted.left if not left.harmless)


def image_name(folder: Path) -> str:
    """Return the name of a project's image: that of its pyproject.toml, else of its folder, as a repository."""
    return repository(project_name(folder) or folder.resolve().name)


def choose(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the file of a folder to begin with, and the others.

    Raises:
        UsageError: the folder has none.
    """
    present = [name for name in FILES if (folder / name).is_file()]
    if not present:
        raise UsageError(
            f"there is none of {', '.join(FILES)} in {folder.resolve()}",
            hint="envkit init --from FILE, or cd to the folder of the project",
        )
    chosen = next((name for name in present if _names_torch(name, folder)), present[0])
    return chosen, tuple(name for name in present if name != chosen)


def _names_torch(name: str, folder: Path) -> bool:
    try:
        return bool(FILES[name](name, folder).of("torch"))
    except EnvkitError:
        return False


def draft(name: str, folder: Path, facts: Facts) -> Drafted:
    """Return the definition of a project.

    Args:
        name: of the file to begin with, in `folder`.
        folder: where the definition will be.
        facts: whether the request has an answer.

    Raises:
        UsageError: the file cannot be read.
    """
    requirements = _settled(_referring(reader_of(name)(name, folder), folder))
    requirements = _with_markers(requirements, name, folder, facts)
    drafted, gives_way = _drafted(name, requirements, folder, facts), list(_GIVES_WAY)
    for system in _TOOLKIT_SYSTEMS if requirements.of("flavor") and not requirements.of("os") else ():
        with_system = requirements + Sorted(
            asked=(Asked(field="os", value=system, line=requirements.of("flavor")[0].line),)
        )
        drafted = _drafted(name, with_system, folder, facts)
        if drafted.conflict is None:
            return drafted
    while drafted.conflict is not None and gives_way:
        key = gives_way.pop(0)
        if not requirements.of(key) or (key == "cuda" and not of_base(requirements.of(key)[0].line)):
            continue
        without = _without(
            requirements, key, f"nothing fits the rest together with {key} {requirements.of(key)[0].value}"
        )
        drafted = _drafted(name, without, folder, facts)
        requirements = without if drafted.conflict is None else requirements
    return drafted if drafted.conflict is None else _drafted(name, requirements, folder, facts)


def _with_markers(requirements: Sorted, name: str, folder: Path, facts: Facts) -> Sorted:
    """Decide markers by the Python that the request resolves to; the definition then has that Python."""
    open_lines = [loss.line for loss in requirements.left if loss.why.startswith(UNDECIDED)]
    if not open_lines:
        return requirements
    try:
        python = plan_of(parse(_text(name, requirements), where=name, folder=folder), {}, facts).resolution.python
    except (ConflictError, UsageError):
        return requirements
    pinned = Asked(field="python", value=python, line=open_lines[0])
    asked = (*(setting for setting in requirements.asked if setting.field != "python"), pinned)
    left = tuple(loss for loss in requirements.left if not loss.why.startswith(UNDECIDED))
    return _settled(replace(requirements, asked=asked, left=left) + sort(open_lines, python=python))


def _drafted(name: str, requirements: Sorted, folder: Path, facts: Facts) -> Drafted:
    text, conflict = _text(name, requirements), None
    try:
        plan_of(parse(text, where=name, folder=folder), {}, facts)
    except (ConflictError, UsageError) as error:
        conflict = error
    packages = tuple(Asked(field="pip", value=package.spec, line=package.line) for package in requirements.packages)
    packages += tuple(
        Asked(field="constraints", value=constraint.spec, line=constraint.line)
        for constraint in requirements.constraints
    )
    left = tuple(replace(loss, line=replace(loss.line, text=masked(loss.line.text))) for loss in requirements.left)
    return Drafted(file=name, text=text, taken=(*requirements.asked, *packages), left=left, conflict=conflict)


def _without(requirements: Sorted, key: str, why: str) -> Sorted:
    gone = tuple(Left(line=setting.line, why=why) for setting in requirements.of(key))
    return replace(
        requirements,
        asked=tuple(setting for setting in requirements.asked if setting.field != key),
        left=(*requirements.left, *gone),
    )


def _referring(requirements: Sorted, folder: Path) -> Sorted:
    """Leave a requirements file to the definition where all of its lines can be used; else list its packages."""
    for reference in requirements.of(FILE):
        lines = read(reference.value, folder)
        alone = sort(lines)
        own = {line.where for line in lines}
        if any(not left.harmless for left in alone.left):
            requirements = replace(
                requirements, asked=tuple(other for other in requirements.asked if other != reference)
            )
        else:
            requirements = replace(
                requirements,
                packages=tuple(package for package in requirements.packages if package.line.where not in own),
                constraints=tuple(package for package in requirements.constraints if package.line.where not in own),
            )
    return requirements


def _settled(requirements: Sorted) -> Sorted:
    """Let one value stand for each key, and move what contradicts it to what is left."""
    bad = {(loss.line.where, loss.line.text) for loss in requirements.left if not loss.harmless}
    asked: list[Asked] = []
    left: list[Left] = []
    first: dict[str, Asked] = {}
    for setting in requirements.asked:
        key = "cuda" if setting.field == "cpu" else setting.field
        if (setting.line.where, setting.line.text) in bad or (setting.line.constraint and setting.field in _COMPANIONS):
            continue  # the torch of the request decides on its companions
        if key in (*_LISTS, "env", "labels", "copy", FILE, "torch"):
            asked += [] if any((x.field, x.value) == (setting.field, setting.value) for x in asked) else [setting]
        elif key not in first or not first[key].value:
            asked = [x for x in asked if x is not first.get(key)]
            first[key] = setting
            asked.append(setting)
        elif setting.value and (setting.field, setting.value) != (first[key].field, first[key].value):
            left.append(Left(line=setting.line, why=f"{first[key].line.where} says {first[key].value}"))
    packages, constraints = (
        {package.spec: package for package in reversed(rows) if (package.line.where, package.line.text) not in bad}
        for rows in (requirements.packages, requirements.constraints)
    )
    return Sorted(
        asked=tuple(asked),
        packages=tuple(reversed(packages.values())),
        constraints=tuple(reversed(constraints.values())),
        left=(*requirements.left, *left),
    )


def _text(name: str, requirements: Sorted) -> str:
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
    losses = [loss for loss in requirements.left if not loss.harmless]
    lines += ["", "# Not taken over:"] if losses else []
    lines += [f"#   {loss.line.where}: {_comment(loss.line.text)}: {_comment(loss.why)}" for loss in losses]
    return "\n".join(lines) + "\n"


def _request(requirements: Sorted) -> list[str]:
    rows = []
    for key in _REQUEST:
        asked = [setting for setting in requirements.of(key) if setting.value]
        if asked:
            value = "true" if key == "cpu" else json.dumps(",".join(dict.fromkeys(setting.value for setting in asked)))
            rows.append(f"  {key}: {value}  # {', '.join(dict.fromkeys(setting.line.where for setting in asked))}")
    return ["request:", *rows] if rows else []


def _list(key: str, values: Sequence[str]) -> list[str]:
    return [f"{key}:", *(f"  - {json.dumps(value)}" for value in values)] if values else []


def _comment(text: str) -> str:
    plain = "".join(char if char.isprintable() else " " for char in masked(text))
    return plain if len(plain) <= 160 else f"{plain[:160]}..."  # noqa: PLR2004 - a comment's line


def shown(taken: Iterable[Asked]) -> list[tuple[str, str, str]]:
    """Return rows for people: the key of the definition, its value, and the place it comes from."""
    rows = []
    for setting in taken:
        prefix = "request." if setting.field in _REQUEST else ""
        value = " to ".join(json.loads(setting.value)) if setting.field == "copy" else setting.value or "any version"
        rows.append((f"{prefix}{setting.field}", value, setting.line.where))
    return rows


__all__ = ["FILES", "Drafted", "Package", "choose", "draft", "reader_of", "shown"]
