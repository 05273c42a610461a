"""Write the text of an image definition from a project's files, with the lines that it leaves out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground import foreign, strictyaml
from envkit.ground.errors import ConflictError, EnvkitError, UsageError, masked
from envkit.plan.definition import NO_FLAGS, SCHEMA, Definition, parse, shipped, target_of
from envkit.plan.definition import load as load_definition
from envkit.plan.names import distribution, repository
from envkit.plan.planner import plan_of
from envkit.plan.requirements import (
    FILE,
    LINKS,
    MOST_LINES,
    Contents,
    Line,
    Package,
    Setting,
    Skipped,
    Target,
    read,
    reading_once,
    sort,
)
from envkit.project import bases, kinds, listing, pages, pins, targets
from envkit.project.build_commands import python_version
from envkit.project.choice import DEFAULT, Choice
from envkit.project.conda_files import environment, has_pixi, is_environment, pixi
from envkit.project.container_files import cog, dockerfile
from envkit.project.context import Context, context_of
from envkit.project.older_files import pipfile, setup_cfg, setup_py
from envkit.project.toml_files import describes_project, project_name, pyproject
from envkit.render.quoting import yaml

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.plan.model import BuildPlan


def _pyproject(name: str, folder: Path, choice: Choice) -> Contents:
    """Read a pyproject.toml, including the table `tool.pixi`."""
    requirements = pyproject(name, folder, choice)
    if not describes_project(folder / name):
        # Then setuptools reads its older files, and the pyproject.toml only configures tools.
        older = next(((file, read) for file, read in _OLDER if foreign.is_file(folder / file)), None)
        requirements += older[1](older[0], folder, choice) if older else Contents()
    requirements = _with_pinned_python(requirements, folder)
    return requirements + pixi(name, folder, choice) if has_pixi(folder / name) else requirements


_PINNED = ".python-version"


def _with_pinned_python(contents: Contents, folder: Path) -> Contents:
    """Return contents with the Python of the file that uv and pyenv run a project with, if the project allows it."""
    try:
        text = strictyaml.text_of(folder / _PINNED, root=folder) if foreign.is_file(folder / _PINNED) else ""
    except UsageError:  # another file that cannot be read says nothing of this one
        return contents
    python = python_version(next(iter(text.split()), ""))
    if python is None or not all(targets.allows(one.value, python) for one in contents.of("python")):
        return contents
    line = Line(where=f"{_PINNED}:1", text=text.split()[0])
    own = Setting(field="python", value=python, line=line, note=f"Python {python} is taken: uv and pyenv use it")
    return replace(contents, settings=(own, *contents.settings))


def _without_old_pin(contents: Contents, plan_of: Callable[[Contents], BuildPlan | None]) -> Contents:
    """Return contents without the Python of `.python-version` if it is all that keeps them from a combination."""
    pin = next((one for one in contents.settings if one.line.where.startswith(_PINNED)), None)
    if pin is None or plan_of(contents) is not None:
        return contents
    why = f"no combination satisfies the rest with Python {pin.value}"
    settings = tuple(one for one in contents.settings if one is not pin)
    rest = replace(contents, settings=settings, skipped=(*contents.skipped, Skipped(line=pin.line, why=why)))
    return contents if plan_of(rest) is None else rest


def _requirements(name: str, folder: Path) -> Contents:
    """Read a requirements file.

    Raises:
        UsageError: none of its lines is a requirement or an option, as in a text for people.
    """
    contents = sort(read(name, folder))
    is_empty = not (contents.settings or contents.packages or contents.constraints)
    others = [row.why.startswith("is not a requirement") for row in contents.skipped]
    if is_empty and others and all(others):
        where = contents.skipped[0].line.where
        raise UsageError(f"{where}: no line of {name} is a requirement", hint="envkit init FILE to read another file")
    return Contents(settings=(_file(name),)) + contents


Reader = Callable[[str, Path, Choice], Contents]
_OLDER: tuple[tuple[str, Reader], ...] = (("setup.py", setup_py), ("setup.cfg", setup_cfg))
# In the order in which a folder is searched; `choose` prefers files that name torch.
FILES: dict[str, Reader] = {
    "cog.yaml": lambda name, folder, _: cog(name, folder),
    "pixi.toml": pixi,
    "environment.yml": lambda name, folder, _: environment(name, folder),
    "environment.yaml": lambda name, folder, _: environment(name, folder),
    "pyproject.toml": _pyproject,
    "requirements.txt": lambda name, folder, _: _requirements(name, folder),
    "Pipfile": pipfile,
    "Dockerfile": lambda name, folder, _: dockerfile(name, folder),
    "setup.cfg": setup_cfg,
    "setup.py": setup_py,
}
# The file for a copy of the definition schema, so that editors complete and check keys without a network.
SCHEMA_FILE = ".envkit/image-1.schema.json"
_LISTS = ("conda", *LINKS, "apt", "ports", "volumes")
_PAIRS = ("package_indexes", "env", "labels")
_COMPANIONS = ("torchvision", "torchaudio")
_TORCH_FLAGS = ("torch", "with", "torchvision", "torchaudio")  # fields of a request that choose a torch
_SINGLE = ("user", "workdir")
_WORDS = ("entrypoint", "command")
# If no combination satisfies a project's file, these are dropped in this order. CUDA is dropped only if it is from a
# base image: torch from the Python index bundles its own, and the two often differ.
_DROPPABLE = ("source", "cudnn", "os", "flavor", "cuda", *_COMPANIONS)
_CPU_WHEELS = "PyTorch's own wheels are taken: conda-forge has no CPU build that satisfies the rest"
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
    plan: BuildPlan | None  # None if there is a conflict
    undecided: bases.Undecided | None = None  # the base image, if nothing but it could say which torch is meant
    others: tuple[str, ...] = ()  # files of the folder that were not read


def _file(name: str) -> Setting:
    return Setting(field=FILE, value=name, line=Line(where=name, text=name))


def reader_of(name: str, folder: Path) -> Callable[..., Contents]:
    """Return the reader for a file of a folder, by its kind.

    Raises:
        UsageError: it is no project's file.
    """
    kind = kinds.kind_of(folder / name)
    if kind is None:
        raise UsageError(f"{name!r:.200} is not a file that envkit reads", hint=f"--from one of {', '.join(FILES)}")
    return partial(_once, FILES[kind])


def _once(reader: Reader, name: str, folder: Path, choice: Choice = DEFAULT) -> Contents:
    # A Dockerfile can name the same requirements file in thousands of lines.
    with reading_once():
        return reader(name, folder, choice)


def is_project(name_or_path: str) -> bool:
    """Return whether an argument names a project's file or folder, not an image definition."""
    path = Path(name_or_path)
    if name_or_path in shipped():
        return False
    if path.suffix in (".yml", ".yaml") and path.name not in FILES:
        return foreign.is_file(path) and is_environment(path)
    return foreign.is_folder(path) or kinds.kind_of(path) is not None


