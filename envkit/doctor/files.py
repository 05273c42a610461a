"""Check a Dockerfile or Compose file before anything is built: GPU access and a compatible torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.doctor.images.rules import of_configuration
from envkit.doctor.model import Diagnosis, Evidence, Finding, Section, Severity, by_weight, counts
from envkit.doctor.trees import items, mapping
from envkit.ground import strictyaml
from envkit.ground.errors import UsageError, VerificationError
from envkit.project.container_files import bases_with_cuda
from envkit.project.definition import draft, reader_of
from envkit.render.dockerfile import Parsed, parse
from envkit.verify.static import image_facts

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.plan.requirements import Contents, Line

# The names that Compose looks for.
_COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_GPU_BASE = re.compile(r"(?:[^/\s]+/)*(?:nvidia/|nvcr\.io/|pytorch/pytorch)")
_INDEX = re.compile(r"download\.pytorch\.org/whl/(?P<variant>cpu|cu\d+)\b")
_SHM = "/dev/shm"  # noqa: S108 - the mount itself
_GPU_DOCS = ("https://docs.docker.com/compose/how-tos/gpu-support/",)
_SHM_DOCS = ("https://docs.docker.com/reference/compose-file/services/#shm_size",)
_RESERVATION = (
    "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}",
    "or, with Compose 2.30 and later: gpus: all",
)


def diagnose_file(path: Path, facts: Facts) -> Diagnosis:
    """Diagnose a Dockerfile or Compose file; the exit code is 6 if there are errors, else 0.

    Raises:
        UsageError: the file cannot be read, or its name is neither a Dockerfile's nor a Compose file's.
    """
    is_compose = path.name in _COMPOSE or (path.suffix in (".yaml", ".yml") and "compose" in path.name)
    if not is_compose and not (path.name.startswith("Dockerfile") or path.suffix == ".Dockerfile"):
        raise UsageError(
            f"{path} is not named like a Dockerfile or a Compose file",
            hint="envkit doctor --file Dockerfile, or --file compose.yaml",
        )
    rows, findings = _compose(path) if is_compose else _dockerfile(path, facts)
    section = Section(
        id="file",
        title="Compose file" if is_compose else "Dockerfile",
        facts=tuple(rows),
        findings=by_weight(findings),
    )
    number = counts(section.findings)
    conclusion = section.findings[0].title if number["error"] or number["warn"] else "no problems found"
    code = VerificationError.exit_code if number["error"] else 0
    return Diagnosis(subject="file", name=str(path), sections=(section,), exit_code=code, conclusion=conclusion)


def _dockerfile(path: Path, facts: Facts) -> tuple[list[tuple[str, str]], list[Finding]]:
    parsed = parse(strictyaml.text_of(path))
    contents = reader_of(path.name)(path.name, path.parent)
    base = next((item.text.split()[0] for item in parsed.final("FROM")), "none")
    requested = [
        f"{entry.field} {entry.value}".strip()
        for entry in contents.settings
        if entry.field in ("torch", "cuda", "cpu", "python")
    ]
    findings = [
        *_base(base, parsed),
        *_torch(contents, parsed),
        *_compatible(path, facts),
        *_settings(base, parsed, contents),
    ]
    return [("base", base), ("asks for", ", ".join(dict.fromkeys(requested)) or "no torch")], findings


def _base(base: str, parsed: Parsed) -> Iterator[Finding]:
    last = base.rpartition("/")[2]
    # The value of an ARG is unknown before the build, a digest is fixed, and scratch and stages have no tag.
    if "$" in base or "@" in base or base in ("none", "scratch") or base in _stages(parsed):
        return
    if ":" not in last or last.endswith(":latest"):
        yield Finding(
            id="unpinned-base", severity=Severity.WARN, title="the base image has no fixed tag",
            evidence=(_line(parsed, "FROM", base),),
            cause="The next build may get a different CUDA, cuDNN or Python.",
            fix=(f"FROM {last.partition(':')[0]}:TAG@sha256:DIGEST",),
        )  # fmt: skip


def _stages(parsed: Parsed) -> set[str]:
    """Return the names of the Dockerfile's own stages."""
    froms = [item.text.split() for item in parsed.of("FROM")]
    return {words[2] for words in froms if len(words) == 3 and words[1].lower() == "as"}  # noqa: PLR2004 - IMAGE as NAME


def _torch(contents: Contents, parsed: Parsed) -> Iterator[Finding]:
    torch, bases = contents.of("torch"), bases_with_cuda(contents)
    if torch and not any(entry.value for entry in torch):
        yield Finding(
            id="unpinned-torch", severity=Severity.WARN, title="torch has no version",
            evidence=(_at(torch[0].line),),
            cause="The next build may get a torch with a different CUDA version and different supported GPUs.",
            fix=("envkit resolve prints a command with exact versions",),
        )  # fmt: skip
    variants = [
        (match["variant"], item.line, item.keyword)
        for item in parsed.of("RUN", "ENV", "ARG")
        for match in _INDEX.finditer(item.script)
    ]
    for variant, number, keyword in variants:
        if variant == "cpu":
            yield Finding(
                id="cpu-torch", severity=Severity.ERROR if bases else Severity.WARN,
                title="torch comes from the index of CPU builds, so it sees no GPU",
                evidence=(Evidence(text=f"{keyword} ... download.pytorch.org/whl/cpu", line=number),),
                fix=("envkit resolve --cuda X.Y --format pip prints the command with the right index",),
            )  # fmt: skip
        for line, version in bases if variant != "cpu" else ():
            if variant != "cu" + version.replace(".", ""):
                yield Finding(
                    id="two-cudas", severity=Severity.WARN,
                    title=f"the base image has CUDA {version}, but the torch wheels are for {variant}",
                    evidence=(
                        _at(line), Evidence(text=f"{keyword} ... download.pytorch.org/whl/{variant}", line=number)
                    ),
                    cause="Wheels bundle CUDA. The base image's CUDA takes gigabytes and may be loaded instead.",
                    fix=("use a base without CUDA (python:3.12-slim); to compile, the devel image of the same CUDA",),
                )  # fmt: skip


