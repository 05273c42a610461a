"""The completions of option values and arguments. Each function is a `shell_complete` of click.

Modules are imported only when a value is completed, so that `--help` stays fast. Values come from the shipped
compatibility data; rows of `--facts` are not offered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

Complete = Callable[["click.Context", "click.Parameter", str], list["CompletionItem"]]

_DEFINITION = re.compile(rb"^schema:[ \t]*[\"']?envkit\.image/", re.MULTILINE)
_LAYOUT = "oci-layout"  # the file that marks a folder as an OCI layout
# Limits, because a completion runs at every press of Tab.
_MOST = 100  # layouts that are offered of one folder
_RECORDS = 12  # newest records that are read for the names of images
_HEAD = 4096  # bytes at the start of a file in which its schema has to be named


def _offering(values: Callable[[], Iterable[tuple[str, str]]]) -> Complete:
    """Return a completion that offers the values that begin with the typed text, in any case, with their help texts."""

    def complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        del context, parameter
        from click.shell_completion import CompletionItem

        begun = typed.lower()
        return [CompletionItem(name, help=text or None) for name, text in values() if name.lower().startswith(begun)]

    return complete


def words(known: Iterable[str]) -> Complete:
    """Offer these words."""
    return _offering(lambda: ((word, "") for word in known))


def files(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Let the shell complete the names of files."""
    del context, parameter
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="file")]


