"""envkit's own lint of a rendered build context, in addition to hadolint's.

`check` runs every rule. A finding is an `error`, or a `warning` if only a later step can fix it: a tag gets its digest
when a registry is queried. Rules on exact artifacts (an explicit list of conda packages, hashes of wheels) apply to
locked builds; without a lock, the rules require one index, strict priority, and no defaults channel.

`ROWS` has the rules that one instruction can break. What depends on several instructions, on the plan or on the other
files of the context is in a function; a rule may have both.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.ground.errors import UsageError, shown
from envkit.ground.naming import LABEL_PREFIX
from envkit.plan import names
from envkit.plan.variables import read_requirement
from envkit.render import sources
from envkit.render.copied import COPIED
from envkit.render.dockerfile import Instruction, Parsed, command, parse
from envkit.render.model import Rendered

# Enforced for every template; the other rules are advice for template authors.
UNSAFE = frozenset({"D3", "D7", "D10", "D12", "D18", "D27", "D28", "D34", "D40", "D46", "D54", "D55"})
# A locked build must also install exactly its lock.
UNSAFE_LOCKED = UNSAFE | {"D4", "D5"}

# BuildKit looks for `syntax=` after # and after //, and in a JSON object at the beginning of the file.
_DIRECTIVE = re.compile(r"(?i)(?:#|//)\s*(?:syntax|escape|check)\s*=")
# A single |, not ||.
_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
_FROM_AS = 3  # words of FROM IMAGE AS NAME
_CHECKSUM = re.compile(r"--checksum=sha256:[0-9a-f]{64}")
_UNVERIFIED = re.compile(r"(?:^|\s)(?:-k|--insecure|--no-check-certificate)(?:\s|$)")
_LOGIN_FILE = re.compile(r"target=/root/\.(?:netrc|condarc)(?:,|$)")
_BUILDKIT_FLAGS = ("--mount", "--chmod", "--link", "--checksum", "--network", "--parents", "--exclude")
_SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
# The values that the NVIDIA container toolkit accepts, without `all`.
_CAPABILITIES = frozenset(["compute", "compat32", "graphics", "utility", "video", "display", "ngx"])
_CREATES_ENV = re.compile(r"conda (?:env )?create\b")
# Variables that a definition may not set, except those that templates set (PATH, NVIDIA_REQUIRE_CUDA) or that D40 and
# D44 check.
_FORBIDDEN = ("LD_PRELOAD", "LD_AUDIT", "NVIDIA_DISABLE_REQUIRE", "BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTHONHOME")
_LISTS = ("environment.yml", "torch.txt", "requirements.txt")
_HASHED = re.compile(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}")
_EXPLICIT = re.compile(r"https?://\S+\.(?:conda|tar\.bz2)#sha256:[0-9a-f]{64}")
_PAGE = re.compile(r"--find-links https?://\S+/")
# The lookahead allows one command: that of the built-in template, which installs explicit.txt.
_CONDA_INSTALLS = re.compile(
    r"\bconda (?:env create|env update|install|update|create(?! -y -q -p /opt/env --file explicit\.txt;))\b"
)
_OCI_NEEDED = ("title", "version", "base.name")

Hit = tuple[int, str, str]
"""Line (0: the whole context), message, severity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A rendered build context with its parsed Dockerfile."""

    files: Mapping[str, bytes]
    parsed: Parsed
    syntax: str
    locked: bool = False

    def text(self, name: str) -> str:
        """Return a file's text; empty if the file does not exist."""
        return self.files.get(name, b"").decode("utf-8", "replace")

    def plan(self) -> dict[str, Any]:
        """Return the plan in the context; empty if there is none."""
        try:
            tree = json.loads(self.files.get("plan.json", b"{}"))
        except ValueError:
            return {}
        return tree if isinstance(tree, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A violation of a rule."""

    rule: str  # 'D9'
    line: int  # of the Dockerfile, from 1; 0 = the build context
    message: str
    severity: str  # 'error' | 'warning'

    def __str__(self) -> str:
        location = f"Dockerfile:{self.line}" if self.line else "build context"
        return f"{location}: {self.severity} {self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class Row:
    """A rule on single instructions; several rows may have one id."""

    rule: str  # 'D9'
    keywords: str  # of the instructions, separated by blanks; '' = all
    breaks: Callable[[Instruction, Context], object]
    """Whether an instruction breaks the rule, or the list of its parts that do, each of which is a finding."""
    message: str  # with the fields `item`, the instruction, and `part`, one of that list
    final: bool = False  # only in the last stage

    def hits(self, context: Context) -> Iterator[Hit]:
        """Yield an error for everything that breaks the rule."""
        of = context.parsed.final if self.final else context.parsed.of
        for item in of(*self.keywords.split()) if self.keywords else context.parsed.instructions:
            broken = self.breaks(item, context)
            for part in broken if isinstance(broken, list) else [broken] if broken else []:
                yield error(item.line, self.message.format(item=item, part=part))


def check(rendered: Rendered, rules: Collection[str] | None = None) -> list[Finding]:
    """Return the findings of these rules, sorted by line; by default of all rules."""
    context = Context(
        files=rendered.files, parsed=parse(rendered.dockerfile), syntax=rendered.syntax, locked=rendered.locked
    )
    findings = [
        Finding(rule=rule, line=line, message=message, severity=severity)
        for rule in (RULES if rules is None else rules)
        for hits in RULES[rule]
        for line, message, severity in hits(context)
    ]
    return sorted(findings, key=lambda item: (item.line, item.rule))


def refuse_unsafe(rendered: Rendered) -> None:
    """Refuse a Dockerfile that disables protections.

    Raises:
        UsageError: with every such line.
    """
    unsafe = UNSAFE_LOCKED if rendered.locked else UNSAFE
    findings = [item for item in check(rendered, unsafe) if item.severity == "error"]
    if findings:
        raise UsageError(
            f"the Dockerfile of the template breaks a rule: {findings[0]}",
            details=shown([str(item) for item in findings[1:]]),
            hint="envkit render --check lists every finding"
            + ("; envkit build --no-lock builds without a lock" if rendered.locked else ""),
        )


def error(line: int, message: str) -> Hit:
    """Return an error."""
    return line, message, "error"


def _flags(item: Instruction, part: str) -> list[str]:
    return [flag for flag in item.flags if part in flag]


def _lacks(item: Instruction, *options: str) -> list[str]:
    """Return the options that a step with pip does not give it."""
    return [option for option in options if "pip install" in item.text and option not in item.text]


def _creates_without(item: Instruction, text: str) -> list[str]:
    """Return the command of a step that creates a conda environment, if the step lacks a text."""
    creates = _CREATES_ENV.search(item.text)
    return [creates.group()] if creates is not None and text not in item.text else []


def _not_sent(item: Instruction, context: Context) -> list[str]:
    """Return what a COPY takes from the build context that .dockerignore excludes."""
    if any(flag.startswith("--from=") for flag in item.flags):
        return []
    named = {line[1:] for line in context.text(".dockerignore").splitlines() if line.startswith("!")}
    paths = item.text.split()[:-1]
    return [
        path
        for path in paths
        if path.rstrip("/") not in named and not (path.startswith(f"{COPIED}/") and COPIED in named)
    ]


def _bad_stage_name(item: Instruction, context: Context) -> list[str]:
    before = {_stage_name(other) for other in context.parsed.of("FROM") if other.line < item.line} - {""}
    name = _stage_name(item)
    return [name] if name != name.lower() or name in before else []


def _stage_name(item: Instruction) -> str:
    return item.text.split(" AS ")[-1] if " AS " in item.text else ""


def _images_of(item: Instruction, context: Context) -> list[str]:
    """Return the images, not stages of this file, that an instruction takes files from."""
    stages = _stages(context)
    return [image for image in _sources(item) if image.lower() not in stages and not image.isdigit()]


def _stages(context: Context) -> set[str]:
    words = [item.text.split() for item in context.parsed.of("FROM")]
    return {parts[2].lower() for parts in words if len(parts) == _FROM_AS and parts[1].lower() == "as"}


def _sources(item: Instruction) -> list[str]:
    """Return the images or stages that an instruction takes files from."""
    sources = [flag.removeprefix("--from=") for flag in item.flags if flag.startswith("--from=")]
    for flag in item.flags:
        if flag.startswith("--mount="):
            # The value is one line of CSV with case-insensitive keys.
            fields = next(csv.reader([flag.removeprefix("--mount=")]), [])
            sources += [text.partition("=")[2] for text in fields if text.lower().startswith("from=")]
    return sources


ROWS = (
    # FROM has neither a flag nor a variable.
    Row("D2", "FROM", lambda item, _: item.flags or "$" in item.text, "FROM has a flag or a variable"),
    # With a lock, conda installs its explicit list and nothing else.
    Row("D4", "RUN", lambda item, context: context.locked and "condarc" in context.files
        and _CONDA_INSTALLS.search(item.script),
        "conda installs something other than explicit.txt in a locked build"),
    # pip installs only wheels, from one index, without downloads in the layer; with a lock, exactly its wheels.
    Row("D5", "RUN", lambda item, _: _lacks(item, "--no-cache-dir") and not _flags(item, "target=/root/.cache/pip"),
        "pip install without --no-cache-dir or a cache mount"),
    Row("D5", "RUN", lambda item, _: _lacks(item, "--only-binary=:all:"), "pip install without --only-binary=:all:"),
    Row("D5", "RUN", lambda item, _: "pip install" in item.text
        and ("--extra-index-url" in item.text or "--find-links" in item.text),
        "pip install with a second index"),
    Row("D5", "RUN", lambda item, context: context.locked and _lacks(item, "--require-hashes", "--no-deps"),
        "pip install without {part} in a locked build"),
    # Downloads are checked by SHA-256 and use certificates.
    Row("D7", "ADD", lambda item, _: not any(map(_CHECKSUM.fullmatch, item.flags)), "ADD without --checksum"),
    Row("D7", "RUN", lambda item, _: re.search(r"\b(?:curl|wget)\b", item.script) and "sha256sum -c" not in item.script,
        "a download that is not checked by sha256sum -c"),
    Row("D7", "RUN", lambda item, _: _UNVERIFIED.search(item.script), "a download without certificate check"),
    # The Dockerfile copies only what .dockerignore names.
    Row("D8", "COPY", _not_sent, "COPY of {part}, which is not in the build context"),
    # D10, D11: ENV and LABEL are lists of key="value" without control or format characters in the values.
    Row("D10", "ENV LABEL", lambda item, _: item.fault, "{item.keyword} is not a list of key=value: {item.fault}"),
    Row("D10", "ENV LABEL", lambda item, _: [
            f"{name} {fault}" for name, value in item.pairs if (fault := names.text(value))
        ], "{item.keyword} {part}"),
    # No build argument, no variable with a secret's name or a login in its value.
    Row("D12", "ARG", lambda item, _: [item.text.split("=")[0]],
        "the build argument {part} would be visible in the image history"),
    Row("D12", "ENV", lambda item, _: [name for name, value in item.pairs if names.is_secret(name, value)],
        "the variable {part} looks like a secret"),
    # Secrets are mounted only as .netrc or .condarc, for one step.
    Row("D13", "RUN", lambda item, _: [flag for flag in _flags(item, "type=secret") if not _LOGIN_FILE.search(flag)],
        "a secret outside /root/.netrc and /root/.condarc"),
    # No ENV uses a variable.
    Row("D14", "ENV LABEL WORKDIR USER", lambda item, _: re.search(r"(?<!\\)\$", item.text),
        "{item.keyword} expands a variable"),
    # Conda's package cache is removed in the step that fills it, or is in a cache mount.
    Row("D16", "RUN", lambda item, _: not _flags(item, "target=/opt/conda/pkgs")
        and _creates_without(item, "conda clean -afy"),
        "{part} without conda clean in the same step"),
    Row("D16", "RUN", lambda item, _: _creates_without(item, "seal.py"), "{part} without seal.py in the same step"),
    # Cache mounts have an id and are locked. Without an id, all Dockerfiles that mount this path share one cache.
    # Locked, one build at a time uses it.
    Row("D17", "RUN", lambda item, _: [
            flag for flag in _flags(item, "type=cache") if "sharing=locked" not in flag or "id=envkit-" not in flag
        ], "a cache mount without id or sharing=locked"),
    # No instruction in the classic syntax that only BuildKit reads.
    Row("D18", "", lambda item, context: context.syntax != "buildkit" and [
            flag.partition("=")[0] for flag in item.flags if flag.startswith(_BUILDKIT_FLAGS)
        ], "{part} needs BuildKit"),
    Row("D18", "", lambda item, context: context.syntax != "buildkit" and item.heredocs, "a heredoc needs BuildKit"),
    # WORKDIR is absolute and outside the kernel's file systems; no cd, sudo or su in a RUN.
    Row("D23", "WORKDIR", lambda item, _: not item.text.startswith("/") or item.text.startswith(_SYSTEM_FOLDERS),
        "WORKDIR {item.text} is not absolute or is a folder of the kernel"),
    Row("D23", "RUN", lambda item, _: re.search(r"(?:^|[;&]\s*)(?:cd|sudo|su)\s", item.text),
        "RUN with cd, sudo or su"),
    # No ONBUILD, MAINTAINER or SHELL; only the plan's ports and volumes; one CMD, ENTRYPOINT and HEALTHCHECK.
    Row("D24", "ONBUILD MAINTAINER SHELL", lambda *_: True, "{item.keyword} is not allowed"),
    Row("D24", "EXPOSE", lambda item, context: item.text.split() != context.plan().get("ports"),
        "EXPOSE {item.text} differs from the plan"),
    Row("D24", "VOLUME", lambda item, context: command(item.text) != context.plan().get("volumes"),
        "VOLUME {item.text} differs from the plan"),
    Row("D24", "CMD ENTRYPOINT HEALTHCHECK", lambda item, context: item is not context.parsed.of(item.keyword)[0],
        "a second {item.keyword}"),
    # Keywords in upper case; stage names in lower case and unique.
    Row("D25", "", lambda item, _: item.written != item.keyword, "{item.written} is not in upper case"),
    Row("D25", "FROM", _bad_stage_name, "the stage name {part} is not in lower case or is used twice"),
    # Every RUN begins with `set -eu` and has no pipe, because POSIX shells ignore failures in pipes.
    Row("D26", "RUN", lambda item, _: not item.text.startswith("set -eu;"), "RUN does not begin with `set -eu;`"),
    Row("D26", "RUN", lambda item, _: _PIPE.search(item.text), "RUN has a pipe"),
    # No step with more privileges than a default container, or another network.
    Row("D27", "RUN", lambda item, _: [
            flag for flag in item.flags
            if flag.startswith(("--security", "--network", "--device")) or "type=ssh" in flag
        ], "{part} gives the step unneeded privileges"),
    # D34, D35: ENTRYPOINT and CMD in JSON form, without `conda run`.
    Row("D34", "ENTRYPOINT CMD", lambda item, _: command(item.text) is None, "{item.keyword} is not in JSON form",
        final=True),
    Row("D34", "ENTRYPOINT CMD", lambda item, _: (words := command(item.text)) is not None
        and (words[:2] == ["conda", "run"] or "conda run" in item.text),
        "conda run does not forward signals", final=True),
    # tini is process 1 if the system or conda has it; the stop signal is SIGTERM.
    Row("D36", "ENTRYPOINT", lambda item, context: not (command(item.text) or [""])[0].endswith("/tini")
        and any("tini" in context.text(name) for name in ("system.txt", "environment.yml", "explicit.txt")),
        "tini is installed but not used", final=True),
    Row("D36", "STOPSIGNAL", lambda item, _: item.text != "SIGTERM", "STOPSIGNAL {item.text} is not SIGTERM",
        final=True),
    # The base has no CUDA libraries, because torch includes them, unless the toolkit is requested.
    Row("D39", "FROM", lambda item, context: context.plan().get("flavor") != "devel"
        and re.search(r"nvidia/cuda:\S*(?:runtime|devel|cudnn)", item.text), "the base has its own CUDA libraries"),
    # LD_LIBRARY_PATH is not set, except to an empty value that clears an inherited one.
    Row("D40", "ENV", lambda item, _: [value for name, value in item.pairs if name == "LD_LIBRARY_PATH" and value],
        "LD_LIBRARY_PATH is set to {part}"),
    # No variable that disables the driver check or loads code into every program.
    Row("D46", "ENV", lambda item, _: [name for name, _ in item.pairs if name in _FORBIDDEN], "{part} is not allowed"),
    # CONDA_OVERRIDE_* is set where conda solves, and not in the image.
    Row("D47", "ENV", lambda item, _: [name for name, _ in item.pairs if name.startswith("CONDA_OVERRIDE_")],
        "{part} in the image", final=True),
    # Docker supports every instruction, and all builders parse it in the same way; no ONBUILD.
    Row("D54", "ONBUILD", lambda *_: True, "ONBUILD runs in other builds, which this lint cannot check"),
    # A RUN mounts only stages of this file; COPY takes from a stage or an image with a digest.
    Row("D55", "RUN", _images_of, "uses files of {part}, which is not a stage"),
    Row("D55", "COPY", lambda item, context: [
            image for image in _images_of(item, context)
            if not (sources.PINNED.fullmatch(image) or sources.LOCAL_ID.fullmatch(image))
        ], "uses files of {part}, which is not a stage and has no digest"),
)  # fmt: skip


def images(context: Context) -> Iterator[Hit]:
    """D1: every FROM names its registry and a digest."""
    used = [(item.line, item.text.split()[0]) for item in context.parsed.of("FROM")]
    stages = _stages(context)
    used += [(item.line, image) for item in context.parsed.of("COPY", "RUN") for image in _sources(item)]
    for line, image in used:
        if image.lower() in stages or image.isdigit() or sources.LOCAL_ID.fullmatch(image):
            continue
        if not sources.WITH_REGISTRY.fullmatch(image):
            yield error(line, f"{image} does not name its registry")
        if not sources.PINNED.fullmatch(image):
            yield line, f"{image} has no digest; a build pins it", "warning"


def directives(context: Context) -> Iterator[Hit]:
    """D3: no parser directive, because BuildKit downloads and runs the image in `# syntax=`."""
    for number, line in enumerate(context.parsed.source.split("\n"), 1):
        if _DIRECTIVE.match(line.strip()) or line.lstrip().startswith("{"):
            yield error(number, "a parser directive")


def channels(context: Context) -> Iterator[Hit]:
    """D4: only the plan's channels, with strict priority and safety checks; never Anaconda's defaults.

    With a lock: only its explicit list, with a SHA-256 for every package.
    """
    if "condarc" not in context.files:
        return
    settings = context.text("condarc").splitlines()
    for setting in ("channel_priority: strict", "safety_checks: enabled", "default_channels: []"):
        if setting not in settings:
            yield error(0, f"condarc without `{setting}`")
    lines = [*context.text("environment.yml").splitlines(), *context.text("explicit.txt").splitlines()]
    if context.locked:
        yield from _explicit(context)
    elif any(re.search(r"- [\"']?nodefaults\b", line) for line in lines):
        yield error(0, "environment.yml has nodefaults, which conda 26.7 and later read as a channel")
    if any(re.search(r"- (?:defaults|anaconda|main)$|repo\.anaconda\.com/pkgs", line) for line in [*lines, *settings]):
        yield error(0, "Anaconda's defaults channel")


def _explicit(context: Context) -> Iterator[Hit]:
    lines = [line for line in context.text("explicit.txt").splitlines() if not line.startswith("#")]
    if lines[:1] != ["@EXPLICIT"]:
        yield error(0, "a locked build without explicit.txt")
    for line in lines[1:]:
        if not _EXPLICIT.fullmatch(line):
            yield error(0, f"explicit.txt: {line:.200} is not a package by URL and SHA-256")


def one_index(context: Context) -> Iterator[Hit]:
    """D5b: every list of wheels has at most one index, allows only wheels, and pins torch exactly.

    With a lock: a SHA-256 for every wheel. The indexes and pages that the definition adds are in requirements.txt.
    """
    added = _added(context)
    for name in _LISTS:
        lines = [line.strip().removeprefix("- ").strip('"') for line in context.text(name).splitlines()]
        lines = [line for line in lines if name != "requirements.txt" or line not in added]
        if not lines:
            continue
        if sum(line.startswith(("--index-url", "-i ")) for line in lines) > 1:
            yield error(0, f"{name} has two indexes")
        if any(line.startswith(("--extra-index-url", "-f ", "--trusted-host")) for line in lines):
            yield error(0, f"{name} adds a second package source")
        yield from _pages(context, name, lines)
        wheels = name != "environment.yml" or any(line == "pip:" for line in lines)
        if wheels and "--only-binary=:all:" not in lines:
            yield error(0, f"{name} allows source distributions")
        for line in lines:
            if context.locked and not line.startswith("--") and not _HASHED.fullmatch(line):
                yield error(0, f"{name}: {line:.200} has no SHA-256")
            if re.match(r"torch(?:vision|audio)?(?![\w.-])", line) and not re.match(
                r"torch(?:vision|audio)?=(?:=|\d)", line
            ):
                yield error(0, f"{name}: {line} is not pinned")


def _added(context: Context) -> frozenset[str]:
    """Return the options of requirements.txt for the indexes and pages of the plan."""
    plan = context.plan()
    indexes = (*plan.get("indexes", ()), *dict(plan.get("package_indexes", {})).values())
    pages = (f"--find-links {url}" for url in plan.get("find_links", ()))
    return frozenset((*(f"--extra-index-url {url}" for url in indexes), *pages))


def _pages(context: Context, name: str, lines: Sequence[str]) -> Iterator[Hit]:
    """Check a list with a flat page: with a hash or a local version, a file of that name cannot come from the index."""
    if not any(line.startswith("--find-links") for line in lines):
        return
    for line in lines:
        if line.startswith("--find-links") and not _PAGE.fullmatch(line):
            yield error(0, f"{name}: {line:.200} is not the page of a mirror")
        if not context.locked and line.startswith("torch==") and "+" not in line:
            yield error(0, f"{name}: {line:.200} may come from either the index or the flat page")


def ignored(context: Context) -> Iterator[Hit]:
    """D8: .dockerignore excludes everything but named files."""
    if context.text(".dockerignore").splitlines()[:1] != ["**"]:
        yield error(0, ".dockerignore does not begin with **")


def constants(context: Context) -> Iterator[Hit]:
    """D9: no value of the plan in a RUN, a SHELL or a comment."""
    # Values reach a build in files and in quoted ENV and LABEL, so none can become shell code.
    values = sorted(_values(context.plan()))
    lines = [(item.line, item.script) for item in context.parsed.of("RUN", "SHELL")]
    # The first line names the command, which may contain the path of the definition.
    lines += [(line, text) for line, text in context.parsed.comments if line > 1]
    for line, text in lines:
        yield from (
            error(line, f"it contains the value {value!r:.60} of the plan") for value in values if value in text
        )


def _values(plan: dict[str, object]) -> set[str]:
    """Return the values of a plan that are long enough to be recognized and are not fixed paths of the image."""
    texts: set[str] = set()
    for name in ("title", "workdir", "conda", "pip", "family", "env", "labels"):
        value = plan.get(name)
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        texts |= {item for item in items if isinstance(item, str)}
    return {item for item in texts if len(item) > 5 and not item.startswith(("/opt/env", "/usr/", "/tmp/"))}  # noqa: PLR2004, S108


def stages(context: Context) -> Iterator[Hit]:
    """D15: a build stage and a final one; the environment is copied to the path where it was created."""
    if context.parsed.last_stage < 1:
        yield error(0, "there is only one stage")
    # An environment contains absolute paths, such as those in shebangs, so it works only where it was created.
    copies = [item for item in context.parsed.final("COPY") if "--from=build" in item.flags]
    if not any(item.text.split() == ["/opt/env", "/opt/env"] for item in copies):
        yield error(0, "the final stage does not copy /opt/env to /opt/env")


def user(context: Context) -> Iterator[Hit]:
    """D28: the last USER is numeric and not root."""
    users = context.parsed.final("USER")
    if not users:
        yield error(0, "the final stage has no USER")
    elif not re.fullmatch(r"[1-9][0-9]*:[0-9]+", users[-1].text):
        yield error(users[-1].line, f"USER {users[-1].text} is not a numeric uid:gid, or root")


def _variables(context: Context) -> dict[str, tuple[int, str]]:
    """Return the variables of the last stage with their lines."""
    return {name: (item.line, value) for item in context.parsed.final("ENV") for name, value in item.pairs}


def home(context: Context) -> Iterator[Hit]:
    """D30, D31: HOME and caches are set, and no bytecode is written at run time."""
    variables = _variables(context)
    for name in ("HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR"):
        if name not in variables:
            yield error(0, f"{name} is not set")
    if variables.get("PYTHONDONTWRITEBYTECODE", (0, ""))[1] != "1":
        yield error(0, "PYTHONDONTWRITEBYTECODE is not 1")


def activation(context: Context) -> Iterator[Hit]:
    """D32: the environment is active without the entry point."""
    variables = _variables(context)
    line, path = variables.get("PATH", (0, ""))
    if not path.startswith("/opt/env/bin:"):
        yield error(line, "PATH does not begin with /opt/env/bin")
    if "CONDA_PREFIX" not in variables and "VIRTUAL_ENV" not in variables:
        yield error(0, "neither CONDA_PREFIX nor VIRTUAL_ENV is set")


def entry_point(context: Context) -> Iterator[Hit]:
    """D34: there is an ENTRYPOINT."""
    if not context.parsed.final("ENTRYPOINT"):
        yield error(0, "there is no ENTRYPOINT")


def devices(context: Context) -> Iterator[Hit]:
    """D43: GPU access is set, with valid driver capabilities."""
    variables = _variables(context)
    cuda = (context.plan().get("resolution") or {}).get("cuda")
    line, visible = variables.get("NVIDIA_VISIBLE_DEVICES", (0, ""))
    if visible != ("all" if cuda else "void"):
        yield error(line, f"NVIDIA_VISIBLE_DEVICES is {visible!r}")
    line, text = variables.get("NVIDIA_DRIVER_CAPABILITIES", (0, ""))
    if cuda and (not set(text.split(",")) <= _CAPABILITIES or "compute" not in text):
        yield error(line, f"NVIDIA_DRIVER_CAPABILITIES is {text!r}")


def requirement(context: Context) -> Iterator[Hit]:
    """D44, D45: the container toolkit can parse NVIDIA_REQUIRE_CUDA completely; CUDA_VERSION is not set."""
    variables = _variables(context)
    if "NVIDIA_REQUIRE_CUDA" in variables:
        line, value = variables["NVIDIA_REQUIRE_CUDA"]
        if read_requirement(value) is None:
            yield error(line, f"NVIDIA_REQUIRE_CUDA={value} cannot be parsed by the container toolkit")
    elif (context.plan().get("resolution") or {}).get("cuda"):
        yield error(0, "NVIDIA_REQUIRE_CUDA is not set")
    if "CUDA_VERSION" in variables:
        yield error(
            variables["CUDA_VERSION"][0], "with CUDA_VERSION, the container toolkit treats this as a legacy image"
        )


def overrides(context: Context) -> Iterator[Hit]:
    """D47: CONDA_OVERRIDE_CUDA is set where conda solves, for the resolved CUDA."""
    cuda = (context.plan().get("resolution") or {}).get("cuda")
    solves = [item.line for item in context.parsed.of("RUN") if "conda env create" in item.text]
    before = {
        name: value
        for item in context.parsed.of("ENV")
        if solves and item.line < solves[0]
        for name, value in item.pairs
    }
    override = before.get("CONDA_OVERRIDE_CUDA")
    if solves and override != cuda:
        yield error(solves[0], f"the environment is solved with CONDA_OVERRIDE_CUDA={override} for CUDA {cuda}")


def labels(context: Context) -> Iterator[Hit]:
    """D49, D50: the image has OCI's standard labels and envkit's own."""
    label_names = {name for item in context.parsed.final("LABEL") for name, _ in item.pairs}
    for name in _OCI_NEEDED:
        if f"org.opencontainers.image.{name}" not in label_names:
            yield error(0, f"no label org.opencontainers.image.{name}")
    if f"{LABEL_PREFIX}.plan" not in label_names:
        yield error(0, f"no label {LABEL_PREFIX}.plan")


def line_ends(context: Context) -> Iterator[Hit]:
    """D53: UTF-8, LF, one final newline, no trailing blanks."""
    for name, data in context.files.items():
        if name.startswith(f"{COPIED}/"):  # the project's own files are copied unchanged
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            yield error(0, f"{name} is not UTF-8")
            continue
        if "\r" in text or not text.endswith("\n") or text.endswith("\n\n"):
            yield error(0, f"{name} has line ends other than LF, or does not end in exactly one LF")


def readable(context: Context) -> Iterator[Hit]:
    """D54: Docker supports every instruction, and all builders parse it in the same way."""
    for problem in context.parsed.problems:
        yield error(problem.line, problem.message)


_FUNCTIONS: dict[str, Callable[[Context], Iterator[Hit]]] = {
    "D1": images, "D3": directives, "D4": channels, "D5b": one_index, "D8": ignored, "D9": constants, "D15": stages,
    "D28": user, "D30": home, "D32": activation, "D34": entry_point, "D43": devices, "D44": requirement,
    "D47": overrides, "D49": labels, "D53": line_ends, "D54": readable,
}  # fmt: skip
RULES = {
    rule: [*filter(None, [_FUNCTIONS.get(rule)]), *(row.hits for row in ROWS if row.rule == rule)]
    for rule in sorted({*_FUNCTIONS, *(row.rule for row in ROWS)}, key=lambda rule: (len(rule), rule))
}
"""The checks of each rule."""