def _compatible(path: Path, facts: Facts) -> Iterator[Finding]:
    """Report a conflict if no build of torch has everything that the file asks for."""
    conflict = draft(path.name, path.parent, facts).conflict
    if conflict is not None:
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


def _compose(path: Path) -> tuple[list[tuple[str, str]], list[Finding]]:
    tree, positions = strictyaml.read_with_places(strictyaml.text_of(path), str(path), aliases=True)
    services = mapping(mapping(tree).get("services"))
    if not services:
        raise UsageError(
            f"{path} has no services", hint="envkit run IMAGE --print compose writes a Compose file with one"
        )
    findings: list[Finding] = []
    with_gpu = []
    for name, value in services.items():
        service, line = mapping(value), positions.get(("services", name), (1, 1))[0]
        devices = items(
            mapping(mapping(mapping(service.get("deploy")).get("resources")).get("reservations")).get("devices")
        )
        findings += _devices(name, [mapping(device) for device in devices], line)
        if _has_gpu(service, devices):
            with_gpu.append(name)
            findings += _memory(name, service, line)
    if not with_gpu:
        findings.append(_no_gpu(services))
    return [("services", ", ".join(services)), ("with a GPU", ", ".join(with_gpu) or "none")], findings


def _has_gpu(service: Mapping[str, Any], devices: list[Any]) -> bool:
    # devices: [nvidia.com/gpu=all]
    by_cdi = any(str(device).startswith("nvidia.com/gpu") for device in items(service.get("devices")))
    reserved = any(
        mapping(device).get("driver") in ("nvidia", "cdi") or "gpu" in items(mapping(device).get("capabilities"))
        for device in devices
    )
    return bool(service.get("gpus")) or service.get("runtime") == "nvidia" or by_cdi or reserved


def _no_gpu(services: Mapping[str, Any]) -> Finding:
    # With nvidia as the host's default runtime, the variable alone is enough.
    by_variable = any(
        "NVIDIA_VISIBLE_DEVICES" in str(mapping(service).get("environment", "")) for service in services.values()
    )
    return Finding(
        id="no-gpu-reserved", severity=Severity.WARN if by_variable else Severity.ERROR,
        title="no service gets a GPU", cause="Compose gives a container GPUs only if its service requests them.",
        fix=_RESERVATION, sources=_GPU_DOCS,
        distinguish="Hosts whose default runtime is nvidia give GPUs to every container with NVIDIA_VISIBLE_DEVICES.",
    )  # fmt: skip


def _devices(name: str, devices: list[Mapping[str, Any]], line: int) -> Iterator[Finding]:
    for device in devices:
        if not device.get("capabilities"):
            yield Finding(
                id="no-capabilities", severity=Severity.ERROR, title=f"{name}: a reserved device has no capabilities",
                evidence=(Evidence(text=f"services.{name}.deploy.resources.reservations.devices", line=line),),
                cause="Compose refuses to start the service.", fix=("capabilities: [gpu]",), sources=_GPU_DOCS,
            )  # fmt: skip
        if "count" in device and "device_ids" in device:
            yield Finding(
                id="count-and-ids", severity=Severity.ERROR, title=f"{name}: count and device_ids exclude each other",
                evidence=(Evidence(text=f"services.{name}.deploy.resources.reservations.devices", line=line),),
                cause="Compose refuses to start the service.", fix=("leave one of them out",), sources=_GPU_DOCS,
            )  # fmt: skip


def _memory(name: str, service: Mapping[str, Any], line: int) -> Iterator[Finding]:
    mounts = " ".join(map(str, (*items(service.get("volumes")), *items(service.get("tmpfs")))))
    # A tmpfs or a volume at /dev/shm has a size of its own.
    if not service.get("shm_size") and service.get("ipc") != "host" and _SHM not in mounts:
        yield Finding(
            id="small-shm", severity=Severity.WARN, title=f"{name}: /dev/shm has 64 MB, too little for loader workers",
            evidence=(Evidence(text=f"services.{name}", line=line),),
            cause="Each worker passes its batches through /dev/shm; when it is full, the worker dies with a bus error.",
            fix=("shm_size: 8gb, or ipc: host",), sources=_SHM_DOCS,
        )  # fmt: skip


def _at(line: Line) -> Evidence:
    _, _, number = line.where.rpartition(":")
    return Evidence(text=line.text, line=int(number) if number.isdigit() else None)


def _line(parsed: Parsed, keyword: str, text: str) -> Evidence:
    return Evidence(text=f"{keyword} {text}", line=next((item.line for item in parsed.final(keyword)), None))
