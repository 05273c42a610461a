"""Read cog.yaml and Dockerfiles: base image, packages, files and settings, but no other shell commands."""

from __future__ import annotations

import configparser
import json
import posixpath
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envkit.ground import foreign, strictyaml
from envkit.ground.errors import UsageError
from envkit.lock.index_locations import pip_settings
from envkit.plan import copying, names
from envkit.plan.requirements import (
    SOURCES,
    Contents,
    Line,
    Setting,
    Skipped,
    included,
    index,
    not_for,
    skip,
    sort,
    take,
)
from envkit.project import bases
from envkit.project.build_commands import (
    INDEX_VARIABLES,
    SHELL_ONLY,
    Build,
    checked,
    configured,
    contents_of,
    python_version,
    system_package,
)
from envkit.project.conda_files import variable
from envkit.project.shell import Command, commands, is_shell, of_words
from envkit.project.toml_files import texts
from envkit.render import words
from envkit.render.dockerfile import Instruction, Parsed, command, parse

_OF_TEMPLATES = "envkit's templates set it"
_OF_BUILD = "it is a variable of the build, and its value is used where a line names it"


def cog(name: str, folder: Path) -> Contents:
    """Read a cog.yaml.

    Raises:
        UsageError: the file has no `build` section.
    """
    tree, places = strictyaml.read_with_places(strictyaml.text_of(folder / name, root=folder), name)
    build: Any = tree.get("build") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(build, dict):
        raise UsageError(f"{name} has no key `build`", hint="envkit init FILE to read another file")

    def line(text: str, *keys: str | int) -> Line:
        return Line(where=f"{name}:{places.get(keys, (1, 1))[0]}", text=text)

    requirements = Contents()
    for key, into in (("python_version", "python"), ("cuda", "cuda"), ("cudnn", "cudnn")):
        if isinstance(build.get(key), str):
            requirements += take(line(f"{key}: {build[key]}", "build", key), into, str(build[key]))
    if build.get("gpu") is not True:
        has = "gpu" in build
        shown = "gpu: false" if has else "build without gpu: true"
        requirements += take(line(shown, "build", *(["gpu"] if has else [])), "cpu", "true")
    packages = texts(build.get("python_packages"))
    requirements += sort(line(requirement, "build", "python_packages", at) for at, requirement in enumerate(packages))
    if isinstance(build.get("python_requirements"), str):
        requirements += included(
            line("python_requirements", "build", "python_requirements"), build["python_requirements"], folder
        )
    for at, package in enumerate(texts(build.get("system_packages"))):
        requirements += system_package(line(package, "build", "system_packages", at), package)
    steps = [
        (line("", "build", key, at), step if isinstance(step, str) else str(step.get("command", "")))
        for key in ("pre_install", "run")
        for at, step in enumerate(build[key] if isinstance(build.get(key), list) else [])
        if isinstance(step, str | dict)
    ]
    folders = Build(folder=folder, last_workdir="/src", copied=[(".", "/src")])
    for where, script in steps:
        requirements += contents_of(where, commands(script, {}), folders)
    for key in tree.keys() - {"build", "image"}:
        requirements += skip(
            line(f"{key}: {tree[key]}", key), "it configures cog's server, which the image does not contain"
        )
    where = line("the folder of cog.yaml, which cog copies to /src")
    return requirements + take(where, "copy", json.dumps([".", "/src"])) + take(where, "workdir", "/src")