def folders(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Let the shell complete the names of folders."""
    del context, parameter
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="dir")]


def definitions(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the shipped image definitions, and definitions and project files in this folder or in the typed one."""
    del context, parameter
    from click.shell_completion import CompletionItem

    from envkit.plan.definition import shipped
    from envkit.project.definition import FILES

    folder = typed[: typed.rfind("/") + 1]
    own = [] if folder else [CompletionItem(name, help="comes with envkit") for name in shipped()]
    try:
        paths = sorted(Path(folder or ".").iterdir())
    except OSError:
        paths = []
    local = [
        CompletionItem(f"{folder}{path.name}", help="of a project" if path.name in FILES else "image definition")
        for path in paths
        if path.name in FILES or _is_definition(path)
    ]
    return [item for item in (*own, *local) if item.value.startswith(typed)]


def _is_definition(path: Path) -> bool:
    from envkit.ground import foreign
    from envkit.ground.errors import UsageError

    try:
        if path.suffix not in (".yaml", ".yml"):
            return False
        with foreign.opened(path) as file:
            return _DEFINITION.search(file.read_at(0, _HEAD)) is not None
    except (OSError, UsageError):
        return False


def images(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer images that were built or verified here, and OCI layouts in the state folder, this, or the typed folder."""
    del context, parameter
    from click.shell_completion import CompletionItem

    descriptions = dict(_built())
    _, colon, path = typed.partition(":")  # only names of layouts are offered below, so this is what follows `oci:`
    for name, about in _layouts(path if colon else typed):
        descriptions.setdefault(name, about)
    return [CompletionItem(name, help=about) for name, about in descriptions.items() if name.startswith(typed)]


def images_or_files(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer images, and let the shell complete the names of files."""
    return [*images(context, parameter, typed), *files(context, parameter, typed)]


def pushed(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer images in registries that were built or verified here."""
    return [item for item in images(context, parameter, typed) if "/" in item.value and not _is_file(item.value)]


def _is_file(name: str) -> bool:
    from envkit.ground.errors import UsageError
    from envkit.image.name import InArchive, InLayout, image_name

    try:
        return isinstance(image_name(name), InLayout | InArchive)
    except UsageError:
        return False


def _built() -> Iterable[tuple[str, str]]:
    """Yield the images that were built or verified here, from the state folder."""
    from envkit.ground.errors import UsageError
    from envkit.ground.paths import state_dir
    from envkit.ground.state import OWN_IMAGES, read_last, verified_images

    state = state_dir()
    try:
        last = read_last(state)
        yield from ((name, "built last") for name in last.tags)
    except UsageError:  # nothing was built here yet
        pass
    for path in sorted((state / OWN_IMAGES).glob(f"*/{_LAYOUT}")):
        yield f"oci:{path.parent}", "built here"
    yield from ((name, "verified here") for name in verified_images(state, _RECORDS))


def _layouts(typed: str) -> Iterable[tuple[str, str]]:
    """Yield the OCI layouts one or two levels below the typed folder."""
    folder = typed[: typed.rfind("/") + 1]
    for pattern in (f"*/{_LAYOUT}", f"*/*/{_LAYOUT}"):
        for path in islice(Path(folder or ".").glob(pattern), _MOST):
            yield f"oci:{path.parent}", "OCI layout"


def checks(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer IDs of checks; in a list (`C05,C0`), for the last item."""
    del context, parameter
    from click.shell_completion import CompletionItem

    from envkit.checks.catalog import catalog

    before, comma, last = typed.rpartition(",")
    chosen = set(before.upper().split(","))
    entries = sorted(catalog(), key=lambda entry: entry.id)
    return [
        CompletionItem(f"{before}{comma}{entry.id}", help=entry.title)
        for entry in entries
        if entry.id.startswith(last.upper()) and entry.id not in chosen
    ]


def _gpus() -> Iterable[tuple[str, str]]:
    from envkit.facts.load import load
    from envkit.resolve.gpus import find, in_one_word, sm

    rows = load().gpus
    descriptions = {"auto": "the GPUs of this machine"}
    for row in reversed(rows):
        # Shells do not quote completions, so names are offered in one word, but only if that word still means the same
        # row: `Quadro RTX 6000` and `RTX 6000 Ada` are different GPUs.
        names = [name for product in row.products if find(name := in_one_word(product), rows, short=True) is row]
        descriptions |= dict.fromkeys(names, f"{sm(row.capability)} ({row.family})") | {sm(row.capability): row.family}
    return descriptions.items()


def _systems() -> Iterable[tuple[str, str]]:
    from envkit.facts.load import load

    for row in load().oses:
        yield row.id, row.title
        for alias in row.aliases:
            yield alias, row.title


def _torches() -> Iterable[tuple[str, str]]:
    from envkit.facts.load import load

    return ((name, "") for name in reversed(load().releases))


def _cudas() -> Iterable[tuple[str, str]]:
    from envkit.facts.load import load
    from envkit.ground.versions import key

    versions = {build.cuda for build in load().builds if build.cuda}
    return ((name, "") for name in sorted(versions, key=key, reverse=True))


def _engines() -> Iterable[tuple[str, str]]:
    from envkit.ground.settings import ENGINES

    return ((name, "") for name in ENGINES)


def _networks() -> Iterable[tuple[str, str]]:
    from envkit.ground.settings import NETWORKS

    return ((name, "") for name in NETWORKS)


def _presets() -> Iterable[tuple[str, str]]:
    from envkit.ground.settings import presets

    return ((name, row["name"]) for name, row in presets().items())


def _syntaxes() -> Iterable[tuple[str, str]]:
    from envkit.render.model import SYNTAXES

    return ((name, "") for name in SYNTAXES)


def _tables() -> Iterable[tuple[str, str]]:
    from envkit.facts.tables import TABLES

    return ((name, "") for name in (*(table.name for table in TABLES), "sources"))


def _sources() -> Iterable[tuple[str, str]]:
    from envkit.resolve.model import SOURCES

    return ((name, "") for name in SOURCES)


def _platforms() -> Iterable[tuple[str, str]]:
    from envkit.ground.platforms import PLATFORMS

    return ((name, "") for name in PLATFORMS)


def _templates() -> Iterable[tuple[str, str]]:
    from envkit.plan.definition import KINDS

    return ((name, "") for name in KINDS)


def _kinds() -> Iterable[tuple[str, str]]:
    from envkit.export.kinds import KINDS
    from envkit.ground import plugins

    added = ((plugin.name, plugin.distribution) for plugin in plugins.of(plugins.EXPORTS))
    return (*((name, kind.about) for name, kind in KINDS.items()), *added)


gpus = _offering(_gpus)
systems = _offering(_systems)
torches = _offering(_torches)
cudas = _offering(_cudas)
sources = _offering(_sources)
platforms = _offering(_platforms)
templates = _offering(_templates)
kinds = _offering(_kinds)
engines = _offering(_engines)
networks = _offering(_networks)
presets = _offering(_presets)
syntaxes = _offering(_syntaxes)
tables = _offering(_tables)
