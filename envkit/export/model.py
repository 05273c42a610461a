"""The interface of an exporter: a pure function from an order to the texts of files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from envkit import __version__
from envkit.fleet.expand import base_of
from envkit.fleet.model import Cell
from envkit.ground.errors import UsageError
from envkit.ground.naming import FILE_STEM
from envkit.ground.requirement import WAYS, Form, Requirement
from envkit.ground.settings import Mirrors
from envkit.image.name import HUB, Reference, parse_reference, split_tag
from envkit.plan import names

# Expressions that GitHub or GitLab would expand in the middle of a text.
_EXPRESSION = re.compile(r"\$\{\{|\$\[\[")
# From the OCI distribution specification, as LONGEST_TAG.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
CANDIDATE = "-candidate"
LONGEST_TAG = 128  # characters, from the OCI distribution specification


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The images that jobs are to build or verify, and how. Validated by `checked`."""

    cells: tuple[Cell, ...]
    definitions: Mapping[str, str]  # name of a cell -> its definition as typed; empty for a matrix
    matrix: str | None = None  # path of the matrix file as typed
    registry: str | None = None  # 'registry.example.com/team/train': repository of the images
    engine: str = "embedded"
    tier: str | None = None  # of verify; None = each plan's own
    gpus: int = 1  # GPUs of one verification
    jobs: int = 4  # maximum number of parallel jobs
    minutes: int = 120  # time limit of one cell
    version: str = __version__  # of the envkit that exports
    requirement: Requirement | None = None  # what the jobs install as envkit
    options: Mapping[str, str] = field(default_factory=dict)  # the kind's own, defaults filled in
    mirrors: Mirrors = field(default_factory=Mirrors)
    ca_bundle: str = ""  # text of the file that the mirrors name
    template_dirs: tuple[Path, ...] = ()  # the user's template folders, first wins
    command: str = "envkit export"  # the command as typed, for the first line of a file

    def image(self, cell: Cell) -> str:
        """Return the image's name and tag; without a registry, a name that is only valid on the building machine."""
        return f"{self.registry or 'envkit'}:{cell.name}"


Exporter = Callable[[Order], Mapping[str, str]]
"""Returns relative path -> text, the main file first. Raises UsageError if the kind cannot export the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One `--set NAME=VALUE` of a kind."""

    default: str
    about: str
    pattern: str  # what a value has to match in full

    def check(self, name: str, value: str) -> str:
        """Return the value after checking it.

        Raises:
            UsageError: the value does not match the pattern.
        """
        if not re.fullmatch(self.pattern, value):
            hint = f"--set {name}={shlex.quote(self.default)}" if self.default else f"{name}: {self.about}"
            raise UsageError(f"--set {name}={value!r:.100} is not a valid value ({self.about})", hint=hint)
        return value


def needs_gpu(cell: Cell) -> bool:
    """Return whether a cell's image is for NVIDIA GPUs."""
    return cell.plan.resolution.cuda is not None


def repository(text: str) -> Reference:
    """Return the repository that `--registry` names.

    Raises:
        UsageError: the name is invalid, or has a tag or a digest.
    """
    hint = "--registry registry.example.com/team/train; the tag is the cell's name"
    reference = parse_reference(text, what=f"--registry {text[:200]!r}")
    if reference.digest or split_tag(text)[1] is not None:
        raise UsageError(f"--registry {text!r:.200} names one image, not a repository", hint=hint)
    return reference


def installed(order: Order, refused: Mapping[Form, str]) -> Requirement:
    """Return what the jobs install as envkit.

    Args:
        order: the order.
        refused: forms that the jobs of a kind cannot use, with the reason; of paths, the relative ones.

    Raises:
        UsageError: the order has no requirement, or one of these forms.
    """
    if order.requirement is None:
        raise UsageError(
            "the jobs install envkit, which is on no package index yet, so the export has to say where from",
            details=WAYS[1:], hint=f"{WAYS[0]} (or the setting requirement)",
        )  # fmt: skip
    # The image of the job may have a file at an absolute path.
    absolute = order.requirement.form is Form.PATH and order.requirement.text.startswith("/")
    why = None if absolute else refused.get(order.requirement.form)
    if why is not None:
        others = [way for way, form in zip(WAYS, _OF_WAYS, strict=True) if form not in refused]
        raise UsageError(
            f"--requirement {order.requirement.text!r:.200} is {order.requirement.form.value}, but {why}",
            details=tuple(others[1:]), hint=others[0],
        )  # fmt: skip
    return order.requirement


def install_script(python: str = "python") -> list[str]:
    """Return the commands of a POSIX shell that install $REQUIREMENT with pip."""
    # The first call of pip checks the hash of this one file. The second one installs the file with its dependencies,
    # for which pip would otherwise demand hashes as well. The file must have the name of envkit's distribution.
    return [
        "wheels=$(mktemp -d)",
        'printf "%s\\n" "$REQUIREMENT" > "$wheels/requirement.txt"',
        f'{python} -m pip wheel --no-deps --wheel-dir "$wheels" --requirement "$wheels/requirement.txt"',
        f'{python} -m pip install "$wheels"/{FILE_STEM}-*.whl',
    ]


_OF_WAYS = (Form.URL, Form.GIT, Form.PIN, Form.IMAGE)


def logout(order: Order) -> str:
    """Return the command that removes the login of `docker login "${REGISTRY%%/*}"` from a shared machine.

    The docker client stores the login of Docker Hub under another name than its host, and `docker logout` finds it only
    without an argument.
    """
    hub = order.registry is not None and repository(order.registry).registry == HUB
    return "docker logout" if hub else 'docker logout "${REGISTRY%%/*}"'


def checked(order: Order) -> Order:
    """Return the order, after checking that its texts can be written into every file, with the host of its registry.

    Raises:
        UsageError: it has no cells, two cells have the same name, or a text cannot be quoted for all the programs that
            read it.
    """
    if not order.cells:
        raise UsageError("no image to export", hint="name an image definition, --matrix FILE or --all")
    cell_names = [cell.name for cell in order.cells]
    untaggable = next(
        (name for cell in order.cells for name in (cell.name, *cell.also) if not _TAG.fullmatch(name)), None
    )
    if untaggable is not None:
        raise UsageError(f"the image name {untaggable!r:.140} is not a valid tag", hint="rename its definition")
    duplicate = next((name for name in cell_names if cell_names.count(name) > 1), None)
    if duplicate is not None:
        raise UsageError(
            f"two images have the name {duplicate!r}",
            hint="use each definition once; definitions with the same file name are the same image",
        )
    if order.registry is not None:
        # Scripts log in to the part before the first slash, so a Docker Hub name needs its docker.io.
        order = replace(order, registry=repository(order.registry).place)
    texts = {
        "DEFINITION": list(order.definitions.values()),
        "--matrix": [order.matrix or ""],
        "--requirement": [order.requirement.text] if order.requirement else [],
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
        message = f"{what}: {value[:100]!r} cannot be put into the exported file: it {why}"
        raise UsageError(message, hint="use a plain name")


def candidate(name: str) -> str:
    """Return the tag of an image that is built but not yet verified on a GPU.

    Raises:
        UsageError: the tag would be longer than registries allow.
    """
    if len(name) + len(CANDIDATE) > LONGEST_TAG:
        raise UsageError(f"{name!r} is too long for a tag with the suffix {CANDIDATE}", hint="use a shorter name")
    return name + CANDIDATE
