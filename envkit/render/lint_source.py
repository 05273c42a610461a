"""Lint rules on download sources, on values in instructions, and on features of builders."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from envkit.plan import names
from envkit.render import sources
from envkit.render.dockerfile import Instruction
from envkit.render.lint_model import Context, Hit, Rule, error, warning

# BuildKit looks for `syntax=` after # and after //, and in a JSON object at the beginning of the file.
_DIRECTIVE = re.compile(r"(?i)(?:#|//)\s*(?:syntax|escape|check)\s*=")
# A single |, not ||.
_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
_FROM_AS = 3  # words of FROM IMAGE AS NAME
_HOME_PIP_CACHE = "target=/root/.cache/pip"


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
            yield warning(line, f"{image} has no digest; a build pins it")


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


def foreign(context: Context) -> Iterator[Hit]:
    """D55: a RUN mounts only stages of this file; COPY takes from a stage or an image with a digest."""
    stages = _stages(context)
    for item in context.parsed.of("COPY", "RUN"):
        for image in _sources(item):
            if image.lower() in stages or image.isdigit():
                continue
            if item.keyword == "RUN" or not (sources.PINNED.fullmatch(image) or sources.LOCAL_ID.fullmatch(image)):
                yield error(
                    item.line,
                    f"uses files of {image}, which is not a stage"
                    + ("" if item.keyword == "RUN" else " and has no digest"),
                )


def readable(context: Context) -> Iterator[Hit]:
    """D54: Docker supports every instruction, and all builders parse it in the same way; no ONBUILD."""
    for problem in context.parsed.problems:
        yield error(problem.line, problem.message)
    for item in context.parsed.of("ONBUILD"):
        yield error(item.line, "ONBUILD runs in other builds, which this lint cannot check")


def platforms(context: Context) -> Iterator[Hit]:
    """D2: no flag and no variable in FROM."""
    for item in context.parsed.of("FROM"):
        if item.flags or "$" in item.text:
            yield error(item.line, "FROM has a flag or a variable")


def directives(context: Context) -> Iterator[Hit]:
    """D3: no parser directive, because BuildKit downloads and runs the image in `# syntax=`."""
    for number, line in enumerate(context.parsed.source.split("\n"), 1):
        if _DIRECTIVE.match(line.strip()) or line.lstrip().startswith("{"):
            yield error(number, "a parser directive")


def installers(context: Context) -> Iterator[Hit]:
    """D7: downloads are checked by SHA-256 and use certificates."""
    for item in context.parsed.of("ADD"):
        if not any(re.fullmatch(r"--checksum=sha256:[0-9a-f]{64}", flag) for flag in item.flags):
            yield error(item.line, "ADD without --checksum")
    for item in context.parsed.of("RUN"):
        if re.search(r"\b(?:curl|wget)\b", item.script) and "sha256sum -c" not in item.script:
            yield error(item.line, "a download that is not checked by sha256sum -c")
        if re.search(r"(?:^|\s)(?:-k|--insecure|--no-check-certificate)(?:\s|$)", item.script):
            yield error(item.line, "a download without certificate check")


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


def quoting(context: Context) -> Iterator[Hit]:
    """D10, D11: ENV and LABEL are lists of key="value" without control or format characters in the values."""
    for item in context.parsed.of("ENV", "LABEL"):
        if item.fault:
            yield error(item.line, f"{item.keyword} is not a list of key=value: {item.fault}")
        for name, value in item.pairs:
            if names.text(value):
                yield error(item.line, f"{item.keyword} {name} {names.text(value)}")


def secrets(context: Context) -> Iterator[Hit]:
    """D12: no build argument, no variable with a secret's name or a login in its value."""
    for item in context.parsed.of("ARG"):
        yield error(item.line, f"the build argument {item.text.split('=')[0]} would be visible in the image history")
    for item in context.parsed.of("ENV"):
        for name, value in item.pairs:
            if names.is_secret(name, value):
                yield error(item.line, f"the variable {name} looks like a secret")


def secret_mounts(context: Context) -> Iterator[Hit]:
    """D13: secrets are mounted only as .netrc or .condarc, for one step."""
    for item in context.parsed.of("RUN"):
        for flag in item.flags:
            if "type=secret" in flag and not re.search(r"target=/root/\.(?:netrc|condarc)(?:,|$)", flag):
                yield error(item.line, "a secret outside /root/.netrc and /root/.condarc")


def self_reference(context: Context) -> Iterator[Hit]:
    """D14: no ENV uses a variable."""
    for item in context.parsed.of("ENV", "LABEL", "WORKDIR", "USER"):
        if re.search(r"(?<!\\)\$", item.text):
            yield error(item.line, f"{item.keyword} expands a variable")


def builders(context: Context) -> Iterator[Hit]:
    """D18: no instruction in the classic syntax that only BuildKit reads."""
    if context.syntax == "buildkit":
        return
    for item in context.parsed.instructions:
        for flag in item.flags:
            if flag.startswith(("--mount", "--chmod", "--link", "--checksum", "--network", "--parents", "--exclude")):
                yield error(item.line, f"{flag.partition('=')[0]} needs BuildKit")
        if item.heredocs:
            yield error(item.line, "a heredoc needs BuildKit")


def privileges(context: Context) -> Iterator[Hit]:
    """D27: no step with more privileges than a default container, or another network."""
    for item in context.parsed.of("RUN"):
        for flag in item.flags:
            if flag.startswith(("--security", "--network", "--device")) or "type=ssh" in flag:
                yield error(item.line, f"{flag} gives the step unneeded privileges")


def shell(context: Context) -> Iterator[Hit]:
    """D26: every RUN begins with `set -eu` and has no pipe, because POSIX shells ignore failures in pipes."""
    for item in context.parsed.of("RUN"):
        if not item.text.startswith("set -eu;"):
            yield error(item.line, "RUN does not begin with `set -eu;`")
        if _PIPE.search(item.text):
            yield error(item.line, "RUN has a pipe")


def pip_options(context: Context) -> Iterator[Hit]:
    """D5: pip installs only wheels, from one index, without downloads in the layer; with a lock, exactly its wheels."""
    for item in context.parsed.of("RUN"):
        if "pip install" not in item.text:
            continue
        cached = any(_HOME_PIP_CACHE in flag for flag in item.flags)
        if "--no-cache-dir" not in item.text and not cached:
            yield error(item.line, "pip install without --no-cache-dir or a cache mount")
        if "--only-binary=:all:" not in item.text:
            yield error(item.line, "pip install without --only-binary=:all:")
        if "--extra-index-url" in item.text or "--find-links" in item.text:
            yield error(item.line, "pip install with a second index")
        for option in ("--require-hashes", "--no-deps") if context.locked else ():
            if option not in item.text:
                yield error(item.line, f"pip install without {option} in a locked build")


RULES: dict[str, Rule] = {
    "D1": images,
    "D2": platforms,
    "D3": directives,
    "D5": pip_options,
    "D7": installers,
    "D9": constants,
    "D10": quoting,
    "D12": secrets,
    "D13": secret_mounts,
    "D14": self_reference,
    "D18": builders,
    "D26": shell,
    "D27": privileges,
    "D54": readable,
    "D55": foreign,
}
