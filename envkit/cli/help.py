"""`envkit help`: show the pages of the documentation in the terminal, or search them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename
from typing import TYPE_CHECKING

import click

from envkit.cli.declare import argument, new_command
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
_HEADING = re.compile(r"^(#+) (.+)$")
_MADE = "reference"  # its tables have every word, so what people wrote comes first
_FIRST = ("start", "how-to")
_PAGES, _PLACES = 8, 3  # of a search: pages, and places of a page
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


@dataclass(frozen=True, slots=True)
class Place:
    """A section of a page that has every word of a search.

    Attributes:
        page: the page.
        heading: the section's heading, "" above the first one.
        line: the line of the section that says most, as plain text.
        score: how well it answers; higher is better.
    """

    page: Page
    heading: str
    line: str
    score: int


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


def search(words: Sequence[str], known: Mapping[str, Page]) -> list[Place]:
    """Return the sections that have every word, the best page first.

    A word matches at the beginning of a word of the page, in any case: `slow` finds "slower", and `arm` not "warm".
    Words of a page's topic and title count most, then those of a heading, then those of a command.
    """
    patterns = [_pattern(word) for word in words]
    places = [place for page in known.values() for place in _places(page, patterns)]
    best: dict[str, int] = {}
    for place in places:
        best[place.page.topic] = max(best.get(place.page.topic, 0), place.score)
    return sorted(places, key=lambda place: (-best[place.page.topic], place.page.topic, -place.score))


def _pattern(word: str) -> re.Pattern[str]:
    """Return the pattern of a word; `flash-attn`, `flash_attn` and `flash attn` are one."""
    text = r"[-_ ]?".join(re.escape(part) for part in re.split(r"[-_ ]", word) if part) or re.escape(word)
    return re.compile((r"(?<![a-z0-9])" if word.isascii() and word[:1].isalnum() else "") + text, re.IGNORECASE)


def _places(page: Page, patterns: Sequence[re.Pattern[str]]) -> Iterator[Place]:
    named = f"{page.topic} {page.title}"
    in_name = all(pattern.search(named) for pattern in patterns)
    for heading, lines in _sections(_COMMENT.sub("", page.text)):
        text = "\n".join([heading, *lines])
        if not all(pattern.search(text) for pattern in patterns):
            continue
        hits = {line: sum(bool(pattern.search(line)) for pattern in patterns) for line in lines}
        line = max(lines, key=lambda line: (hits[line], _is_command(line)), default="")
        if not hits.get(line):
            line = next((line for line in lines if _is_command(line)), line)  # only the heading has the words
        score = min(sum(map(bool, hits.values())), 5) + 5 * (_is_command(line) and bool(hits.get(line)))
        score += 10 * all(pattern.search(heading) for pattern in patterns) + 40 * in_name
        score = score // 5 if page.part == _MADE else score + 6 * (page.part in _FIRST)
        yield Place(page, heading, _around(_plain(line), patterns), score)


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each heading, "" for the title, with the lines below it; a `#` in a block of code is no heading."""
    heading, lines, in_code = "", list[str](), False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        found = None if in_code else _HEADING.match(line)
        if found is None:
            if line.strip() and not line.startswith("```"):
                lines.append(line)
            continue
        yield heading, lines
        heading, lines = "" if found[1] == "#" else found[2], []
    yield heading, lines


def _is_command(line: str) -> bool:
    return line.lstrip().startswith(("$ ", "envkit "))


def _plain(line: str) -> str:
    """Return a line of Markdown as it is read: cells of a table with a bar between them, links as their text."""
    cells = " | ".join(cell.strip() for cell in line.strip().strip("|").split("|"))
    return re.sub(r" {3,}", "  ", _LINK.sub(r"\1", cells).removeprefix("- ").replace("**", ""))


def _around(line: str, patterns: Sequence[re.Pattern[str]]) -> str:
    """Return at most `_WIDTH` characters of a line, with the first word that was searched for."""
    if len(line) <= _WIDTH:
        return line
    at = min((found.start() for pattern in patterns if (found := pattern.search(line))), default=0)
    begin = 0 if at < _WIDTH - 20 else line.rfind(" ", 0, at - 30) + 1
    part = line[begin : begin + _WIDTH - 3]
    return ("..." if begin else "") + (part if begin + len(part) == len(line) else part.rpartition(" ")[0] + "...")


def _topics(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the pages, and the commands that have no page."""
    del parameter
    from click.shell_completion import CompletionItem

    titles = {topic: page.title for topic, page in pages().items()}
    group = context.find_root().command
    for name in group.list_commands(context) if isinstance(group, click.Group) else ():
        titles.setdefault(name, f"the options of envkit {name}")
    return [CompletionItem(name, help=text) for name, text in titles.items() if name.startswith(typed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpFlags:
    """The argument of `envkit help`."""

    topic: tuple[str, ...] = argument(nargs=-1, shell_complete=_topics)


@new_command("help", HelpFlags)
def command(flags: HelpFlags) -> None:
    """Show the page TOPIC of the documentation, search the pages, or list them.

    For a command that has no page, its help is shown. Any other words are searched for: the pages and sections that
    have all of them are listed, the best first. Nothing is downloaded.

    \b
    envkit help                    list the pages
    envkit help images             every key of an image definition
    envkit help slow-training      a how-to
    envkit help build              the options of a command
    envkit help shared memory      where the pages have these words
    """  # noqa: D301 - click's mark for lines that stay as they are
    known, ctx = pages(), click.get_current_context()
    group = ctx.find_root().command
    commands = group.list_commands(ctx) if isinstance(group, click.Group) else []
    name = " ".join(flags.topic)
    if not flags.topic:
        click.echo(_listing(known))
    elif name in known:
        _show(terminal_text(known[name], known), options_of=name if name in commands else None)
    elif isinstance(group, click.Group) and name in commands:
        subcommand = group.get_command(ctx, name)
        assert subcommand is not None
        click.echo(subcommand.get_help(click.Context(subcommand, info_name=name, parent=ctx.parent)))
    elif places := search(name.split(), known):
        click.echo(_found(name, places))
    else:
        close = similar(name, [*known, *commands])
        raise UsageError(
            f"no page or command is called {name!r}, and no page has it",
            hint=f"envkit help {close[0]}" if close else "envkit help",
        )


def _found(words: str, places: Sequence[Place]) -> str:
    """Return the result of a search: each page with its best sections and a line of each."""
    by_page: dict[str, list[Place]] = {}
    for place in places:
        by_page.setdefault(place.page.topic, []).append(place)
    shown = list(by_page.items())[:_PAGES]
    width = max(len(topic) for topic, _ in shown)
    lines = [f"{words!r} in {len(by_page)} page{'s' if len(by_page) > 1 else ''}, the best first:"]
    for topic, inside in shown:
        lines += ["", f"envkit help {topic:<{width}}  {inside[0].page.title}"]
        for place in inside[:_PLACES]:
            lines.append(f"  {place.heading}" if place.heading else "  (at the beginning)")
            lines += [f"    {place.line}"] if place.line else []
    more = [topic for topic in by_page if topic not in dict(shown)]
    return "\n".join([*lines, *(["", f"also in: {', '.join(more)}"] if more else [])])


def _listing(known: dict[str, Page]) -> str:
    width = max(len(topic) for topic in known)
    parts = [
        "\n".join([title, *(f"  {page.topic:<{width}}  {page.title}" for page in known.values() if page.part == part)])
        for part, title in _PARTS.items()
    ]
    return "\n\n".join([*parts, "envkit help TOPIC shows a page; any other words are searched for."])


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
