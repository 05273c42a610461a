"""Read the commands that build an image: what they install, and in which folder of the image they run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from envkit.ground import foreign
from envkit.ground.errors import UsageError
from envkit.plan import names
from envkit.plan.requirements import Contents, Line, included, index, not_for, skip, sort, take
from envkit.project import bases
from envkit.project.choice import Choice
from envkit.project.conda_files import conda, environment, of_channels, with_source
from envkit.project.installers import Installation, Item, UndecidedError, installation, unwrapped
from envkit.project.older_files import setup_py
from envkit.project.shell import Command
from envkit.project.toml_files import NOT_INSTALLED, pyproject


@dataclass(slots=True)
class Build:
    """The working folder and the copied files of the image while its instructions are read."""

    folder: Path
    last_workdir: str  # the image's final working folder
    is_context: bool = True  # the user named the folder, or it is that of the repository
    workdir: str = "/"
    shell: bool = True  # whether a shell runs the instructions RUN
    copied: list[tuple[str, str]] = field(default_factory=list)  # source below `folder`, absolute target

    def target(self, path: str) -> str:
        """Return an absolute path in the image."""
        return posixpath.normpath(posixpath.join(self.workdir, path))

    def source(self, path: str, folder: str) -> str:
        """Return the project's file that was copied to a path below a folder of the image, otherwise the path."""
        absolute = posixpath.normpath(posixpath.join(folder, path))
        # A later COPY overwrites an earlier one.
        for source, target in reversed(self.copied):
            below = posixpath.relpath(absolute, target)
            file = posixpath.normpath(posixpath.join(source, below))
            if not below.startswith("..") and foreign.exists(self.folder / file):
                return file
        return path.removeprefix("./") if folder == self.workdir else absolute

    def to(self, target: str) -> str:
        """Return a target for the definition, whose only working folder is the last one of the Dockerfile."""
        whole = self.target(target)
        return (
            target
            if self.workdir == self.last_workdir or target.startswith("/")
            else whole + target[len(target.rstrip("/")) :]
        )


_AS_FILE = "a shell reads it as a file; quote the requirement"
SHELL_ONLY = "image definitions cannot contain shell commands"
NOT_RUN = "it does not run with the ARG and ENV values of the file"


def contents_of(line: Line, steps: Sequence[Command], build: Build) -> Contents:
    """Return the contents of the commands of one instruction, which may change the working folder for each other."""
    requirements = Contents()
    # `cd` has an effect up to the end of the instruction; None = the folder is not known.
    folder: str | None = build.workdir
    for part in steps:
        own = Line(where=line.where, text=part.text)
        values = tuple(word.value or "" for word in unwrapped(part.words))
        if part.never:
            requirements += not_for(own, NOT_RUN) if values and not _NOTHING.match(" ".join(values)) else Contents()
            continue
        if values[:1] in (("cd",), ("pushd",), ("popd",)):
            is_known = folder is not None and not part.doubt and not part.nested and len(values) == 2 and values[1]  # noqa: PLR2004
            folder = posixpath.normpath(posixpath.join(folder or "", values[1])) if is_known else None
        if _NOTHING.match(" ".join(values)) or (not values and not part.doubt and part.document is None):
            continue
        try:
            found = installation(part)
        except UndecidedError as error:
            requirements += skip(own, str(error))
            continue
        if found is None and not part.doubt and (setting := _PIP_CONFIG.fullmatch(" ".join(values))):
            requirements += configured(own, setting["key"], setting["value"])
        elif found is None and not part.doubt and (python := _made_python(values)):
            requirements += take(own, "python", python)
        elif found is None:
            # Code that cannot be read has no words.
            requirements += skip(own, SHELL_ONLY if part.words or not part.doubt else part.doubt)
        elif part.doubt:
            requirements += skip(own, part.doubt)
        else:
            requirements += _installed(own, part, found, build, folder)
    return requirements


# `3.12`, `python3.12`, `cpython-3.12.4`
_VERSION = re.compile(r"(?:cpython[-@]|python)?(3\.\d+)(?:\.\d+)?")