def dockerfile(name: str, folder: Path) -> Contents:
    """Read a Dockerfile: its last stage and the stages that it is based on. Instructions of other stages are skipped.

    Raises:
        UsageError: the file cannot be read.
    """
    # The parser reports carriage returns; at the end of a line they change nothing.
    parsed = parse(strictyaml.text_of(folder / name, root=folder).replace("\r\n", "\n"))
    for at, comment in parsed.comments:
        if at <= _DIRECTIVES and (escape := _ESCAPE.fullmatch(comment)) and escape[1] != "\\":
            raise UsageError(
                f"{name}:{at}: the directive escape={escape[1]} is not supported",
                hint="continue lines with a backslash",
            )
    items, image, variables = _substituted(parsed)
    resolved = {item.line for item in items if item.keyword == "FROM" and "$" not in item.text}
    requirements = Contents()
    for problem in parsed.problems:
        if problem.line not in resolved:
            requirements += skip(Line(where=f"{name}:{problem.line}", text="the line"), problem.message)
    build = Build(folder=folder, last_workdir="/", is_context="/" in name or foreign.exists(folder / ".git"))
    copied = _copied_stages(items, image, _ANY)
    # The packages of an environment that the image copies are packages of the image.
    environments = {
        stage: Build(folder=folder, last_workdir="/", is_context=build.is_context)
        for stage in _copied_stages(items, image, _ENVIRONMENTS) - image
    }
    named = {parts[-1].lower(): stage for stage, parts in _froms(items).items() if "as" in map(str.lower, parts[1:2])}
    stages = {name: environments[stage] for name, stage in named.items() if stage in environments}
    stages |= {str(stage): own for stage, own in environments.items()}
    for item in items:
        if item.keyword == "WORKDIR" and item.stage in image:
            build.last_workdir = posixpath.normpath(posixpath.join(build.last_workdir, item.text))
    for item, known in zip(items, variables, strict=True):
        line = Line(where=f"{name}:{item.line}", text=_shown(item))
        if item.keyword == "FROM" and item.stage in image and item.stage != min(image):
            continue  # based on a stage that is read
        if item.stage in environments and item.keyword != "ARG":
            requirements += _of_builder(_Step(item=item, line=line, build=environments[item.stage], variables=known))
        elif item.stage not in image and item.keyword != "ARG":
            requirements += skip(line, bases.OTHER_STAGE) if item.stage in copied else not_for(line, bases.OTHER_STAGE)
        else:
            read = _STEPS.get(item.keyword)
            step = _Step(item=item, line=line, build=build, variables=known, stages=stages)
            requirements += read(step) if read else skip(line, f"image definitions have no {item.keyword}")
    return bases.wheels_first(_startable(_last_of(requirements), build))


def _shown(item: Instruction) -> str:
    """Return an instruction as one line; the value of an ARG that may be a secret is left out."""
    text = " ".join(item.text.split())
    key, sign, value = text.partition("=")
    is_secret = item.keyword == "ARG" and sign and names.is_secret(key, value)
    return f"{item.keyword} {key if is_secret else text}"


# Docker expands no variables in these.
_RUN_LATER = ("RUN", "CMD", "ENTRYPOINT", "HEALTHCHECK", "SHELL")
# Directives are comments before everything else.
_DIRECTIVES = 3
_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S+)", re.IGNORECASE)
# `$NAME`, `${NAME}`, `${NAME-default}`, `${NAME:-default}`
_NAMED = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?::?-(?P<default>[^}$]*))?\}|(?P<plain>[A-Za-z_]\w*))", re.ASCII)


def _substituted(parsed: Parsed) -> tuple[list[Instruction], frozenset[int], list[Mapping[str, str]]]:
    """Return the instructions, the stages that the image is based on, and the variables of each instruction.

    ARG and ENV variables are expanded in all instructions but those that are run, where a shell may expand them: in the
    build, or in the container, whose user may set another value. A variable with the name of a secret is not expanded,
    because its value must not be shown.
    """
    # Of each stage, the variables of ENV before those of ARG: Docker prefers an ENV even to a later ARG.
    stages: list[ChainMap[str, str]] = []
    first = ChainMap[str, str]({}, {})  # before the first FROM: for FROM lines, and for an ARG of the same name
    parents: list[int | None] = []
    names_of: dict[str, int] = {}
    instructions: list[Instruction] = []
    variables: list[Mapping[str, str]] = []
    for written in parsed.instructions:
        item = written
        known = first if item.keyword == "FROM" or not stages else stages[-1]
        item = replace(  # the instruction as Docker runs it
            item,
            text=item.text if item.keyword in _RUN_LATER else _expanded(item.text, known),
            pairs=tuple((key, _expanded(value, known)) for key, value in item.pairs or _legacy(item)),
            fault="" if _legacy(item) else item.fault,
        )
        if item.keyword == "ENV" and item.fault:
            item = _with_defaults(item, written.text, known)
        if item.keyword == "FROM":
            image, *rest = item.text.split()
            parent = names_of.get(image.lower())
            parents.append(parent)
            stages.append(ChainMap({}, {}) if parent is None else ChainMap(*map(dict, stages[parent].maps)))
            if len(rest) == 2:  # noqa: PLR2004 - AS and a name
                names_of[rest[1].lower()] = len(parents) - 1
        elif item.keyword == "ARG":
            for word in words.split(item.text):
                key, sign, value = word.partition("=")
                # `ARG NAME` in a stage has the value from before the first FROM.
                plain = value.strip("'\"") if sign else first.get(key, "") if stages else ""
                # An ARG may have any name: CUDA_VERSION is refused only as a variable of the image.
                if plain and not names.is_secret(key, plain):
                    known.maps[1][key] = plain
        elif item.keyword == "ENV":
            known.update({key: value for key, value in item.pairs if names.variable(key, value) is None})
        instructions.append(item)
        variables.append(dict(known))
    chain, at = set[int](), parsed.last_stage if parents else None
    while at is not None and at >= 0:
        chain.add(at)
        at = parents[at]
    return instructions, frozenset(chain), variables


