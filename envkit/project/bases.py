"""Base images of Dockerfiles: what their names and tags say, and what the facts know of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from envkit.facts.model import EVERY_TAG
from envkit.ground.errors import UsageError
from envkit.image.name import parse_reference
from envkit.plan.requirements import Contents, Line, Setting, Skipped, excludes, skip, take
from envkit.project.targets import allows, is_minor

if TYPE_CHECKING:
    from envkit.facts.model import BaseImage, Facts

# `nvidia/cuda:12.6.3-cudnn-devel-ubuntu22.04`; tags of old releases have no system.
_CUDA = re.compile(
    r"(?:[^/\s]+/)*nvidia/cuda:(?P<cuda>\d+\.\d+)(?:\.\d+)?(?:-cudnn\d*|-tensorrt)?-(?P<flavor>base|runtime|devel)"
    r"(?:-(?P<os>[a-z]+[0-9.]+))?(?:@\S+)?"
)
# `nvcr.io/nvidia/cuda-dl-base:25.03-cuda12.8-devel-ubuntu24.04`
_CUDA_DL = re.compile(
    r"(?:[^/\s]+/)*nvidia/cuda-dl-base:\d+\.\d+-cuda(?P<cuda>\d+\.\d+)(?:\.\d+)?-(?P<flavor>runtime|devel)"
    r"-(?P<os>[a-z]+[0-9.]+)(?:@\S+)?"
)
# `pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime`
_TORCH = re.compile(
    r"(?:[^/\s]+/)*pytorch/pytorch:(?P<torch>[0-9.]+)-cuda(?P<cuda>\d+\.\d+)-cudnn\d+-(?P<flavor>runtime|devel)(?:@\S+)?"
)
# `ubuntu:22.04`, `debian:12-slim`
_SYSTEM = re.compile(r"(?:docker\.io/)?(?:library/)?(?P<name>ubuntu|debian):(?P<version>[0-9.]+)(?:-slim)?(?:@\S+)?")
# `python:3.12.4-slim-bookworm`
_PYTHON = re.compile(r"(?:[^/\s]+/)*python:(?P<python>3\.\d+)(?:\.\d+)?(?:-\S+)?(?:@\S+)?")
# `quay.io/jupyter/pytorch-notebook:x86_64-cuda12-python-3.12.8`; without a prefix for CUDA its torch is for the CPU
_NOTEBOOK = re.compile(
    r"(?:[^/\s]+/)*jupyter/pytorch-notebook:(?:(?:x86_64|aarch64)-)?(?:cuda(?P<cuda>\d+)-)?(?P<rest>[\w.-]+)(?:@\S+)?"
)
# What the rest of such a tag may say: `python-3.12.8`, `pytorch-2.6.0`, `ubuntu-24.04`
_PART = re.compile(r"(?P<key>python|pytorch|ubuntu)-(?P<version>\d+(?:\.\d+)*)")
# Names of images that bring a torch or CUDA: NVIDIA's, and all that say so.
_WITH_TORCH = re.compile(r"nvcr\.io/|torch|cuda|gpu|tensorflow|vllm|rocm")
_SCRATCH = "scratch"  # the empty image
_UNREAD = (
    "only tags of nvidia/cuda, pytorch/pytorch, python, ubuntu, debian and NVIDIA's containers can be interpreted; "
    "envkit chooses the base"
)
OTHER_STAGE = "it is in a stage that the image is not based on"
_NO_TORCH = "its tag does not say which torch it has"


def of_base(line: Line) -> bool:
    """Return whether a line is that of a base image."""
    return line.text.startswith("FROM ")


def read(line: Line, image: str) -> Contents:
    """Return what the name and tag of a base image say."""
    for pattern in (_CUDA, _CUDA_DL, _TORCH, _PYTHON):
        if parts := pattern.fullmatch(image):
            return _taken(line, parts.groupdict())
    if parts := _SYSTEM.fullmatch(image):
        return take(line, "os", f"{parts['name']}{parts['version']}")
    if parts := _NOTEBOOK.fullmatch(image):
        return _notebook(line, parts)
    return skip(line, _UNREAD)


def _taken(line: Line, parts: dict[str, str | None]) -> Contents:
    requirements = Contents()
    for key, value in parts.items():
        if value and (key != "flavor" or value == "devel"):
            requirements += take(line, key, f"=={value}" if key == "torch" else value)
    return requirements


def _notebook(line: Line, parts: re.Match[str]) -> Contents:
    requirements = take(line, "cuda", f"{parts['cuda']}.*") if parts["cuda"] else take(line, "cpu", "true")
    said = _PART.fullmatch(parts["rest"])
    key, version = (said["key"], said["version"]) if said else ("", "")
    if key == "python":
        requirements += take(line, "python", version)
    elif key == "ubuntu":
        requirements += take(line, "os", f"ubuntu{version}")
    if key == "pytorch":
        return requirements + take(line, "torch", f"=={version}")
    return requirements + skip(_part(line, "torch"), _NO_TORCH)


def _part(line: Line, what: str) -> Line:
    """Return the line of a base image for one thing of it, so that the rest of the line is not lost with it."""
    return replace(line, text=f"{line.text} ({what})")


def known(contents: Contents, facts: Facts) -> Contents:
    """Return contents with what the facts know of base images that could not be read."""
    rows = {(row.image, row.tag): row for row in facts.base_images if row.tag != EVERY_TAG}
    found = {line: row for line in _unread(contents) if (row := rows.get(_name_and_tag(_image(line))))}
    left = tuple(row for row in contents.skipped if row.line not in found)
    contents = replace(contents, skipped=left) + sum(map(_of_facts, found, found.values()), start=Contents())
    return _with_note(_with_system_python(wheels_first(contents), facts))


def _with_note(contents: Contents) -> Contents:
    """Return contents with a note if their base has a Python that neither its tag nor another line names."""
    line = base_of(contents)
    if line is None or not _TORCH.fullmatch(_image(line)) or contents.of("python") or contents.of("conda"):
        return contents
    note = "its tag does not say which Python the image has, and envkit chooses one; request.python fixes it"
    own = next((one for one in contents.settings if one.line == line), None)
    settings = (replace(one, note=note) if one is own else one for one in contents.settings)
    return replace(contents, settings=tuple(settings))


SYSTEM_PYTHON = "an image has a Python of its own, with pip"


def _with_system_python(contents: Contents, facts: Facts) -> Contents:
    """Return contents with the Python of the base's system, if they install that one and their other lines allow it."""
    asked = next(
        (row.line for row in contents.skipped if row.why == SYSTEM_PYTHON and row.line.text in _OF_SYSTEM), None
    )
    named = {setting.value for setting in contents.of("os") if of_base(setting.line)}
    system = next((row for row in facts.oses if row.id in named or named & {*row.aliases}), None)
    if asked is None or system is None or contents.of("conda") or contents.of("source"):
        return contents
    python, wanted = system.pythons[0], [setting.value for setting in contents.of("python")]
    if any(is_minor(text) or not allows(text, python) for text in wanted):
        return contents
    note = f"Python {python} is taken: it is the python3 of {system.title}"
    first = Setting(field="python", value=python, line=asked, note=note)
    left = tuple(row for row in contents.skipped if row.line != asked)
    return replace(contents, settings=(first, *contents.settings), skipped=left)


