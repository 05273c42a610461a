"""Check a Dockerfile or Compose file before anything is built: GPU access and a compatible torch.

A Dockerfile is read by the reader of `envkit init`, so that both see the same base image, packages and variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.doctor.compose import is_compose, of_compose
from envkit.doctor.images.rules import of_configuration
from envkit.doctor.model import Diagnosis, Evidence, Finding, Section, Severity, by_weight, counts
from envkit.ground import strictyaml
from envkit.ground.errors import ConflictError, UsageError, VerificationError
from envkit.project import bases, build_commands
from envkit.project.definition import draft, is_dockerfile, located, reader_of
from envkit.render.dockerfile import Parsed, parse
from envkit.verify.static import image_facts

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.plan.requirements import Contents, Line

# The names that Compose looks for.
_COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_GPU_BASE = re.compile(r"(?:[^/\s]+/)*(?:nvidia/|nvcr\.io/|pytorch/pytorch)")
_CUDA_TAG = re.compile(
    r"(?:docker\.io/)?nvidia/cuda:(?P<tag>(?P<cuda>\d+\.\d+\.\d+)(?:-cudnn\d*)?-(?P<flavor>base|runtime|devel)-(?P<os>[a-z0-9.]+))"
    r"(?:@\S+)?"
)


def diagnose_file(path: Path, facts: Facts) -> Diagnosis:
    """Diagnose a Dockerfile or Compose file; the exit code is 6 if there are errors, else 0.

    Raises:
        UsageError: the file cannot be read, or is neither a Dockerfile nor a Compose file.
    """
    by_name = path.name in _COMPOSE or (path.suffix in (".yaml", ".yml") and "compose" in path.name)
    compose = by_name or (path.suffix in (".yaml", ".yml") and is_compose(path))
    if not compose and not is_dockerfile(path):
        raise UsageError(
            f"{path} is neither a Dockerfile nor a Compose file",
            hint=f"envkit resolve {path} reads a project's file; --file Dockerfile or compose.yaml",
        )
    rows, findings = of_compose(path) if compose else _dockerfile(path, facts)
    section = Section(
        id="file",
        title="Compose file" if compose else "Dockerfile",
        facts=tuple(rows),
        findings=by_weight(findings),
    )
    number = counts(section.findings)
    conclusion = section.findings[0].title if number["error"] or number["warn"] else "no problems found"
    code = VerificationError.exit_code if number["error"] else 0
    return Diagnosis(subject="file", name=str(path), sections=(section,), exit_code=code, conclusion=conclusion)


def _dockerfile(path: Path, facts: Facts) -> tuple[list[tuple[str, str]], list[Finding]]:
    parsed = parse(strictyaml.text_of(path))
    name, folder = located(path)
    contents = bases.known(reader_of(name, folder)(name, folder), facts)
    line = bases.base_of(contents)
    base = line.text.split()[1] if line else "none"
    requested = [
        f"{entry.field} {entry.value}".strip()
        for entry in contents.settings
        if entry.field in ("torch", "cuda", "cpu", "python")
    ]
    findings = [
        *(_base(line, base, facts) if line else ()),
        *_torch(contents),
        *_compatible(name, folder, facts, contents),
        *_settings(base, parsed, contents),
    ]
    return [("base", base), ("asks for", ", ".join(dict.fromkeys(requested)) or "no torch")], findings


def _base(line: Line, base: str, facts: Facts) -> Iterator[Finding]:
    last = base.rpartition("/")[2]
    # The value of an ARG without a default is unknown before the build, a digest is fixed, and scratch has no tag.
    if "$" in base or "@" in base or base == "scratch":
        return
    if ":" not in last or last.endswith(":latest"):
        yield Finding(
            id="unpinned-base", severity=Severity.WARN, title="the base image has no fixed tag",
            evidence=(_at(line),), cause="The next build may get a different CUDA, cuDNN or Python.",
            fix=(f"FROM {base.removesuffix(':latest')}:TAG@sha256:DIGEST",),
        )  # fmt: skip
    if tag := _CUDA_TAG.fullmatch(base):
        yield from _missing_tag(line, tag, facts)


def _missing_tag(line: Line, tag: re.Match[str], facts: Facts) -> Iterator[Finding]:
    """Report a tag of nvidia/cuda that NVIDIA does not list, with the nearest ones that it lists."""
    row = next((image for image in facts.cuda_images if image.cuda == tag["cuda"]), None)
    if row is None or not row.tags or tag["tag"] in row.tags:
        return
    minor = tag["cuda"].rpartition(".")[0]
    part = tag["tag"].removeprefix(tag["cuda"]).rpartition(f"-{tag['os']}")[0]
    wanted = re.compile(rf"{re.escape(minor)}\.\d+{re.sub('cudnn[0-9]*', 'cudnn[0-9]*', part)}-{re.escape(tag['os'])}")
    near = sorted({other for image in facts.cuda_images for other in image.tags if wanted.fullmatch(other)})
    yield Finding(
        id="missing-tag", severity=Severity.ERROR, title=f"nvidia/cuda has no tag {tag['tag']}",
        evidence=(_at(line),), cause="The build ends with: manifest unknown, or not found.",
        fix=tuple(f"FROM nvidia/cuda:{other}" for other in near[-3:]) or ("take a tag that NVIDIA lists",),
        sources=("https://hub.docker.com/r/nvidia/cuda/tags",),
    )  # fmt: skip


def _torch(contents: Contents) -> Iterator[Finding]:
    torch, base = contents.of("torch"), bases.base_with_cuda(contents)
    for line in build_commands.unquoted(contents):
        yield Finding(
            id="unquoted-requirement", severity=Severity.ERROR, title=f"the shell takes {line.text} for a file",
            evidence=(_at(line),), cause="The version is not required, and a file of this name is written.",
            fix=(f"quote the requirement: 'NAME{line.text}'",),
        )  # fmt: skip
    if torch and not any(entry.value for entry in torch):
        yield Finding(
            id="unpinned-torch", severity=Severity.WARN, title="torch has no version",
            evidence=(_at(torch[0].line),),
            cause="The next build may get a torch with a different CUDA version and different supported GPUs.",
            fix=("envkit resolve prints a command with exact versions",),
        )  # fmt: skip
    for device in contents.of("cpu"):
        yield Finding(
            id="cpu-torch", severity=Severity.ERROR if base else Severity.WARN,
            title="torch comes from the index of CPU builds, so it sees no GPU", evidence=(_at(device.line),),
            fix=("envkit resolve --cuda X.Y --format pip prints the command with the right index",),
        )  # fmt: skip
    for device in contents.of("cuda") if base else ():
        line, version = base  # type: ignore[misc] # without a base there is no device here
        if not bases.of_base(device.line) and device.value not in ("", version):
            yield Finding(
                id="two-cudas", severity=Severity.WARN,
                title=f"the base image has CUDA {version}, but torch is for {device.value}",
                evidence=(_at(line), _at(device.line)),
                cause="Wheels bundle CUDA. The base image's CUDA takes gigabytes and may be loaded instead.",
                fix=("use a base without CUDA (python:3.12-slim); to compile, the devel image of the same CUDA",),
            )  # fmt: skip


def _compatible(name: str, folder: Path, facts: Facts, contents: Contents) -> Iterator[Finding]:
    """Report a conflict if no build of torch has everything that the file asks for.

    A file without torch has no such conflict, and what only envkit does not support is no error of the file.
    """
    conflict = draft(name, folder, facts).conflict
    if isinstance(conflict, ConflictError) and contents.of("torch"):
        yield Finding(
            id="no-compatible-versions", severity=Severity.ERROR, title=conflict.message,
            evidence=tuple(Evidence(text=detail) for detail in conflict.details),
            fix=(conflict.hint,) if conflict.hint else (),
        )  # fmt: skip


def _settings(base: str, parsed: Parsed, contents: Contents) -> Iterator[Finding]:
    """Check the environment variables of the image."""
    gpu_base = bool(_GPU_BASE.match(base))
    # NVIDIA's and PyTorch's images set it, which the Dockerfile alone does not show.
    env = ({"NVIDIA_VISIBLE_DEVICES": "all"} if gpu_base else {}) | parsed.image.env
    needs_gpu = gpu_base or bool(contents.of("torch") and not contents.of("cpu"))
    yield from of_configuration(image_facts({"env": env}), cuda=needs_gpu)


def _at(line: Line) -> Evidence:
    _, _, number = line.where.rpartition(":")
    return Evidence(text=line.text, line=int(number) if number.isdigit() else None)