def load(
    name_or_path: str, facts: Facts, given: Mapping[str, Any] = NO_FLAGS, choice: Choice = DEFAULT
) -> tuple[Definition, tuple[str, ...]]:
    """Return an image definition, and for a project's file what the definition leaves out or changes, in words.

    For a project's file it is the definition that `envkit init` writes, so both give the same packages. Its name is
    that of the project (`image_name`), because names of images become their tags.

    Args:
        name_or_path: a shipped definition, a definition file, a project's file, or a project's folder.
        facts: to check that a project's request resolves.
        given: the flags that will override the request: markers are for their Python and platform.
        choice: what to take of a project that has several variants.

    Raises:
        UsageError: nothing has this name, or the file has errors.
    """
    if not is_project(name_or_path):
        return load_definition(name_or_path, given), ()
    path = Path(name_or_path)
    if foreign.is_folder(path):
        path = path / choose(path)[0]
    foreign.check_file(path)
    found = context(path)
    name, folder = located(path)
    drafted = draft(name, folder, facts, given, choice)
    check_base(drafted, path)
    for row in drafted.skipped:
        if row.excluded:
            raise UsageError(f"{row.line.where}: {row.line.text} {row.why}", hint="remove one of the two lines")
    definition = parse(drafted.text, where=str(path), folder=folder, given=given)
    notes = [f"{path}: the build context is {folder}: {found.why}"] if found.why else []
    notes += listing.notes(drafted.taken)
    return replace(definition, name=image_name(folder)), (*notes, *listing.lost(drafted.skipped))


def image_name(folder: Path) -> str:
    """Return the name of a project's image: the name in its pyproject.toml, else its folder's, as a repository name."""
    return repository(project_name(folder) or folder.resolve().name)