def python_version(text: str) -> str | None:
    """Return the minor version of Python that a text for uv, pyenv or virtualenv names; None if it names none."""
    match = _VERSION.fullmatch(posixpath.basename(text))
    return match[1] if match else None


def _made_python(values: Sequence[str]) -> str | None:
    """Return the Python of a command that installs one or makes an environment of it: `uv venv --python 3.12`."""
    program, *rest = posixpath.basename(values[0]) if values else "", *values[1:]
    if program == "uv" and rest[:1] == ["python"] and rest[1:2] in (["install"], ["pin"]):
        named = [version for word in rest[2:] if (version := python_version(word))]
        return named[0] if len(set(named)) == 1 else None
    if program == "pyenv" and rest[:1] in (["install"], ["global"], ["local"]):
        return next((version for word in rest[1:] if (version := python_version(word))), None)
    if program == "virtualenv" or (program == "uv" and rest[:1] == ["venv"]):
        given = (
            word.partition("=")[2] if word.startswith("--python=") else following
            for word, following in zip(rest, [*rest[1:], ""], strict=True)
            if word in ("-p", "--python") or word.startswith("--python=")
        )
        return next((version for word in given if (version := python_version(word))), None)
    return python_version(program) if rest[:2] == ["-m", "venv"] else None


# `pip config set global.extra-index-url https://...`
_PIP_CONFIG = re.compile(
    r"(?:\S*/)?(?:pip3?|python3? -m pip) config (?:--\w+ )*set (?:--\w+ )*"
    r"(?:global|install)\.(?P<key>[\w-]+) (?P<value>\S.*)"
)
# Settings of pip that change how it works, not what it installs.
_OF_TOOL = frozenset([
    "break-system-packages", "cache-dir", "cert", "default-timeout", "disable-pip-version-check", "no-cache-dir",
    "no-color", "no-input", "progress-bar", "quiet", "retries", "root-user-action", "timeout", "trusted-host",
    "verbose",
])  # fmt: skip


def configured(line: Line, key: str, value: str) -> Contents:
    """Return what a setting of pip says: an index or a page of wheels; every other one is lost, or changes nothing."""
    key = key.replace("_", "-")
    if key in ("index-url", "extra-index-url", "find-links"):
        return sum((index(line, url, page=key == "find-links") for url in value.split()), start=Contents())
    if key in _OF_TOOL:
        return skip(line, "it changes how pip works during the build, not what it installs", harmless=True)
    return skip(line, f"the setting {key} of pip is not supported")


# Commands that leave nothing in an image.
_NOTHING = re.compile(
    r"(?:cd|pushd|popd)(?: |$)|set [-+]|rm -"
    r"|(?:apt-get|apt) (?:-\S+ )*(?:update|clean|autoremove|autoclean)|(?:conda|mamba|micromamba) clean"
    r"|\S*pip3? cache|(?:true|:)$"
)
# Not needed: envkit's images have their own Python.
_PYTHONS = frozenset(
    [
        "python3",
        "python3-pip",
        "python3-venv",
        "python3-dev",
        "python-is-python3",
        "pip",
        "python3-setuptools",
        "python3-wheel",
    ]
)
_PYTHON = re.compile(r"python(3\.\d+)(?:-(?:dev|venv|distutils|full|minimal|lib2to3))?")
# The variables that give pip and uv an index.
INDEX_VARIABLES = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_TORCH_BACKEND",
)  # fmt: skip