# The packages of apt that are, or need, the system's python3.
_OF_SYSTEM = ("python3", "python3-pip", "python3-venv", "python3-dev", "python-is-python3")


def _unread(contents: Contents) -> Iterator[Line]:
    yield from (row.line for row in contents.skipped if row.why in (_UNREAD, _NO_TORCH))


def _image(line: Line) -> str:
    return line.text.split()[1]


def _of_facts(line: Line, row: BaseImage) -> Contents:
    """Return the contents of an image; NVIDIA's torch is between two releases, so any of the later one is allowed."""
    built = f"the image has {row.build}, which became {row.torch}" if row.build and row.build != row.torch else ""
    values = {
        "torch": (f"=={row.torch}.*" if row.torch else None, built),
        "cuda": (row.cuda, ""),
        "python": (row.python, ""),
        "os": (row.os, ""),
    }
    return Contents(
        settings=tuple(
            Setting(field=field, value=value, line=line, note=note) for field, (value, note) in values.items() if value
        )
    )


def _name_and_tag(image: str) -> tuple[str, str]:
    """Return the name of an image with its registry, and its tag; empty texts if it is not a name."""
    try:
        reference = parse_reference(image)
    except UsageError:
        return "", ""  # it has a variable without a value, for example
    return reference.place, reference.tag or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A line that may decide torch, and of which neither its text nor the facts say which torch to install."""

    line: Line
    says_so: bool  # it says that it has a torch or CUDA
    of_amd: bool = False

    def __str__(self) -> str:
        if self.of_amd:
            return f"{self.line.text} is for AMD GPUs, and envkit makes images for NVIDIA GPUs and for the CPU"
        has = "has a torch or CUDA of its own, and envkit does not know which"
        return f"the image {_image(self.line)} {has if self.says_so else 'may have a torch of its own'}"


# `rocm/pytorch:latest`, `.../whl/rocm6.2`, `torch==2.4.1+rocm6.1`
_OF_AMD = re.compile(r"\brocm/|/rocm\d|\+rocm\d")


def of_amd(contents: Contents) -> Undecided | None:
    """Return the first line of contents that selects a torch for AMD GPUs; None without one."""
    rows = sorted((row.line for row in contents.skipped if not row.harmless), key=lambda line: not of_base(line))
    lines = (*rows, *(one.line for one in contents.settings if one.field in ("indexes", "find_links")))
    found = next((line for line in lines if _OF_AMD.search(line.text)), None)
    return Undecided(line=found, says_so=True, of_amd=True) if found else None


def undecided(contents: Contents, facts: Facts) -> Undecided | None:
    """Return the base image of contents if it may have a torch and cannot be read; None if all can be read."""
    plain = {row.image for row in facts.base_images if row.tag == EVERY_TAG}
    for line in _unread(contents):
        image = _image(line)
        if _WITH_TORCH.search(image.lower()):
            return Undecided(line=line, says_so=True)
        if image != _SCRATCH and _name_and_tag(image)[0] not in plain:
            return Undecided(line=line, says_so=False)
    return None


def base_of(contents: Contents) -> Line | None:
    """Return the line of the base image of a Dockerfile, with its variables expanded; None if there is none."""
    skipped = (row.line for row in contents.skipped if row.why != OTHER_STAGE)
    lines = (*(setting.line for setting in contents.settings), *skipped)
    return next((line for line in lines if of_base(line)), None)


def base_with_cuda(contents: Contents) -> tuple[Line, str] | None:
    """Return the line of the base image and the CUDA of its tag, even if torch has another; None without CUDA."""
    line = base_of(contents)
    image = _image(line) if line else ""
    parts = _CUDA.fullmatch(image) or _CUDA_DL.fullmatch(image) or _TORCH.fullmatch(image)
    return (line, parts["cuda"]) if line and parts else None


# `cuda-version=12.4`, `-c nvidia/label/cuda-12.4.1`
_OF_OTHERS = re.compile(r"^cuda-version\b|\bnvidia/label/cuda-")


def wheels_first(contents: Contents) -> Contents:
    """Drop the torch and CUDA of a base image that a line installs over it: wheels bundle their own CUDA."""

    def devices(setting: Setting) -> bool:
        return setting.field in ("cuda", "cpu")

    # The CUDA of torch itself counts before the CUDA that other packages may have.
    late = [one for one in contents.settings if one.field == "cuda" and _OF_OTHERS.search(one.line.text)]
    contents = _overridden(
        replace(contents, settings=(*(one for one in contents.settings if one not in late), *late)),
        devices,
        lambda base, line: (base.field, base.value) != (line.field, line.value),
        "{where} selects another device for torch: {text}",
    )
    return _overridden(
        contents, lambda one: one.field == "torch", _is_another, "{where} installs another torch: {text}"
    )


def _is_another(base: Setting, line: Setting) -> bool:
    return bool(line.value) and excludes(SpecifierSet(base.value.replace(".*", ".0")), SpecifierSet(line.value))


def _overridden(
    contents: Contents, belongs: Callable[[Setting], bool], differs: Callable[[Setting, Setting], bool], why: str
) -> Contents:
    rows = [setting for setting in contents.settings if belongs(setting)]
    lines = [row for row in rows if not of_base(row.line)]
    bases = {row: other for row in rows if of_base(row.line) for other in lines[:1] if differs(row, other)}
    skipped = tuple(
        Skipped(
            line=_part(base.line, f"{base.field} {base.value.removeprefix('==')}"),
            why=why.format(where=other.line.where, text=other.line.text),
        )
        for base, other in bases.items()
    )
    return replace(
        contents,
        settings=tuple(setting for setting in contents.settings if setting not in bases),
        skipped=(*contents.skipped, *skipped),
    )