def _froms(items: Sequence[Instruction]) -> dict[int, list[str]]:
    """Return the words of each FROM by its stage: an image, and AS with a name."""
    return {item.stage: item.text.split() for item in items if item.keyword == "FROM"}


_ANY = re.compile("")
# Folders that a stage installs packages into: environments, Python's own folders, and the folder of the project.
_ENVIRONMENTS = re.compile(
    r"venv|virtualenv|-packages|conda|/envs?(?:/|$)|/\.local|/install|^/usr/local/?(?:lib.*)?$|^/(?:app|opt|workspace|code)/?$"
)


def _copied_stages(items: Sequence[Instruction], image: frozenset[int], paths: re.Pattern[str]) -> frozenset[int]:
    """Return the stages whose files the image has, and those they are made of.

    Args:
        items: the instructions.
        image: the stages that the image is based on.
        paths: of the files that count, which `COPY --from` copies or `RUN --mount` shows.
    """
    froms = _froms(items)
    named = {str(stage): stage for stage in froms}
    named |= {words[2].lower(): stage for stage, words in froms.items() if len(words) == 3}  # noqa: PLR2004 - AS and a name
    sources: dict[int, set[int]] = {stage: set() for stage in froms}
    for item in (item for item in items if item.stage in sources):
        is_meant = any(paths.search(word) for word in item.text.split()[:-1] or [""])
        names = re.findall(r"\bfrom=([^,\s]+)", " ".join(item.flags)) if is_meant else []
        names += item.text.split()[:1] if item.keyword == "FROM" else []
        sources[item.stage] |= {named[name.lower()] for name in names if name.lower() in named}
    found, new = set[int](), {source for stage in image if stage in sources for source in sources[stage]}
    while new:
        found |= new
        new = {source for stage in new for source in sources[stage]} - found
    return frozenset(found)


def _legacy(item: Instruction) -> tuple[tuple[str, str], ...]:
    """Return the pair of the legacy form `ENV name value`; empty for any other instruction."""
    key, *rest = item.text.split(maxsplit=1)
    return ((key, rest[0].strip()),) if item.keyword == "ENV" and rest and "=" not in key and item.fault else ()


def _with_defaults(item: Instruction, text: str, variables: Mapping[str, str]) -> Instruction:
    """Return an ENV whose values have defaults (`${PORT:-80}`) with its pairs; `text` is as it was written.

    The fault that remains is that of the pairs that cannot be read, which are its text.
    """
    read: list[tuple[str, str]] = []
    faults: dict[str, str] = {}
    # Unquoted values may get a blank with their default, so the words are split first.
    for word in words.split(text):
        key, _, value = word.partition("=")
        try:
            read += words.pairs(f"{key}={_expanded(value, variables)}", {})
        except words.UnreadableError as error:
            faults[word] = str(error)
    if not read:
        return item
    return replace(item, text=" ".join(faults), pairs=tuple(read), fault=next(iter(faults.values()), ""))


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        return variables.get(name, match.group() if match["default"] is None else match["default"])

    return _NAMED.sub(value, text)