def _installed(own: Line, part: Command, found: Installation, build: Build, folder: str | None) -> Contents:
    """Return the contents of a command that installs packages."""
    void = next((item for item in found.items if item.role == "void"), None)
    if void is not None:
        return skip(own, f"with {void.option} it does not install the packages that it names")
    read = {"pip": _pip, "conda": _conda, "apt": _apt, "project": _synced}[found.kind]
    requirements = read(own, found.items, build, folder)
    for item in found.items:
        if item.role == "lost":
            requirements += skip(Line(where=own.where, text=item.text), f"the option {item.option} is not supported")
        elif item.role == "unknown":
            requirements += skip(Line(where=own.where, text=item.text), "its value is known only during the build")
    for name, word in part.assignments:
        if name in INDEX_VARIABLES and found.kind == "pip":
            line = Line(where=own.where, text=f"{name}={word.value or ''}")
            if not word.value:
                requirements += skip(line, "its value is known only during the build")
            for url in (word.value or "").split():
                # uv allows a name before the URL of an index: `name=https://...`.
                requirements += index(line, re.sub(r"^[\w.-]+=", "", url), page=name.endswith("FIND_LINKS"))
    for redirect in part.redirects:
        # The shell takes `torch>=2.1` without quotes for `torch` and a file.
        if re.match(r"[<>]=?\s*\d", redirect):
            requirements += skip(Line(where=own.where, text=redirect), _AS_FILE)
    return requirements


def _apt(line: Line, items: Sequence[Item], _build: Build, _folder: str | None) -> Contents:
    requirements = Contents()
    for word in (item.value for item in items if item.role == "package"):
        own = Line(where=line.where, text=word)
        if python := _PYTHON.fullmatch(word):
            requirements += take(own, "python", python[1])
        elif word.endswith("-"):
            requirements += skip(own, "apt removes it")
        elif word in _PYTHONS:
            requirements += skip(own, bases.SYSTEM_PYTHON, harmless=True)
        else:
            requirements += system_package(own, word)
    return requirements


# Packages that only NVIDIA's repository has: `cuda-toolkit-11-8`, `libcudnn8=8.9.7.29-1+cuda12.2`.
_TOOLKIT = re.compile(
    r"cuda(?:-(?:toolkit|compiler|nvcc|minimal-build|command-line-tools|libraries-dev|cudart-dev|driver-dev|nvml-dev|nvrtc-dev))?"
    r"(?:-\d+-\d+)?|nvidia-cuda-(?:toolkit|dev)"
)
_OF_CUDA = re.compile(
    r"(?:cuda-(?:libraries|cudart|nvrtc|nvtx|cupti|runtime|compat|nvprof|drivers?)"
    r"|lib(?:cublas|cufft|cufile|curand|cusolver|cusparse|cutensor|npp|nvjpeg|nvjitlink|nccl|cudnn|nvinfer)\w*)(?:-\w+)*(?:=\S+)?"
)


# `ros-humble-desktop`; Debian's own packages of ROS have other names.
_OF_ROS = re.compile(r"ros-(?:kinetic|melodic|noetic|foxy|galactic|humble|iron|jazzy|kilted|rolling)-")


def system_package(line: Line, word: str) -> Contents:
    """Classify a package of apt; the CUDA toolkit of NVIDIA's repository is that of the flavor devel."""
    name = word.partition("=")[0]
    if _OF_ROS.match(name):
        return skip(line, "only the ROS repository has it, and images have the system's own repositories")
    if _TOOLKIT.fullmatch(name):
        return take(line, "flavor", "devel")
    if _OF_CUDA.fullmatch(word):
        return skip(
            line, "only NVIDIA's repository has it; torch brings CUDA's libraries, and the flavor devel has all"
        )
    return checked(line, "apt", word, names.deb_package(word))


# `.`, `./sub[gpu]`, `/app[all,dev]`
_PROJECT = re.compile(r"(?P<path>\.{1,2}(?:/[^\[\s]*)?|/[^\[\s]*)(?:\[(?P<extras>[^\]]*)\])?")


def _project(line: Line, path: str, build: Build, folder: str | None, choice: Choice) -> Contents | None:
    """Return the requirements of the project in a folder of the image; None if its files are not in the context."""
    if folder is None and not path.startswith("/"):
        return None
    for name, read in (("pyproject.toml", pyproject), ("setup.py", setup_py)):
        file = build.source(posixpath.join(path, name), folder or "/")
        if Path(file).is_absolute() or not foreign.is_file(build.folder / file):
            continue
        try:
            found = read(file, build.folder, choice)
        except UsageError as error:
            return skip(line, error.message)
        # Its own row says what of it is not taken over.
        kept = tuple(row for row in found.skipped if row.why != NOT_INSTALLED)
        return replace(found, skipped=kept) + skip(line, f"its requirements are taken over, but {NOT_INSTALLED}")
    return None


