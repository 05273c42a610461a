"""Diagnose an image without running it, from its files or from what its engine reports."""

from __future__ import annotations

from collections.abc import Iterator

from envkit.checks.model import Verdict
from envkit.doctor.images.contents import Contents, read_contents
from envkit.doctor.images.rules import is_cuda, of_configuration, of_contents, of_versions
from envkit.doctor.model import Diagnosis, Evidence, Finding, Section, Severity, by_weight, counts
from envkit.facts.load import load
from envkit.ground.errors import UsageError, VerificationError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.progress import Reporter
from envkit.ground.sizes import shown_size
from envkit.image.name import ImageName, InArchive, InLayout
from envkit.image.opening import described, open_file
from envkit.run.runners import choose, located
from envkit.verify.static import ImageFacts, image_facts, shadowing, static_checks

_BASE = "org.opencontainers.image.base.name"
_SEVERITIES = {Verdict.FAIL: Severity.ERROR, Verdict.WARN: Severity.WARN, Verdict.ERROR: Severity.ERROR}
# Checks for which `rules` has a more detailed finding.
_DETAILED_IN_RULES = frozenset({"ENV_SHADOWS"})


def diagnose_image(name: ImageName, runner: str, reporter: Reporter) -> Diagnosis:
    """Diagnose an image; the exit code is 6 if there are errors, else 0.

    Layers are read for `oci:DIR` and `docker-archive:FILE`; for an image in an engine, only its configuration.

    Raises:
        EngineError: the image does not exist.
        IntegrityError: the image's files do not match their digests.
        EnvironmentProblem: no engine answers.
        UsageError: the name is empty or matches several images.
    """
    if not name.typed.strip():
        raise UsageError("--image is empty", hint="envkit doctor --image NAME:TAG")
    contents: Contents | None = None
    match located(name, runner):
        case (InLayout() | InArchive()) as file:
            opened = open_file(file, reporter)
            contents = read_contents(opened, reporter)
            facts = image_facts(described(opened.image, sum(layer.tar for layer in contents.layers)))
        case _:
            facts = image_facts(choose(runner, reporter, image=name).inspect(name))
    return diagnosis_of(facts, contents, name.typed)


def diagnosis_of(facts: ImageFacts, contents: Contents | None, name: str) -> Diagnosis:
    """Diagnose an image from its configuration and, if they were read, the contents of its layers."""
    packages = contents.packages() if contents is not None else {}
    cuda = is_cuda(facts, packages)
    findings = [*_static(facts), *of_configuration(facts, cuda=cuda)]
    if contents is not None:
        findings += [*of_contents(contents, cuda=cuda), *of_versions(packages, load())]
    else:
        findings.append(_layers_unread(name))
    section = Section(
        id="image",
        title="Image",
        facts=tuple(_facts(facts, contents, packages, cuda=cuda)),
        findings=by_weight(findings),
    )
    number = counts(findings)
    conclusion = section.findings[0].title if number["error"] or number["warn"] else "no problems found"
    code = VerificationError.exit_code if number["error"] else 0
    return Diagnosis(subject="image", name=name, sections=(section,), exit_code=code, conclusion=conclusion)


def _facts(
    facts: ImageFacts, contents: Contents | None, packages: dict[str, str], *, cuda: bool
) -> Iterator[tuple[str, str]]:
    yield "id", facts.id
    yield (
        "base",
        facts.labels.get(_BASE)
        or facts.labels.get(f"{LABEL_PREFIX}.base")
        or ("nvidia/cuda" if facts.env.get("NV_CUDA_CUDART_VERSION") else "unknown"),
    )
    yield "user", facts.user or "root"
    yield "architecture", facts.architecture or "unknown"
    yield "size", f"{shown_size(facts.size)} unpacked" if facts.size else "unknown"
    yield "made for", "CUDA" if cuda else "CPUs (no sign of CUDA)"
    if contents is not None:
        largest = max((layer.blob for layer in contents.layers), default=0)
        yield "layers", f"{len(contents.layers)}, the largest {shown_size(largest)}"
        for name in ("torch", "torchvision", "numpy"):
            if name in packages:
                yield name, packages[name]


def _static(facts: ImageFacts) -> Iterator[Finding]:
    for judged in static_checks(facts, None):
        finding = judged.finding
        severity = _SEVERITIES.get(finding.verdict)
        if severity is not None and finding.reason_code not in _DETAILED_IN_RULES:
            yield Finding(
                id=str(finding.reason_code).lower().replace("_", "-"),
                severity=severity,
                title=finding.message,
                evidence=(Evidence(text=f"{judged.id}: {judged.title}"),),
                fix=finding.advice,
            )
        # `rules` reports folders with CUDA in their name, so this is the finding for all others.
        elif severity is not None and not any("cuda" in value.lower() for value in shadowing(facts.env).values()):
            seen = tuple(Evidence(text=f"{name}={value}") for name, value in shadowing(facts.env).items())
            yield Finding(id="env-shadows", severity=severity, title=finding.message, evidence=seen, fix=finding.advice)


def _layers_unread(name: str) -> Finding:
    return Finding(
        id="layers-unread",
        severity=Severity.INFO,
        title="the layers were not read, so duplicate cuDNNs, caches and package versions were not checked",
        fix=(f"docker save -o image.tar {name} && envkit doctor --image docker-archive:image.tar",),
    )
