"""`envkit help`: show the pages of the documentation in the terminal."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename
from typing import TYPE_CHECKING

import click

from envkit.cli.declare import new_command
from envkit.ground.errors import UsageError
from envkit.ground.paths import data_folder
from envkit.ground.text import similar

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PARTS = {
    "start": "Start",
    "zh": "中文",
    "how-to": "How-to",
    "": "Reference and explanation",
    "reference": "Reference, from the code",
}
_WIDTH = 100  # columns; prose in longer lines is hard to read
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_IMAGE = re.compile(r"^<img [^>]*>\n\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)\s]*)\)")  # [Evidence](facts.md#evidence)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation.

    Attributes:
        topic: its name without folder and suffix.
        part: its folder below docs, "" for docs itself.
        title: its first heading.
        text: Markdown.
    """

    topic: str
    part: str
    title: str
    text: str


def pages(folder: Path | None = None) -> dict[str, Page]:
    """Return the pages below a folder (default: those of this installation) by topic, without the index.

    Raises:
        EnvironmentProblem: the installation has no documentation.
    """
    root = data_folder("docs") if folder is None else folder
    by_topic = {}
    for path in sorted(root.rglob("*.md")):
        if path.name != "index.md":
            text = path.read_text(encoding="utf-8")
            title = text.partition("\n")[0].removeprefix("# ")
            part = "" if path.parent == root else path.parent.name
            by_topic[path.stem] = Page(topic=path.stem, part=part, title=title, text=text)
    return by_topic


def terminal_text(page: Page, topics: Collection[str]) -> str:
    """Return a page as Markdown for a terminal: without comments and pictures, links to other pages as commands."""

    def as_command(link: re.Match[str]) -> str:
        text, target = link[1], basename(link[2].partition("#")[0])
        topic = target.removesuffix(".md")
        if topic == target or topic not in topics:
            return text  # a section of this page, or a file of the repository
        return f"`envkit help {topic}`" if text == target else f"{text} (`envkit help {topic}`)"

    return _LINK.sub(as_command, _IMAGE.sub("", _COMMENT.sub("", page.text)))


def _topics(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the pages, and the commands that have no page."""
    del parameter
    from click.shell_completion import CompletionItem

    titles = {topic: page.title for topic, page in pages().items()}
    group = context.find_root().command
    for name in group.list_commands(context) if isinstance(group, click.Group) else ():
        titles.setdefault(name, f"the options of envkit {name}")
    return [CompletionItem(name, help=text) for name, text in titles.items() if name.startswith(typed)]


@new_command("help")
@click.argument("topic", required=False, shell_complete=_topics)
@click.pass_context
def command(ctx: click.Context, topic: str | None) -> None:
    """Show the page TOPIC of the documentation, or list the pages.

    For a command that has no page, its help is shown. Nothing is downloaded.

    \b
    envkit help                    list the pages
    envkit help images             every key of an image definition
    envkit help slow-training      a how-to
    envkit help build              the options of a command
    """  # noqa: D301 - click's mark for lines that stay as they are
    known = pages()
    group = ctx.find_root().command
    commands = group.list_commands(ctx) if isinstance(group, click.Group) else []
    if topic is None:
        click.echo(_listing(known))
    elif topic in known:
        _show(terminal_text(known[topic], known), options_of=topic if topic in commands else None)
    elif isinstance(group, click.Group) and topic in commands:
        subcommand = group.get_command(ctx, topic)
        assert subcommand is not None
        click.echo(subcommand.get_help(click.Context(subcommand, info_name=topic, parent=ctx.parent)))
    else:
        close = similar(topic, [*known, *commands])
        raise UsageError(
            f"there is no page or command {topic!r}", hint=f"envkit help {close[0]}" if close else "envkit help"
        )


def _listing(known: dict[str, Page]) -> str:
    width = max(len(topic) for topic in known)
    parts = [
        "\n".join([title, *(f"  {page.topic:<{width}}  {page.title}" for page in known.values() if page.part == part)])
        for part, title in _PARTS.items()
    ]
    return "\n\n".join([*parts, "envkit help TOPIC shows a page."])


def _show(text: str, *, options_of: str | None) -> None:
    """Print a page: formatted and paged on a terminal, as Markdown elsewhere."""
    from envkit.cli.console import color

    if options_of:
        text += f"\n`envkit {options_of} --help` lists the options.\n"
    if not color():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.width = min(console.width, _WIDTH)
    with console.capture() as formatted:
        console.print(Markdown(text))
    click.echo_via_pager(formatted.get())