def _last_of(requirements: Contents) -> Contents:
    """Keep only the last WORKDIR, USER, ENTRYPOINT and CMD: a later one overrides it."""
    settings: list[Setting] = []
    skipped: list[Skipped] = []
    for at, setting in enumerate(requirements.settings):
        later = next((x for x in requirements.settings[at + 1 :] if x.field == setting.field), None)
        if setting.field in ("workdir", "user", "entrypoint", "command") and later:
            skipped.append(Skipped(line=setting.line, why=f"{later.line.where} overrides it", harmless=True))
        else:
            settings.append(setting)
    return replace(requirements, settings=tuple(settings), skipped=(*requirements.skipped, *skipped))


def _startable(requirements: Contents, build: Build) -> Contents:
    """Leave out an ENTRYPOINT or CMD whose program only a part of the Dockerfile that is left out makes."""
    settings, skipped = [], []
    for setting in requirements.settings:
        program = (command(setting.value) or [])[:1] if setting.field in ("entrypoint", "command") else []
        if program and not _is_there(program[0], build):
            skipped.append(Skipped(line=setting.line, why=f"nothing that is taken over makes {program[0]}"))
        else:
            settings.append(setting)
    return replace(requirements, settings=tuple(settings), skipped=(*requirements.skipped, *skipped))


def _is_there(program: str, build: Build) -> bool:
    """Return whether a program may be in the image: it is of the system, found by PATH, or a copied file."""
    if "/" not in program:
        return True
    path = posixpath.normpath(posixpath.join(build.last_workdir, program))
    if path.startswith(("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/")):
        return True
    for source, target in build.copied:
        below = posixpath.relpath(path, target)
        if not below.startswith("..") and foreign.exists(build.folder / source / below):
            return True
    return False