def _synced(line: Line, items: Sequence[Item], build: Build, folder: str | None) -> Contents:
    """Return the contents of `uv sync`: the requirements of the project in the working folder."""
    extras, groups = (tuple(item.value for item in items if item.role == role) for role in ("extra", "group"))
    found = _project(line, ".", build, folder, Choice(extras=extras, groups=groups))
    return found or skip(line, "the pyproject.toml that it installs is not among the files that are copied before")


def _pip(line: Line, items: Sequence[Item], build: Build, folder: str | None) -> Contents:
    requirements, lines = Contents(), []
    for item in items:
        own = Line(where=line.where, text=item.text)
        if item.role in ("file", "constraint"):
            is_constraint = item.role == "constraint"
            own = Line(where=line.where, text=f"{'-c' if is_constraint else '-r'} {item.value}")
            if folder is None and not item.value.startswith("/"):
                requirements += skip(own, "the folder that it is in is known only during the build")
            else:
                source = build.source(item.value, folder or "/")
                requirements += included(own, source, build.folder, constraint=is_constraint)
        elif item.role == "index" and item.option in _PIP_INDEXES:
            lines.append(Line(where=line.where, text=f"{item.option} {item.value}"))
        elif item.option == "--torch-backend" and item.value == "auto":
            requirements += skip(own, "the CUDA version is chosen for the machines that --gpu and --driver describe")
        elif item.role == "index":
            requirements += index(own, re.sub(r"^[\w.-]+=", "", item.value))
        elif item.role in ("editable", "package") and (match := _PROJECT.fullmatch(item.value)):
            extras = tuple(text.strip() for text in (match["extras"] or "").split(",") if text.strip())
            found = _project(own, match["path"], build, folder, Choice(extras=extras))
            if found is None:
                lines.append(own if item.role == "package" else Line(where=line.where, text=f"-e {item.value}"))
            else:
                requirements += found
        elif item.role == "editable":
            lines.append(Line(where=line.where, text=f"-e {item.value}"))
        elif item.role == "package" and item.value not in ("pip", "setuptools", "wheel"):
            lines.append(own)
    return requirements + sort(lines)


# Those that a line of a requirements file has, too.
_PIP_INDEXES = ("--index-url", "-i", "--extra-index-url", "--find-links", "-f")


def _environment_of(line: Line, path: str, build: Build, folder: str | None) -> Contents:
    """Return the contents of an environment.yml that a command of the Dockerfile names."""
    if folder is None and not path.startswith("/"):
        return skip(line, "the folder that it is in is known only during the build")
    source = build.source(path, folder or "/")
    if Path(source).is_absolute() or not (build.folder / source).resolve().is_relative_to(build.folder.resolve()):
        return skip(line, f"{source!r:.200} is outside the folder of the Dockerfile")
    try:
        return environment(source, build.folder)
    except UsageError as error:
        return skip(line, error.message)


def _conda(line: Line, items: Sequence[Item], build: Build, folder: str | None) -> Contents:
    requirements, channels = Contents(), set()
    for item in items:
        own = Line(where=line.where, text=item.text)
        if item.role == "channel":
            channels.add(item.value)
            requirements += of_channels([(item.value, own)])
        elif item.role == "file" and item.value.endswith((".yml", ".yaml")):
            requirements += _environment_of(own, item.value, build, folder)
        elif item.role == "file":
            requirements += skip(own, "conda's files in commands are not read; envkit init FILE reads an environment")
        elif item.role == "package":
            requirements += conda(own, item.value)
    return with_source(requirements, channels)


def checked(line: Line, key: str, value: str, why: str | None) -> Contents:
    """Return a setting, or the line as left out if there is a reason."""
    return skip(line, why) if why else take(line, key, value)


def unquoted(contents: Contents) -> tuple[Line, ...]:
    """Return what a shell takes for files although it is a part of requirements: `>=2.1`, of `torch>=2.1`."""
    return tuple(row.line for row in contents.skipped if row.why == _AS_FILE)
