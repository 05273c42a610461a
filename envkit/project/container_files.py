"""Read cog.yaml and Dockerfiles: base image, packages, files and settings, but no other shell commands."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.plan import copying, names
from envkit.plan.requirements import Contents, Line, Setting, Skipped, included, skip, sort, take
from envkit.project.conda_files import conda, of_channels, variable, with_source
from envkit.project.toml_files import texts
from envkit.render import words
from envkit.render.dockerfile import Instruction, Parsed, command, parse

# `nvidia/cuda:12.6.3-cudnn-devel-ubuntu22.04`
_CUDA_IMAGE = re.compile(
    r"(?:[^/\s]+/)*nvidia/cuda:(?P<cuda>\d+\.\d+)(?:\.\d+)?(?:-cudnn\d*)?-(?P<flavor>base|runtime|devel)"
    r"-(?P<os>[a-z]+[0-9.]+)(?:@\S+)?"
)
# `pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime`
_TORCH_IMAGE = re.compile(
    r"(?:[^/\s]+/)*pytorch/pytorch:(?P<torch>[0-9.]+)-cuda(?P<cuda>\d+\.\d+)-cudnn\d+-(?P<flavor>runtime|devel)(?:@\S+)?"
)
# `python:3.12.4-slim-bookworm`
_PYTHON_IMAGE = re.compile(r"(?:[^/\s]+/)*python:(?P<python>3\.\d+)(?:\.\d+)?(?:-\S+)?(?:@\S+)?")
# `DEBIAN_FRONTEND=noninteractive` in front of a command.
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_SHELL_ONLY = "image definitions cannot contain shell commands"
# Options of pip install whose value would otherwise look like a package.
_VALUED = frozenset(["--target", "-t", "--prefix", "--root", "--timeout", "--retries", "--trusted-host"])
_FILE, _CONSTRAINT = ("-r", "--requirement"), ("-c", "--constraint")
_INDEX = ("--index-url", "-i", "--extra-index-url", "--find-links", "-f")


def cog(name: str, folder: Path) -> Contents:
    """Read a cog.yaml.

    Raises:
        UsageError: the file has no `build` section.
    """
    tree, places = strictyaml.read_with_places(strictyaml.text_of(folder / name), name)
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
        requirements += _checked(
            line(package, "build", "system_packages", at), "apt", package, names.deb_package(package)
        )
    for key in ("run", "pre_install"):
        steps = build.get(key)
        for at, step in enumerate(steps if isinstance(steps, list) else []):
            shown = step if isinstance(step, str) else str(step.get("command", step)) if isinstance(step, dict) else key
            requirements += skip(line(shown, "build", key, at), _SHELL_ONLY)
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
    parsed = parse(strictyaml.text_of(folder / name).replace("\r\n", "\n"))
    items, image = _substituted(parsed)
    resolved = {item.line for item in items if item.keyword == "FROM" and "$" not in item.text}
    requirements = Contents()
    for problem in parsed.problems:
        if problem.line not in resolved:
            requirements += skip(Line(where=f"{name}:{problem.line}", text="the line"), problem.message)
    build = _Build(folder=folder, last_workdir="/")
    for item in items:
        if item.keyword == "WORKDIR" and item.stage in image:
            build.last_workdir = posixpath.normpath(posixpath.join(build.last_workdir, item.text))
    for item in items:
        line = Line(where=f"{name}:{item.line}", text=f"{item.keyword} {' '.join(item.text.split())}")
        if item.keyword == "FROM" and item.stage in image and item.stage != min(image):
            continue  # based on a stage that is read
        if item.stage not in image and item.keyword != "ARG":
            requirements += skip(line, "it is in a stage that the image is not based on")
        else:
            read = _STEPS.get(item.keyword)
            step = _Step(item=item, line=line, build=build)
            requirements += read(step) if read else skip(line, f"image definitions have no {item.keyword}")
    return _wheels_first(_last_of(requirements))


# `$NAME`, `${NAME}`, `${NAME-default}`, `${NAME:-default}`
_NAMED = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?::?-(?P<default>[^}$]*))?\}|(?P<plain>[A-Za-z_]\w*))", re.ASCII)


def _substituted(parsed: Parsed) -> tuple[list[Instruction], frozenset[int]]:
    """Return the instructions with ARG and ENV variables expanded, and the stages that the image is based on.

    A variable with the name of a secret is not expanded, because its value must not be shown.
    """
    # Of each stage, the variables of ENV before those of ARG: Docker prefers an ENV even to a later ARG.
    stages: list[ChainMap[str, str]] = []
    first = ChainMap[str, str]({}, {})  # before the first FROM: for FROM lines, and for an ARG of the same name
    parents: list[int | None] = []
    names_of: dict[str, int] = {}
    instructions = []
    for item in parsed.instructions:
        known = first if item.keyword == "FROM" or not stages else stages[-1]
        item = replace(  # noqa: PLW2901 - the instruction as Docker runs it
            item,
            text=_expanded(item.text, known),
            heredocs=tuple(_expanded(heredoc, known) for heredoc in item.heredocs),
            pairs=tuple((key, _expanded(value, known)) for key, value in item.pairs or _legacy(item)),
            fault="" if _legacy(item) else item.fault,
        )
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
                if plain and names.variable(key, plain) is None:
                    known.maps[1][key] = plain
        elif item.keyword == "ENV":
            known.update({key: value for key, value in item.pairs if names.variable(key, value) is None})
        instructions.append(item)
    chain, at = set[int](), parsed.last_stage if parents else None
    while at is not None and at >= 0:
        chain.add(at)
        at = parents[at]
    return instructions, frozenset(chain)


def _legacy(item: Instruction) -> tuple[tuple[str, str], ...]:
    """Return the pair of the legacy form `ENV name value`; empty for any other instruction."""
    key, *rest = item.text.split(maxsplit=1)
    return ((key, rest[0].strip()),) if item.keyword == "ENV" and rest and "=" not in key and item.fault else ()


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


def _wheels_first(requirements: Contents) -> Contents:
    """Drop the CUDA version of the base image if torch's index or version has another: wheels bundle their own CUDA."""
    devices = [setting for setting in requirements.settings if setting.field in ("cuda", "cpu")]
    wheels = [device for device in devices if not of_base(device.line)]
    bases = [device for device in devices if of_base(device.line) and wheels and device.value != wheels[0].value]
    skipped = tuple(
        Skipped(line=base.line, why=f"{wheels[0].line.where} selects another device for torch: {wheels[0].line.text}")
        for base in bases
    )
    return replace(
        requirements,
        settings=tuple(setting for setting in requirements.settings if setting not in bases),
        skipped=(*requirements.skipped, *skipped),
    )


