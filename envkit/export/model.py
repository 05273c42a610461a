"""The interface of an exporter: one function from an order to texts, without I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from envkit import __version__
from envkit.fleet.cells import base_of
from envkit.fleet.model import Cell
from envkit.ground.errors import UsageError
from envkit.ground.settings import Mirrors
from envkit.image.reference import HUB, Reference, parse_reference
from envkit.plan import names

# What other programs would expand in the middle of a text: GitHub's and GitLab's expressions.
_EXPRESSION = re.compile(r"\$\{\{|\$\[\[")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# A user alone is a name for ssh (git@) and a token for everything else.
_LOGIN = re.compile(r"://[^/\s@:]*:[^/\s@]*@|(?<!ssh)://[^/\s@]+@")
CANDIDATE = "-candidate"
LONGEST_TAG = 128  # characters, by the distribution specification of OCI


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The images that another engine is to build or verify, and how. Made by `checked`, trusted after."""

    cells: tuple[Cell, ...]
    definitions: Mapping[str, str]  # name of a cell -> its definition as typed; empty where a matrix says it
    matrix: str | None = None  # path of the matrix file as typed
    registry: str | None = None  # 'registry.example.com/team/train': where the images go and come from
    engine: str = "embedded"
    tier: str | None = None  # of verify; None = each plan's own
    gpus: int = 1  # GPUs of one verification
    jobs: int = 4  # cells at once, at most
    minutes: int = 120  # time limit of one cell
    version: str = __version__  # of the envkit that writes
    requirement: str = f"envkit=={__version__}"  # what pip is asked for on the other machine
    options: Mapping[str, str] = field(default_factory=dict)  # the kind's own, defaults filled in
    mirrors: Mirrors = field(default_factory=Mirrors)
    ca_bundle: str = ""  # text of the file that the mirrors name
    template_dirs: tuple[Path, ...] = ()  # the user's template folders, first wins
    command: str = "envkit export"  # what was typed, for the first line of a file

    def image(self, cell: Cell) -> str:
        """The image's name and tag; where no registry was given, one that stays on the machine that builds."""
        return f"{self.registry or 'envkit'}:{cell.name}"


Exporter = Callable[[Order], Mapping[str, str]]
"""Relative path -> text, the main file first. Raises UsageError where the order cannot be carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One `--set NAME=VALUE` of a kind."""

    default: str
    about: str
    pattern: str  # what a value has to match in full

    def check(self, name: str, value: str) -> str:
        """The value.

        Raises:
            UsageError: it is not one.
        """
        if not re.fullmatch(self.pattern, value):
            hint = f"--set {name}={shlex.quote(self.default)}" if self.default else f"{name}: {self.about}"
            raise UsageError(f"--set {name}={value!r:.100} is not {self.about}", hint=hint)
        return value


def needs_gpu(cell: Cell) -> bool:
    """Whether a cell's image is made for NVIDIA GPUs."""
    return cell.plan.resolution.cuda is not None


def repository(text: str) -> Reference:
    """The repository that `--registry` names.

    Raises:
        UsageError: the name is invalid, or has a tag or a digest.
    """
    hint = "--registry registry.example.com/team/train; the tag is the cell's name"
    reference = parse_reference(text, what=f"--registry {text[:200]!r}")
    if reference.digest or f"{reference.repository}:" in text:
        raise UsageError(f"--registry {text!r:.200} names one image, not a repository", hint=hint)
    return reference


def logout(order: Order) -> str:
    """The command that takes back what `docker login "${REGISTRY%%/*}"` kept on a machine that others use too.

    The docker client keeps Docker Hub's login under another name than its host, and only finds it when none is given.
    """
    hub = order.registry is not None and repository(order.registry).registry == HUB
    return "docker logout" if hub else 'docker logout "${REGISTRY%%/*}"'


def checked(order: Order) -> Order:
    """The order, whose texts can stand in any of the files; its registry is written with its host.

    Raises:
        UsageError: there is nothing in it, two cells have one name, a text is one that no quoting carries through all
            the programs that read it, or the requirement holds a login.
    """
    if not order.cells:
        raise UsageError("no image to export", hint="name an image definition, --matrix FILE or --all")
    given = [cell.name for cell in order.cells]
    untaggable = next(
        (name for cell in order.cells for name in (cell.name, *cell.also) if not _TAG.fullmatch(name)), None
    )
    if untaggable is not None:
        raise UsageError(f"the image name {untaggable!r:.140} is not a valid tag", hint="rename its definition")
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"two images have the name {twice!r}",
            hint="use each definition once; definitions with the same file name are the same image",
        )
    if order.registry is not None:
        # Scripts log in at what stands before the first slash, which is docker.io where nothing says so.
        order = replace(order, registry=repository(order.registry).place)
    if _LOGIN.search(order.requirement):
        raise UsageError(
            "--requirement contains a login, which everyone who reads the exported file would see",
            hint="remove it from the URL and use a netrc file on the machine that installs it",
        )
    texts = {
        "DEFINITION": list(order.definitions.values()),
        "--matrix": [order.matrix or ""],
        "--requirement": [order.requirement],
        "--set": [*order.options.values()],
        "the base of an image": [base_of(cell, "") for cell in order.cells],
        "the title of an image": [cell.plan.title for cell in order.cells],
        "the command line": [order.command],
    }
    for what, values in texts.items():
        for value in values:
            _require_plain(what, value)
    return order


def _require_plain(what: str, value: str) -> None:
    why = names.text(value)
    if why is None and not value.isprintable():
        why = "contains a character that is not printable"
    if why is None and (match := _EXPRESSION.search(value)):
        why = f"contains {match.group()!r}, which CI systems expand"
    if why is not None:
        fault = f"{what}: {value[:100]!r} cannot be put into the exported file: it {why}"
        raise UsageError(fault, hint="use a plain name")


def candidate(name: str) -> str:
    """The tag of an image that is built and not yet verified on a GPU.

    Raises:
        UsageError: no registry takes a tag of that length.
    """
    if len(name) + len(CANDIDATE) > LONGEST_TAG:
        raise UsageError(f"{name!r} is too long for a tag with the suffix {CANDIDATE}", hint="use a shorter name")
    return name + CANDIDATE