def choose(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the file of a folder to read, and the others that could be read.

    Raises:
        UsageError: the folder has no such file.
    """
    present = [name for name in FILES if foreign.is_file(folder / name)]
    if not present:
        raise UsageError(
            f"{folder.resolve()} has none of {', '.join(FILES)}",
            hint="envkit init FILE, or cd to the folder of the project",
        )
    chosen = next((name for name in present if _names_torch(name, folder)), present[0])
    return chosen, tuple(name for name in present if name != chosen)


def _names_torch(name: str, folder: Path) -> bool:
    try:
        return bool(reader_of(name, folder)(name, folder).of("torch"))
    # The error of an unreadable file is reported if the file is chosen.
    except EnvkitError:
        return False


def draft(
    name: str, folder: Path, facts: Facts, given: Mapping[str, Any] = NO_FLAGS, choice: Choice = DEFAULT
) -> Drafted:
    """Return the definition of a project.

    Args:
        name: of the file to read, in `folder`.
        folder: where the definition will be.
        facts: to check that the request resolves.
        given: as for `load`.
        choice: as for `load`.

    Raises:
        UsageError: the file cannot be read.
    """
    platform = target_of({}, given).platform or choice.platform
    choice = replace(choice, cpu=choice.cpu or bool(given.get("cpu")), platform=platform)
    draw = partial(_drafted, name=name, folder=folder, facts=facts, given=given)
    contents = bases.known(reader_of(name, folder)(name, folder, choice), facts)
    contents = _without_old_pin(contents, lambda some: draw(_listing(_unique(_answered(some, choice)))).plan)
    requirements = _unique(_answered(contents, choice))
    requirements = _unique(
        targets.decided(requirements, given, platform, lambda some: _python(draw(_listing(_unique(some))).plan))
    )
    requirements = pages.decided(requirements, plan_of=lambda some: draw(_listing(some)).plan)
    # Lines that contradict each other leave the torch and CUDA of the pins as they are.
    requirements = pins.decided(requirements, facts, lambda some: _resolving(_listing(some), draw).plan)
    fixed = {"python": ",".join(setting.value for setting in requirements.of("python"))}
    requirements = _referring(requirements, folder, target_of(fixed, given))
    drafted = _resolving(requirements, draw)
    device = choice.cpu or choice.cuda or given.get("cuda")
    if not device and not requirements.of("cuda") and not requirements.of("cpu") and (other := bases.of_amd(contents)):
        return replace(drafted, undecided=other)
    named = requirements.of("torch") or targets.pins(requirements) or any(given.get(key) for key in _TORCH_FLAGS)
    return drafted if named else replace(drafted, undecided=bases.undecided(contents, facts))


def _answered(contents: Contents, choice: Choice) -> Contents:
    """Return contents with the versions that the user gives, which count before those of the files."""
    given = [(key, value) for key, value in (("torch", choice.torch), ("cuda", choice.cuda)) if value]
    for key, value in given:
        others = tuple(
            one for one in contents.settings if one.field != key and not (key == "cuda" and one.field == "cpu")
        )
        line = Line(where=f"--{key}", text=f"--{key} {value}")
        contents = replace(contents, settings=(*others, Setting(field=key, value=value, line=line)))
    return contents


def check_base(drafted: Drafted, path: Path) -> None:
    """Refuse a project whose torch only its base image can name, if that image cannot be read.

    Raises:
        UsageError: the newest torch would be another one than the project has.
    """
    if drafted.undecided is not None:
        if drafted.undecided.of_amd:
            hint = "add --cuda VERSION or --cpu to the command, to have another image than the file describes"
            raise UsageError(f"{drafted.undecided.line.where}: {drafted.undecided}", hint=hint)
        raise UsageError(
            f"{drafted.undecided.line.where}: {drafted.undecided}",
            hint=f"add --torch VERSION --cuda VERSION to the command, or name torch in {path.name}; "
            "if the image has no torch, --torch '>=2' takes the newest",
        )


def is_dockerfile(path: Path) -> bool:
    """Return whether a file is a Dockerfile, by its name or content."""
    return kinds.kind_of(path) == "Dockerfile"


def context(path: Path) -> Context:
    """Return the build context of a Dockerfile (`envkit.project.context`); of any other file, its folder."""
    return context_of(path) if foreign.is_file(path) and is_dockerfile(path) else Context(folder=path.parent, why="")


def located(path: Path) -> tuple[str, Path]:
    """Return a project's file as its name in the folder that its reader reads, and the folder (`context`)."""
    folder = context(path).folder
    return path.name if folder == path.parent else path.resolve().relative_to(folder.resolve()).as_posix(), folder


def _listing(requirements: Contents) -> Contents:
    """Return contents that name no requirements files, whose markers a definition without a Python cannot decide."""
    return replace(requirements, settings=tuple(one for one in requirements.settings if one.field != FILE))


def _python(plan: BuildPlan | None) -> str | None:
    return plan.resolution.python if plan else None


def _resolving(requirements: Contents, draw: Callable[[Contents], Drafted]) -> Drafted:
    """Return the definition without those values of a base image that no combination has: as few as possible."""
    first = draw(requirements)
    tried, dropped = [requirements], requirements
    for key in _DROPPABLE:
        rows = requirements.of(key)
        if rows and not (key == "cuda" and not bases.of_base(rows[0].line)):
            why = f"no combination satisfies the rest with {key} {rows[0].value}"
            alone, dropped = _without(requirements, key, why), _without(dropped, key, why)
            tried += [alone, dropped]
    if requirements.of("cpu") and not requirements.of("source"):
        line = requirements.of("cpu")[0].line
        wheels = Setting(field="source", value="pytorch", line=line, note=_CPU_WHEELS)
        tried.insert(1, replace(requirements, settings=(*requirements.settings, wheels)))
    told = first
    for contents in dict.fromkeys(tried) if first.conflict or requirements.of("flavor") else ():
        for near in _near(contents, requirements):
            drafted = draw(near)
            if drafted.conflict is None:
                return drafted
            # What no combination has says more than what envkit does not build.
            if isinstance(drafted.conflict, ConflictError) and not isinstance(told.conflict, ConflictError):
                told = drafted
    return told


def _near(contents: Contents, whole: Contents) -> Iterator[Contents]:
    """Yield contents with another value for what they lost: a system with toolkit images, a CUDA of the same major."""
    if contents.of("flavor") and not contents.of("os"):
        for system in _TOOLKIT_SYSTEMS:
            note = f"{system} is taken: the flavor devel needs a system for which NVIDIA publishes the toolkit"
            own = Setting(field="os", value=system, line=contents.of("flavor")[0].line, note=note)
            yield replace(contents, settings=(*contents.settings, own))
    if whole.of("cuda") and not contents.of("cuda"):
        lost = whole.of("cuda")[0]
        wildcard = f"{lost.value.partition('.')[0]}.*"
        note = f"CUDA {wildcard} is taken: no combination satisfies the rest with {lost.value}"
        near = Setting(field="cuda", value=wildcard, line=lost.line, note=note)
        kept = tuple(row for row in contents.skipped if row.line != lost.line or " cuda " not in row.why)
        yield replace(contents, settings=(*contents.settings, near), skipped=kept)
        # Without a version of torch, CUDA is all that says which torch is meant.
        if not any(one.value for name in ("torch", *_COMPANIONS) for one in whole.of(name)):
            return
    yield contents


def _drafted(requirements: Contents, *, name: str, folder: Path, facts: Facts, given: Mapping[str, Any]) -> Drafted:
    text, conflict, plan = _text(name, requirements), None, None
    try:
        plan = plan_of(parse(text, where=name, folder=folder, given=given), given, facts)
    except (ConflictError, UsageError) as error:
        conflict = error
    packages = tuple(Setting(field="pip", value=package.spec, line=package.line) for package in requirements.packages)
    packages += tuple(
        Setting(field="constraints", value=constraint.spec, line=constraint.line)
        for constraint in requirements.constraints
    )
    skipped = tuple(
        replace(row, line=replace(row.line, text=masked(listing.without_hashes(row.line.text))))
        for row in requirements.skipped
    )
    return Drafted(
        file=name,
        text=text,
        taken=(*requirements.settings, *packages),
        skipped=skipped,
        conflict=conflict,
        plan=plan,
    )


def _without(requirements: Contents, key: str, why: str) -> Contents:
    dropped = tuple(Skipped(line=setting.line, why=why) for setting in requirements.of(key))
    return replace(
        requirements,
        settings=tuple(setting for setting in requirements.settings if setting.field != key),
        skipped=(*requirements.skipped, *dropped),
    )


def _referring(requirements: Contents, folder: Path, target: Target) -> Contents:
    """Let the definition name a requirements file if all of its lines can be used; otherwise list its packages."""
    left = MOST_LINES  # of all files, because each is read with all that it includes
    for reference in requirements.of(FILE):
        lines = read(reference.value, folder) if left > 0 else ()
        left -= len(lines)
        own, contents = {line.where for line in lines}, sort(lines, target)
        # A page for another torch was left out.
        known = {(one.field, one.value) for one in requirements.settings}
        is_whole = all((one.field, one.value) in known for one in contents.settings if one.field in LINKS)
        if left <= 0 or not is_whole or any(not (row.harmless or row.tolerated) for row in contents.skipped):
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
    for setting in map(targets.by_minor, requirements.settings):
        # CUDA and CPU exclude each other, so they share one entry.
        key = "cuda" if setting.field == "cpu" else setting.field
        if (setting.line.where, setting.line.text) in bad or (setting.line.constraint and setting.field in _COMPANIONS):
            continue  # the versions of companions follow from the torch of the request
        # Several constraints on torch are joined by `_request`.
        if key in (*_LISTS, *_PAIRS, "copy", FILE, "torch"):
            settings += [] if any((x.field, x.value) == (setting.field, setting.value) for x in settings) else [setting]
        # A line without a version (`torchaudio`) yields to a later one that has a version.
        elif key not in first or not first[key].value:
            settings = [x for x in settings if x is not first.get(key)]
            first[key] = setting
            settings.append(setting)
        elif setting.value and (setting.field, setting.value) != (first[key].field, first[key].value):
            skipped.append(_contradicting(setting, first[key], requirements))
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


def _contradicting(setting: Setting, first: Setting, contents: Contents) -> Skipped:
    """Return a setting as skipped for an earlier one; nothing is lost if it is a Python that allows the earlier one."""
    is_python = setting.field == "python" and targets.is_minor(first.value)
    is_same = is_python and targets.allows(setting.value, first.value)
    others = any(one.line == setting.line and one.field != setting.field for one in contents.settings)
    # The rest of the line is not lost with it.
    text = f"{setting.line.text} ({setting.field} {setting.value})" if others else setting.line.text
    why = f"{first.line.where} has {first.value}{', which it allows' if is_same else ''}"
    return Skipped(line=replace(setting.line, text=text), why=why, harmless=is_same)


def _text(name: str, requirements: Contents) -> str:
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_FILE}",
        f"# Written by `envkit init` from {name}. `envkit help images` describes every key.",
        f"schema: {SCHEMA}",
        f"title: {yaml(f'Made from {name}')}",
        *_request(requirements),
        *(["flavor: devel  # the CUDA toolkit and compilers"] if requirements.of("flavor") else []),
    ]
    lines += _companions(requirements)
    lines += _list(FILE, [file.value for file in requirements.of(FILE)])
    lines += _list("conda", [package.value for package in requirements.of("conda")])
    lines += _list("pip", [package.spec for package in requirements.packages])
    lines += _list("constraints", [constraint.spec for constraint in requirements.constraints])
    for key in _LISTS[1:]:
        lines += _list(key, [setting.value for setting in requirements.of(key)])
    for key in _PAIRS:
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
    for key in listing.REQUEST:
        settings = [setting for setting in requirements.of(key) if setting.value]
        if settings:
            values = list(dict.fromkeys(setting.value for setting in settings))
            constraint = ",".join(map(targets.clauses, values)) if len(values) > 1 else values[0]
            origins = ", ".join(dict.fromkeys(setting.line.where for setting in settings))
            notes = "".join(f"; {setting.note}" for setting in settings if setting.note)
            rows.append(f"  {key}: {'true' if key == 'cpu' else json.dumps(constraint)}  # {origins}{notes}")
    return ["request:", *rows] if rows else []


