"""What cog.yaml and a Dockerfile ask for: base image, packages, files and settings; never their shell commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.plan import copying, names
from envkit.plan.requirements import FILE, Asked, Left, Line, Sorted, read, sort
from envkit.project.conda_files import conda, of_channels, variable, with_source
from envkit.render.dockerfile import Instruction, command, parse

_CUDA_IMAGE = re.compile(
    r"(?:[^/\s]+/)*nvidia/cuda:(?P<cuda>\d+\.\d+)(?:\.\d+)?(?:-cudnn\d*)?-(?P<flavor>base|runtime|devel)"
    r"-(?P<os>[a-z]+[0-9.]+)(?:@\S+)?"
)
_TORCH_IMAGE = re.compile(
    r"(?:[^/\s]+/)*pytorch/pytorch:(?P<torch>[0-9.]+)-cuda(?P<cuda>\d+\.\d+)-cudnn\d+-(?P<flavor>runtime|devel)(?:@\S+)?"
)
_PYTHON_IMAGE = re.compile(r"(?:[^/\s]+/)*python:(?P<python>3\.\d+)(?:\.\d+)?(?:-\S+)?(?:@\S+)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_SHELL_ONLY = "an image definition has no shell commands"
_VALUED = frozenset(
    ["-c", "--constraint", "--target", "-t", "--prefix", "--root", "--timeout", "--retries", "--trusted-host"]
)
_FILE = ("-r", "--requirement")
_INDEX = ("--index-url", "-i", "--extra-index-url", "--find-links", "-f")


def cog(name: str, folder: Path) -> Sorted:
    """Read a cog.yaml.

    Raises:
        UsageError: the file is not one.
    """
    tree, places = strictyaml.read_with_places(strictyaml.text_of(folder / name), name)
    build: Any = tree.get("build") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(build, dict):
        raise UsageError(f"{name}: there is no key `build`", hint="envkit init --from another file")

    def line(text: str, *keys: str | int) -> Line:
        return Line(where=f"{name}:{places.get(keys, (1, 1))[0]}", text=text)

    found = Sorted()
    for key, field in (("python_version", "python"), ("cuda", "cuda"), ("cudnn", "cudnn")):
        if isinstance(build.get(key), str):
            found += _asked(line(f"{key}: {build[key]}", "build", key), field, str(build[key]))
    if build.get("gpu") is not True:
        has = "gpu" in build
        shown = "gpu: false" if has else "build without gpu: true"
        found += _asked(line(shown, "build", *(["gpu"] if has else [])), "cpu", "true")
    packages = _texts(build.get("python_packages"))
    found += sort(line(one, "build", "python_packages", at) for at, one in enumerate(packages))
    if isinstance(build.get("python_requirements"), str):
        found += requirements_file(
            line("python_requirements", "build", "python_requirements"), build["python_requirements"], folder
        )
    for at, one in enumerate(_texts(build.get("system_packages"))):
        found += _checked(line(one, "build", "system_packages", at), "apt", one, names.deb_package(one))
    for key in ("run", "pre_install"):
        steps = build.get(key)
        for at, step in enumerate(steps if isinstance(steps, list) else []):
            shown = step if isinstance(step, str) else str(step.get("command", step)) if isinstance(step, dict) else key
            found += _left(line(shown, "build", key, at), _SHELL_ONLY)
    for key in tree.keys() - {"build", "image"}:
        found += _left(line(f"{key}: {tree[key]}", key), "it belongs to cog's server, which the image does not have")
    where = line("the folder of cog.yaml, which cog copies to /src")
    return found + _asked(where, "copy", json.dumps([".", "/src"])) + _asked(where, "workdir", "/src")


def requirements_file(line: Line, name: str, folder: Path) -> Sorted:
    """Read a requirements file that another file names."""
    try:
        return Sorted(asked=(Asked(field=FILE, value=name, line=line),)) + sort(read(name, folder))
    except UsageError as error:
        return _left(line, error.message)


def dockerfile(name: str, folder: Path) -> Sorted:
    """Read a Dockerfile: its last stage decides, and what earlier stages install is listed.

    Raises:
        UsageError: the file cannot be read.
    """
    parsed = parse(strictyaml.text_of(folder / name))
    found = Sorted()
    for problem in parsed.problems:
        found += _left(Line(where=f"{name}:{problem.line}", text="the line"), problem.message)
    copied: dict[str, str] = {}
    for item in parsed.instructions:
        line = Line(where=f"{name}:{item.line}", text=f"{item.keyword} {' '.join(item.text.split())}")
        if item.stage != parsed.last_stage and item.keyword != "ARG":
            found += _left(line, "it is in a stage that is not the image")
        else:
            take = _STEPS.get(item.keyword)
            step = _Step(item=item, line=line, folder=folder, copied=copied)
            found += take(step) if take else _left(line, "an image definition has no such instruction")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """An instruction of the last stage."""

    item: Instruction
    line: Line
    folder: Path
    copied: dict[str, str]  # files that earlier instructions copied, by name


def _env(step: _Step) -> Sorted:
    found = Sorted()
    for key, value in step.item.pairs:
        found += variable(Line(where=step.line.where, text=f"ENV {key}={value}"), key, value)
    return found + (_left(step.line, f"it cannot be read: {step.item.fault}") if step.item.fault else Sorted())


def _volumes(step: _Step) -> Sorted:
    paths = command(step.item.text) or step.item.text.split()
    return _each(step.line, "volumes", [(one, copying.volume(one)) for one in paths])


def _command(step: _Step) -> Sorted:
    words = command(step.item.text)
    if words is None:
        return _left(step.line, "it is in shell form; write it as a JSON list")
    key = "command" if step.item.keyword == "CMD" else "entrypoint"
    return _checked(step.line, key, json.dumps(words), names.command(tuple(words)))


def _labels(step: _Step) -> Sorted:
    return _each(step.line, "labels", [(f"{key}={value}", names.label(key, value)) for key, value in step.item.pairs])


def _base(line: Line, image: str) -> Sorted:
    for pattern in (_CUDA_IMAGE, _TORCH_IMAGE, _PYTHON_IMAGE):
        parts = pattern.fullmatch(image)
        if parts is None:
            continue
        found = Sorted()
        for key, value in parts.groupdict().items():
            if key != "flavor" or value == "devel":
                found += _asked(line, key, f"=={value}" if key == "torch" else value)
        return found
    return _left(
        line, "only images of nvidia/cuda, pytorch/pytorch and python say what they have; envkit chooses the base"
    )


def _run(step: _Step) -> Sorted:
    found = Sorted()
    for part in re.split(r"&&|;|\|\|?|\n", step.item.script):
        text = " ".join(part.split())
        if not text or re.match(
            r"set -|rm -|apt-get (?:update|clean|autoremove)|conda clean|(?:\S*pip3?|\S*pip) cache", text
        ):
            continue
        try:
            words = list(dropwhile(_ASSIGNMENT.fullmatch, shlex.split(text)))
        except ValueError:
            words = []
        own = Line(where=step.line.where, text=text)
        program = " ".join(words[:2])
        if (at := _pip_words(words)) is not None:
            found += _pip(own, words[at:], step)
        elif re.match(r"(?:apt-get|apt) ", text) and "install" in words:
            rest = [word for word in words[words.index("install") + 1 :] if not word.startswith("-")]
            found += _each(
                own, "apt", [(one, names.deb_package(one)) for one in rest if one not in _PYTHONS], plain=True
            )
        elif program in ("conda install", "mamba install"):
            found += _conda(own, words[2:])
        else:
            found += _left(own, _SHELL_ONLY)
    return found


# envkit brings its own Python.
_PYTHONS = frozenset(
    ["python3", "python3-pip", "python3-venv", "python3-dev", "python-is-python3", "python3-setuptools"]
)


def _pip_words(words: list[str]) -> int | None:
    """Where the arguments of `pip install`, `python -m pip install` or `uv pip install` begin; None for others."""
    for at, word in enumerate(words[:5]):
        if word == "install" and at and re.fullmatch(r"(?:\S*/)?pip3?(?:\.\d+)?", words[at - 1]):
            return at + 1
    return None


def _pip(line: Line, words: list[str], step: _Step) -> Sorted:
    found, lines, rest = Sorted(), [], iter(words)
    for word in rest:
        name, sign, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in _FILE:
            file = value if sign else next(rest, "")
            own = step.copied.get(file.removeprefix("./").rpartition("/")[2], file.removeprefix("./"))
            found += requirements_file(Line(where=line.where, text=f"-r {file}"), own, step.folder)
        elif name in _INDEX:
            lines.append(Line(where=line.where, text=f"{name} {value if sign else next(rest, '')}"))
        elif name in ("-e", "--editable"):
            lines.append(Line(where=line.where, text=f"-e {next(rest, '')}"))
        elif name in _VALUED:
            value = value if sign else next(rest, "")
            found += _left(Line(where=line.where, text=f"{name} {value}"), "the option is not supported")
        elif not word.startswith("-") and word not in ("pip", "setuptools", "wheel"):
            lines.append(Line(where=line.where, text=word))
    return found + sort(lines)


def _conda(line: Line, words: list[str]) -> Sorted:
    found, channels, rest = Sorted(), set(), iter(words)
    for word in rest:
        if word in ("-c", "--channel", "-n", "--name", "-p", "--prefix"):
            value = next(rest, "")
            if word in ("-c", "--channel"):
                channels.add(value)
                found += of_channels([(value, Line(where=line.where, text=f"-c {value}"))])
        elif not word.startswith("-"):
            found += conda(Line(where=line.where, text=word), word)
    return with_source(found, channels)


def _copied(step: _Step) -> Sorted:
    item, line, folder = step.item, step.line, step.folder
    words = command(item.text) or item.text.split()
    if any(flag.startswith("--from") for flag in item.flags) or "://" in item.text:
        return _left(line, "files of another stage, image or address cannot be copied")
    found, target = Sorted(), words[-1]
    for source in words[:-1]:
        own = source.removeprefix("./").rstrip("/") or "."
        step.copied[own.rpartition("/")[2]] = own
        is_folder = len(words) > 2 or target.endswith("/") or target in (".", "./")  # noqa: PLR2004 - sources and a target
        to = f"{target.rstrip('/') or target}/" if is_folder and not (folder / own).is_dir() else target
        why = copying.check(own, to) or (None if (folder / own).exists() else "the file is not beside the Dockerfile")
        found += _checked(line, "copy", json.dumps([own, to]), why)
    return found


def _each(line: Line, key: str, values: list[tuple[str, str | None]], *, plain: bool = False) -> Sorted:
    found = Sorted()
    for value, why in values:
        found += _checked(Line(where=line.where, text=value) if plain else line, key, value, why)
    return found


def _checked(line: Line, key: str, value: str, why: str | None) -> Sorted:
    return _left(line, why) if why else _asked(line, key, value)


def _asked(line: Line, key: str, value: str) -> Sorted:
    return Sorted(asked=(Asked(field=key, value=value, line=line),))


def _left(line: Line, why: str, *, harmless: bool = False) -> Sorted:
    return Sorted(left=(Left(line=line, why=why, harmless=harmless),))


def _texts(value: object) -> Iterator[str]:
    yield from (one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


_STEPS: dict[str, Callable[[_Step], Sorted]] = {
    "FROM": lambda step: _base(step.line, step.item.text.split()[0]),
    "RUN": _run,
    "ENV": _env,
    "WORKDIR": lambda step: _checked(step.line, "workdir", step.item.text, names.workdir(step.item.text)),
    "COPY": _copied,
    "ADD": _copied,
    "EXPOSE": lambda step: _each(step.line, "ports", [(one, names.port(one)) for one in step.item.text.split()]),
    "VOLUME": _volumes,
    "USER": lambda step: _checked(step.line, "user", step.item.text, names.user(step.item.text)),
    "CMD": _command,
    "ENTRYPOINT": _command,
    "LABEL": _labels,
} | dict.fromkeys(
    ("ARG", "SHELL", "STOPSIGNAL"), lambda step: _left(step.line, "envkit's templates decide this", harmless=True)
)