def copied_files(path: Path) -> list[str]:
    """Return the files and folders of the build context that a Dockerfile copies, without patterns and variables."""
    found = []
    for item in parse(strictyaml.text_of(path, root=path.parent).replace("\r\n", "\n")).instructions:
        is_own = item.keyword in ("COPY", "ADD") and not item.heredocs and "--from" not in " ".join(item.flags)
        sources = (command(item.text) or item.text.split())[:-1] if is_own else []
        found += [posixpath.normpath(source.lstrip("/") or ".") for source in sources]
    return [source for source in found if not re.search(r"[*?\[$]|://", source)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """An instruction of the image."""

    item: Instruction
    line: Line
    build: Build
    variables: Mapping[str, str]  # of the environment
    stages: Mapping[str, Build] = field(default_factory=dict)  # those that are read, by name and number


def _env(step: _Step) -> Contents:
    requirements = Contents()
    for key, value in step.item.pairs:
        line = Line(where=step.line.where, text=f"ENV {key}={value}")
        requirements += variable(line, key, value) + _index_of(line, key, value)
        if key == "UV_PYTHON" and (python := python_version(value)):
            requirements += take(line, "python", python)
    return requirements + (skip(step.line, f"it cannot be read: {step.item.fault}") if step.item.fault else Contents())


def _index_of(line: Line, name: str, value: str) -> Contents:
    """Return the device of torch that a variable with an index selects: `ENV PIP_EXTRA_INDEX_URL=.../whl/cpu`."""
    found = index(line, value) if name in INDEX_VARIABLES else Contents()
    return replace(found, skipped=())  # the variable itself is in a list


def _arg(step: _Step) -> Contents:
    name, _, value = step.item.text.partition("=")
    found = _index_of(step.line, name, value.strip("'\""))
    return found if found.settings else skip(step.line, _OF_BUILD, harmless=True)


def _volumes(step: _Step) -> Contents:
    paths = command(step.item.text) or step.item.text.split()
    return _each(step.line, "volumes", [(path, copying.volume(path)) for path in paths])


def _command(step: _Step) -> Contents:
    words = command(step.item.text)
    if words is None:
        return skip(step.line, "it is in shell form; write it as a JSON list")
    key = "command" if step.item.keyword == "CMD" else "entrypoint"
    return checked(step.line, key, json.dumps(words), names.command(tuple(words)))


def _labels(step: _Step) -> Contents:
    return _each(step.line, "labels", [(f"{key}={value}", names.label(key, value)) for key, value in step.item.pairs])


def _workdir(step: _Step) -> Contents:
    step.build.workdir = step.build.target(step.item.text)
    return checked(step.line, "workdir", step.build.workdir, names.workdir(step.build.workdir))


def _shell(step: _Step) -> Contents:
    step.build.shell = is_shell(command(step.item.text) or ())
    return skip(step.line, _OF_TEMPLATES, harmless=True)


def _run(step: _Step) -> Contents:
    item = step.item
    if control := _CONTROL.search(item.script):
        return skip(step.line, f"it contains the control character U+{ord(control.group()):04X}")
    if (exec_form := command(item.text)) is not None:
        steps: tuple[Command, ...] = (of_words(exec_form),)
    elif step.build.shell:
        steps = commands(item.text, step.variables, item.heredocs)
    else:
        return skip(step.line, "SHELL sets another program than a shell")
    # `RUN --mount=type=bind,source=pyproject.toml,target=pyproject.toml` has a file for one instruction.
    bound = [pair for flag in item.flags for pair in _bound(flag, step.build)]
    step.build.copied += bound
    contents = contents_of(step.line, steps, step.build)
    del step.build.copied[len(step.build.copied) - len(bound) :]
    return contents


def _of_builder(step: _Step) -> Contents:
    """Return what an instruction of a stage installs into an environment that the image copies; the rest is lost."""
    build, item = step.build, step.item
    if item.keyword == "WORKDIR":
        build.workdir = build.target(item.text)
    elif item.keyword in ("COPY", "ADD"):
        _copied(step)
    elif item.keyword == "RUN":
        found = _run(step)
        settings = tuple(setting for setting in found.settings if setting.field in _OF_PACKAGES)
        if settings or found.packages or found.constraints:
            return replace(
                found, settings=settings, skipped=tuple(row for row in found.skipped if row.why != SHELL_ONLY)
            )
    return skip(step.line, bases.OTHER_STAGE)


_OF_PACKAGES = (
    "torch",
    "torchvision",
    "torchaudio",
    "cuda",
    "cpu",
    "conda",
    "source",
    "python",
    "requirements",
    *SOURCES,
)


def _bound(flag: str, build: Build) -> list[tuple[str, str]]:
    """Return the file of the build context that a flag mounts, and its path in the image."""
    name, _, value = flag.partition("=")
    rows = dict(part.partition("=")[::2] for part in value.split(","))
    target = rows.get("target") or rows.get("dst") or rows.get("destination")
    if name != "--mount" or rows.get("type", "bind") != "bind" or "from" in rows or not target:
        return []
    source = rows.get("source") or rows.get("src") or "."
    return [(posixpath.normpath(source.lstrip("/") or "."), build.target(target))]


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def _copied(step: _Step) -> Contents:
    item, line, build = step.item, step.line, step.build
    words = command(item.text) or item.text.split()
    if any(flag.startswith("--from") for flag in item.flags) or "://" in item.text:
        return _of_stage(step, words) or skip(line, "files from another stage, image or URL cannot be copied")
    if item.heredocs:
        return skip(line, "inline files cannot be copied; save it in the folder of the Dockerfile")
    requirements, target = Contents(), words[-1]
    sources = [file for source in words[:-1] for file in _fitting(source, build.folder)]
    if not sources:
        return skip(line, "no file of the folder fits the pattern")
    if len(words) == 2 and (settings := _pip_conf(step, words[0], target)) is not None:  # noqa: PLR2004 - source and target
        return settings
    for source in sources:
        own = posixpath.normpath(source.lstrip("/")) if source.strip("/") else "."
        is_folder = len(words) > 2 or target.endswith("/") or target in (".", "./")  # noqa: PLR2004 - sources and a target
        # COPY copies the contents of a folder, not the folder itself.
        into = is_folder and not foreign.is_folder(build.folder / own)
        to = build.to(f"{target.rstrip('/') or target}/" if into else target)
        build.copied.append((own, build.target(posixpath.join(target, posixpath.basename(own)) if into else target)))
        why = copying.check(own, to) or (
            None
            if foreign.exists(build.folder / own)
            else "the file is not in the folder of the Dockerfile; envkit init --context DIR reads another"
        )
        # `docker build -f docker/Dockerfile .` copies from the folder above.
        is_above = not build.is_context and foreign.is_file(build.folder.resolve().parent / own)
        note = "the folder above has such a file, too; envkit init --context DIR takes it from there"
        copied = Setting(field="copy", value=json.dumps([own, to]), line=line, note=note if is_above else "")
        own_line = line if len(sources) == 1 else replace(line, text=f"{item.keyword} {source} {target}")
        requirements += skip(own_line, why) if why else Contents(settings=(copied,))
    return requirements


def _of_stage(step: _Step, words: Sequence[str]) -> Contents | None:
    """Return the project's files that another stage copied and this one takes from it; None if there are none."""
    named = next((flag.partition("=")[2].lower() for flag in step.item.flags if flag.startswith("--from=")), "")
    stage = step.stages.get(named)
    if stage is None or len(words) != 2:  # noqa: PLR2004 - source and target
        return None
    source, target = posixpath.normpath(words[0]), words[1]
    settings = []
    for file, place in stage.copied:
        below = posixpath.relpath(place, source)
        # What the stage copied above this folder is more than what is taken from it.
        if below.startswith("..") or not foreign.exists(step.build.folder / file):
            continue
        to = step.build.to(target if below == "." else posixpath.join(target, below))
        if copying.check(file, to) is None:
            settings.append(Setting(field="copy", value=json.dumps([file, to]), line=step.line, note=_OF_STAGE))
            step.build.copied.append((file, step.build.target(to)))
    return Contents(settings=tuple(settings)) if settings else None


_OF_STAGE = "the project's own files are copied; what else the stage has there is left out"
# Where pip reads its settings from.
_PIP_CONF = re.compile(
    r"/etc/(?:xdg/pip/)?pip\.conf|(?:/root|/home/[^/]+|~|\$\{?HOME\}?)/\.(?:config/pip|pip)/pip\.conf"
)


def _pip_conf(step: _Step, source: str, target: str) -> Contents | None:
    """Return the settings of a file that becomes pip's configuration; None for every other copy."""
    path = posixpath.join(target, posixpath.basename(source)) if target.endswith("/") else target
    file = step.build.folder / source.lstrip("/")
    if not _PIP_CONF.fullmatch(path) or not foreign.is_file(file):
        return None
    try:
        settings = pip_settings(strictyaml.text_of(file, root=step.build.folder))
    except configparser.Error:
        return skip(step.line, f"{source} is not a configuration of pip")
    lines = {key: Line(where=step.line.where, text=f"{source}: {key} = {value}") for key, value in settings.items()}
    return sum((configured(lines[key], key, value) for key, value in settings.items()), start=Contents())


def _fitting(source: str, folder: Path) -> list[str]:
    """Return the files of a folder that fit a pattern, as paths in it; a path without wildcards as it is."""
    pattern = posixpath.normpath(source.lstrip("/") or ".")
    if not re.search(r"[*?\[]", pattern) or pattern.startswith("..") or "**" in pattern:
        return [source]
    return [path.relative_to(folder).as_posix() for path in foreign.fitting(folder, pattern)]


def _each(line: Line, key: str, values: list[tuple[str, str | None]]) -> Contents:
    requirements = Contents()
    for value, why in values:
        # Only this part of the line is lost.
        own = Line(where=line.where, text=f"{line.text.partition(' ')[0]} {value}") if why else line
        requirements += checked(own, key, value, why)
    return requirements


_STEPS: dict[str, Callable[[_Step], Contents]] = {
    "FROM": lambda step: bases.read(step.line, step.item.text.split()[0]),
    "RUN": _run,
    "ENV": _env,
    "WORKDIR": _workdir,
    "COPY": _copied,
    "ADD": _copied,
    "EXPOSE": lambda step: _each(step.line, "ports", [(port, names.port(port)) for port in step.item.text.split()]),
    "VOLUME": _volumes,
    "USER": lambda step: checked(step.line, "user", step.item.text, names.user(step.item.text)),
    "CMD": _command,
    "ENTRYPOINT": _command,
    "LABEL": _labels,
    "SHELL": _shell,
    "ARG": _arg,
    "STOPSIGNAL": lambda step: skip(step.line, _OF_TEMPLATES, harmless=True),
}