def of_base(line: Line) -> bool:
    """Return whether a line is that of a base image."""
    return line.text.startswith("FROM ")


def bases_with_cuda(contents: Contents) -> tuple[tuple[Line, str], ...]:
    """Return the lines of a Dockerfile whose base image has CUDA, with its version, even if torch has another."""
    lines = dict.fromkeys((*(setting.line for setting in contents.settings), *(row.line for row in contents.skipped)))
    images = {line: line.text.split()[1] for line in lines if of_base(line)}
    parts = {line: _CUDA_IMAGE.fullmatch(image) or _TORCH_IMAGE.fullmatch(image) for line, image in images.items()}
    return tuple((line, part["cuda"]) for line, part in parts.items() if part)


@dataclass(slots=True)
class _Build:
    """The working folder and the copied files of the image while its instructions are read."""

    folder: Path
    last_workdir: str  # the image's final working folder
    workdir: str = "/"
    copied: list[tuple[str, str]] = field(default_factory=list)  # source below `folder`, absolute target

    def target(self, path: str) -> str:
        """Return an absolute path in the image."""
        return posixpath.normpath(posixpath.join(self.workdir, path))

    def source(self, path: str) -> str:
        """Return the project's file that was copied to a path in the image; the path itself if there is none."""
        absolute = self.target(path)
        # A later COPY overwrites an earlier one.
        for source, target in reversed(self.copied):
            below = posixpath.relpath(absolute, target)
            file = posixpath.normpath(posixpath.join(source, below))
            if not below.startswith("..") and (self.folder / file).exists():
                return file
        return path.removeprefix("./")

    def to(self, target: str) -> str:
        """Return a target for the definition, whose only working folder is the last one of the Dockerfile."""
        whole = self.target(target)
        return (
            target
            if self.workdir == self.last_workdir or target.startswith("/")
            else whole + target[len(target.rstrip("/")) :]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """An instruction of the image."""

    item: Instruction
    line: Line
    build: _Build


def _env(step: _Step) -> Contents:
    requirements = Contents()
    for key, value in step.item.pairs:
        requirements += variable(Line(where=step.line.where, text=f"ENV {key}={value}"), key, value)
    return requirements + (skip(step.line, f"it cannot be read: {step.item.fault}") if step.item.fault else Contents())


def _volumes(step: _Step) -> Contents:
    paths = command(step.item.text) or step.item.text.split()
    return _each(step.line, "volumes", [(path, copying.volume(path)) for path in paths])


def _command(step: _Step) -> Contents:
    words = command(step.item.text)
    if words is None:
        return skip(step.line, "it is in shell form; write it as a JSON list")
    key = "command" if step.item.keyword == "CMD" else "entrypoint"
    return _checked(step.line, key, json.dumps(words), names.command(tuple(words)))


def _labels(step: _Step) -> Contents:
    return _each(step.line, "labels", [(f"{key}={value}", names.label(key, value)) for key, value in step.item.pairs])


def _base(line: Line, image: str) -> Contents:
    for pattern in (_CUDA_IMAGE, _TORCH_IMAGE, _PYTHON_IMAGE):
        parts = pattern.fullmatch(image)
        if parts is None:
            continue
        requirements = Contents()
        for key, value in parts.groupdict().items():
            if key != "flavor" or value == "devel":
                requirements += take(line, key, f"=={value}" if key == "torch" else value)
        return requirements
    return skip(
        line, "only tags of nvidia/cuda, pytorch/pytorch and python can be interpreted; envkit chooses the base"
    )


def _workdir(step: _Step) -> Contents:
    step.build.workdir = step.build.target(step.item.text)
    value = step.build.workdir if not step.item.text.startswith("/") else step.item.text
    return _checked(step.line, "workdir", value, names.workdir(value))


def _run(step: _Step) -> Contents:
    requirements = Contents()
    for part in re.split(r"&&|;|\|\|?|\n", step.item.script):
        text = " ".join(part.split())
        if not text or _NOTHING.match(text):
            continue
        try:
            # A separator inside quotes leaves a part with an open quote, which shlex refuses.
            words = list(dropwhile(_ASSIGNMENT.fullmatch, shlex.split(text)))
        except ValueError:
            words = []
        own = Line(where=step.line.where, text=text)
        program = " ".join(words[:2])
        if (at := _pip_words(words)) is not None:
            requirements += _pip(own, words[at:], step)
        elif re.match(r"(?:apt-get|apt) ", text) and "install" in words:
            requirements += _apt(own, words[words.index("install") + 1 :])
        elif program in ("conda install", "mamba install", "conda create", "mamba create"):
            requirements += _conda(own, words[2:])
        else:
            requirements += skip(own, _SHELL_ONLY)
    return requirements


# Commands that leave nothing in an image, and the start of a heredoc.
_NOTHING = re.compile(
    r"set -|rm -|(?:apt-get|apt) (?:-\S+ )*(?:update|clean|autoremove|autoclean)|conda clean|\S*pip3? cache"
    r"|<<-?[\"']?\w+[\"']?$"
)
# Not needed: envkit's images have their own Python.
_PYTHONS = frozenset(
    [
        "python3",
        "python3-pip",
        "python3-venv",
        "python3-dev",
        "python-is-python3",
        "python3-setuptools",
        "python3-wheel",
    ]
)
_PYTHON = re.compile(r"python(3\.\d+)(?:-(?:dev|venv|distutils|full|minimal|lib2to3))?")


def _apt(line: Line, words: list[str]) -> Contents:
    requirements, rest = Contents(), iter(words)
    for word in rest:
        own = Line(where=line.where, text=word)
        # These take a value: `-t bookworm-backports`.
        if word in ("-t", "-o", "-c", "--target-release", "--option", "--config-file"):
            next(rest, "")
        elif python := _PYTHON.fullmatch(word):
            requirements += take(own, "python", python[1])
        elif not word.startswith("-") and word not in _PYTHONS:
            requirements += _checked(own, "apt", word, names.deb_package(word))
    return requirements


def _pip_words(words: list[str]) -> int | None:
    """Return the index of the first argument of (`python -m`, `uv`) `pip install`; None for any other command."""
    for at, word in enumerate(words[:5]):
        if word == "install" and at and re.fullmatch(r"(?:\S*/)?pip3?(?:\.\d+)?", words[at - 1]):
            return at + 1
    return None


def _pip(line: Line, words: list[str], step: _Step) -> Contents:
    requirements, lines, rest = Contents(), [], iter(words)
    for word in rest:
        name, sign, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in (*_FILE, *_CONSTRAINT):
            file, is_constraint = value if sign else next(rest, ""), name in _CONSTRAINT
            own = Line(where=line.where, text=f"{'-c' if is_constraint else '-r'} {file}")
            requirements += included(own, step.build.source(file), step.build.folder, constraint=is_constraint)
        elif name in _INDEX:
            lines.append(Line(where=line.where, text=f"{name} {value if sign else next(rest, '')}"))
        elif name in ("-e", "--editable"):
            lines.append(Line(where=line.where, text=f"-e {next(rest, '')}"))
        elif name in _VALUED:
            value = value if sign else next(rest, "")
            requirements += skip(Line(where=line.where, text=f"{name} {value}"), "the option is not supported")
        elif not word.startswith("-") and word not in ("pip", "setuptools", "wheel"):
            lines.append(Line(where=line.where, text=word))
    return requirements + sort(lines)


def _conda(line: Line, words: list[str]) -> Contents:
    requirements, channels, rest = Contents(), set(), iter(words)
    for word in rest:
        if word in ("-c", "--channel", "-n", "--name", "-p", "--prefix"):
            value = next(rest, "")
            if word in ("-c", "--channel"):
                channels.add(value)
                requirements += of_channels([(value, Line(where=line.where, text=f"-c {value}"))])
        elif not word.startswith("-"):
            requirements += conda(Line(where=line.where, text=word), word)
    return with_source(requirements, channels)


def _copied(step: _Step) -> Contents:
    item, line, build = step.item, step.line, step.build
    words = command(item.text) or item.text.split()
    if any(flag.startswith("--from") for flag in item.flags) or "://" in item.text:
        return skip(line, "files from another stage, image or URL cannot be copied")
    if item.heredocs:
        return skip(line, "inline files cannot be copied; save it in the folder of the Dockerfile")
    requirements, target = Contents(), words[-1]
    for source in words[:-1]:
        own = posixpath.normpath(source.lstrip("/")) if source.strip("/") else "."
        is_folder = len(words) > 2 or target.endswith("/") or target in (".", "./")  # noqa: PLR2004 - sources and a target
        # COPY copies the contents of a folder, not the folder itself.
        into = is_folder and not (build.folder / own).is_dir()
        to = build.to(f"{target.rstrip('/') or target}/" if into else target)
        build.copied.append((own, build.target(posixpath.join(target, posixpath.basename(own)) if into else target)))
        why = copying.check(own, to) or (
            None if (build.folder / own).exists() else "the file is not in the folder of the Dockerfile"
        )
        requirements += _checked(line, "copy", json.dumps([own, to]), why)
    return requirements


def _each(line: Line, key: str, values: list[tuple[str, str | None]]) -> Contents:
    requirements = Contents()
    for value, why in values:
        requirements += _checked(line, key, value, why)
    return requirements


def _checked(line: Line, key: str, value: str, why: str | None) -> Contents:
    return skip(line, why) if why else take(line, key, value)


_STEPS: dict[str, Callable[[_Step], Contents]] = {
    "FROM": lambda step: _base(step.line, step.item.text.split()[0]),
    "RUN": _run,
    "ENV": _env,
    "WORKDIR": _workdir,
    "COPY": _copied,
    "ADD": _copied,
    "EXPOSE": lambda step: _each(step.line, "ports", [(port, names.port(port)) for port in step.item.text.split()]),
    "VOLUME": _volumes,
    "USER": lambda step: _checked(step.line, "user", step.item.text, names.user(step.item.text)),
    "CMD": _command,
    "ENTRYPOINT": _command,
    "LABEL": _labels,
} | dict.fromkeys(
    ("ARG", "SHELL", "STOPSIGNAL"), lambda step: skip(step.line, "envkit's templates set it", harmless=True)
)
