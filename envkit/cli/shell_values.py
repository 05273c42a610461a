"""The values that a shell offers for options and arguments. Each function is a `shell_complete` of click.

Imports wait until a value is completed, so that `--help` stays fast. Values come from the shipped compatibility data;
rows of `--facts` are not offered.
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
_LAYOUT = "oci-layout"  # the file that makes a folder one
_MOST = 100  # layouts of a folder that are offered
_RECORDS = 12  # that are read for names of images
_HEAD = 4096  # bytes of a file in which its schema is looked for


def _offering(values: Callable[[], Iterable[tuple[str, str]]]) -> Complete:
    """Return what offers the values that begin with what was typed, in any case; each has a help text."""

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
    """Leave the names of files to the shell."""
    del context, parameter
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="file")]


def folders(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Leave the names of folders to the shell."""
    del context, parameter
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="dir")]


def definitions(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer envkit's own image definitions, and definitions and projects' files in this folder or in the typed one."""
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
    try:
        if path.suffix not in (".yaml", ".yml"):
            return False
        with path.open("rb") as file:
            return _DEFINITION.search(file.read(_HEAD)) is not None
    except OSError:
        return False


def images(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer images that were built or verified here, and layouts in envkit's own, this, or the typed folder."""
    del context, parameter
    from click.shell_completion import CompletionItem

    descriptions = dict(_built())
    for name, about in _layouts(typed.removeprefix("oci:")):
        descriptions.setdefault(name, about)
    return [CompletionItem(name, help=about) for name, about in descriptions.items() if name.startswith(typed)]


def images_or_files(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer images, and leave the names of files to the shell."""
    return [*images(context, parameter, typed), *files(context, parameter, typed)]


def pushed(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer those images that were built or verified here whose name has a registry."""
    items = images(context, parameter, typed)
    return [item for item in items if "/" in item.value and not item.value.startswith(("oci:", "docker-archive:"))]


def _built() -> Iterable[tuple[str, str]]:
    """Yield the images that the state folder knows by name."""
    from envkit.ground.errors import UsageError
    from envkit.ground.paths import state_dir
    from envkit.ground.state import read_last, verified_images

    state = state_dir()
    try:
        last = read_last(state)
        yield from ((name, "built last") for name in last.tags)
    except UsageError:  # nothing was built here yet
        pass
    for path in sorted((state / "images").glob(f"*/{_LAYOUT}")):
        yield f"oci:{path.parent}", "built here"
    yield from ((name, "verified here") for name in verified_images(state, _RECORDS))


def _layouts(typed: str) -> Iterable[tuple[str, str]]:
    """Yield the OCI layouts in the folder that was typed, and in its folders."""
    folder = typed[: typed.rfind("/") + 1]
    for pattern in (f"*/{_LAYOUT}", f"*/*/{_LAYOUT}"):
        for path in islice(Path(folder or ".").glob(pattern), _MOST):
            yield f"oci:{path.parent}", "OCI layout"


def checks(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer ids of checks; in a list (`C05,C0`) for its last item."""
    del context, parameter
    from click.shell_completion import CompletionItem

    from envkit.checks.catalog import catalog

    before, comma, last = typed.rpartition(",")
    named = set(before.upper().split(","))
    entries = sorted(catalog(), key=lambda entry: entry.id)
    return [
        CompletionItem(f"{before}{comma}{entry.id}", help=entry.title)
        for entry in entries
        if entry.id.startswith(last.upper()) and entry.id not in named
    ]


def _gpus() -> Iterable[tuple[str, str]]:
    from envkit.facts.load import load
    from envkit.resolve.gpus import find, in_one_word, sm

    rows = load().gpus
    descriptions = {"auto": "the GPUs of this machine"}
    for row in reversed(rows):
        # The shells add no quotes. What is left out may mean another row; `Quadro RTX 6000` and `RTX 6000 Ada` differ.
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


def _flavours() -> Iterable[tuple[str, str]]:
    from envkit.render.model import FLAVOURS

    return ((name, "") for name in FLAVOURS)


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
flavours = _offering(_flavours)
tables = _offering(_tables)