def _companions(requirements: Contents) -> list[str]:
    """Return the line of the companions, if they are others than those of every definition.

    A requirements file that the definition names keeps its own lines, with their versions.
    """
    named = {name: setting for name in _COMPANIONS for setting in requirements.of(name)[:1]}
    specs = [spec for setting, spec in targets.pins(requirements) if not _of_file(requirements, setting)]
    if "torchaudio" not in named and not specs:
        return []
    asked = {name: name for name in ("numpy", "torchvision", *(["torchaudio"] if "torchaudio" in named else []))}
    asked |= {distribution(spec): spec for spec in specs}
    origins = ", ".join(dict.fromkeys(setting.line.where for setting in named.values() if setting.value or not specs))
    words = ", ".join(json.dumps(spec) if spec != name else name for name, spec in asked.items())
    return [f"companions: [{words}]  # {origins}"]


def _of_file(requirements: Contents, setting: Setting) -> bool:
    return any(setting.line.where.partition(":")[0] == file.value for file in requirements.of(FILE))


def _list(key: str, values: Sequence[str]) -> list[str]:
    return [f"{key}:", *(f"  - {json.dumps(value)}" for value in values)] if values else []


def _comment(text: str) -> str:
    plain = "".join(char if char.isprintable() else " " for char in masked(text))
    return plain if len(plain) <= 160 else f"{plain[:160]}..."  # noqa: PLR2004 - a comment's line


__all__ = ["FILES", "Drafted", "Package", "choose", "draft", "reader_of"]
