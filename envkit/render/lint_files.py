"""Lint rules on the files of the build context besides the Dockerfile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envkit.ground.naming import LABEL_PREFIX
from envkit.render.copied import COPIED
from envkit.render.lint_model import Context, Hit, Rule, error

_LISTS = ("environment.yml", "torch.txt", "requirements.txt")
_HASHED = re.compile(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}")
_EXPLICIT = re.compile(r"https?://\S+\.(?:conda|tar\.bz2)#sha256:[0-9a-f]{64}")
_PAGE = re.compile(r"--find-links https?://\S+/")
# The lookahead allows one command: that of the built-in template, which installs explicit.txt.
_CONDA_INSTALLS = re.compile(
    r"\bconda (?:env create|env update|install|update|create(?! -y -q -p /opt/env --file explicit\.txt;))\b"
)
_OCI_NEEDED = ("title", "version", "base.name")


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
    for item in context.parsed.of("RUN"):
        if _CONDA_INSTALLS.search(item.script):
            yield error(item.line, "conda installs something other than explicit.txt in a locked build")


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
    """D8: .dockerignore excludes everything but named files, and the Dockerfile copies only those."""
    lines = context.text(".dockerignore").splitlines()
    if lines[:1] != ["**"]:
        yield error(0, ".dockerignore does not begin with **")
    named = {line[1:] for line in lines if line.startswith("!")}
    for item in context.parsed.of("COPY"):
        if any(flag.startswith("--from=") for flag in item.flags):
            continue
        for name in item.text.split()[:-1]:
            if name.rstrip("/") not in named and not (name.startswith(f"{COPIED}/") and COPIED in named):
                yield error(item.line, f"COPY of {name}, which is not in the build context")


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


RULES: dict[str, Rule] = {
    "D4": channels,
    "D5b": one_index,
    "D8": ignored,
    "D49": labels,
    "D53": line_ends,
}
