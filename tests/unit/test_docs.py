"""The documentation: every page is in the navigation, links resolve, commands parse, and printed answers are real."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest
import yaml

from envkit.cli import main
from envkit.facts.load import load
from envkit.ground import cache
from tests import words
from tests.support import documented
from tests.support.command_lines import of_line, parsed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
GUIDES = [page for page in PAGES if page.parent != DOCS]
TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG"))]

_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)|<img src=\"([^\"]+)\"")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(envkit [^`]+)`")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings that both GitHub and MkDocs make."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading)).strip().lower()
        github, mkdocs = words.replace(" ", "-"), re.sub(r"[-\s]+", "-", words)
        found |= {github} & {mkdocs}
    return found


def entries(nav: list[object]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, list):
                yield from entries(value)
            else:
                yield str(value)


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.safe_load((ROOT / "website/mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(entries(site["nav"])) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_a_page_has_a_name_of_its_own() -> None:
    """`envkit help TOPIC` names a page without its folder."""
    topics = [page.stem for page in PAGES]
    assert len(topics) == len(set(topics))


@pytest.mark.parametrize("page", TEXTS, ids=named)
def test_every_link_and_anchor_resolves(page: Path) -> None:
    wrong = []
    for link, picture in _LINK.findall(prose(page)):
        path, _, anchor = (link or picture).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link or picture)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_list_or_table_begins_after_an_empty_line(page: Path) -> None:
    """GitHub does not need it; MkDocs would make one paragraph of both."""
    marks = re.compile(r"[*-] |\d\. |\|")
    text = prose(page)
    wrong = [
        line
        for above, line in pairwise(text.splitlines())
        if marks.match(line) and above.strip() and not marks.match(above) and not above.startswith((" ", "<!--"))
    ]
    assert wrong == []


@pytest.mark.parametrize("page", documented.pages(), ids=named)
def test_every_command_is_one_that_envkit_takes(page: Path) -> None:
    lines = [line for line, _ in documented.lines_of(page)]
    if page in GUIDES:
        lines += _INLINE.findall(prose(page))
    for line in lines:
        for typed in of_line(line):
            if typed[:1] != ["COMMAND"]:
                try:
                    parsed(typed)
                except click.UsageError as error:
                    pytest.fail(f"{line}: {error.format_message()}")


def test_an_option_that_does_not_exist_would_be_noticed() -> None:
    (typed,) = of_line("cat x | envkit run train:1 --no-such-option > out # comment")
    assert typed == ["run", "train:1", "--no-such-option"]
    with pytest.raises(click.UsageError, match="--no-such-option"):
        parsed(typed)


RUN = [one for one in dict.fromkeys(documented.commands()) if one.state == documented.RUN]


@pytest.mark.parametrize("command", RUN, ids=str)
def test_a_command_that_needs_no_network_engine_or_gpu_runs_and_prints_what_the_page_shows(
    command: documented.Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVKIT_REQUIREMENT", documented.REQUIREMENT)
    documented.prepare(tmp_path, command)
    code = main.run(list(command.words))
    captured = capsys.readouterr()
    printed = (captured.out + captured.err).rstrip("\n")
    assert (code == 0) is not command.answer.startswith("error: "), printed
    assert documented.fits(command.answer, printed), printed


def test_every_reason_to_parse_a_command_only_holds_for_one() -> None:
    """The counts are kept in tests/golden/files/documented.txt."""
    reasons = {one.state for one in documented.commands()}
    assert {reason for reason, _ in documented.PARSED_ONLY} <= reasons
    assert sum(bool(one.answer) for one in RUN) >= 9


def test_the_drivers_of_the_cuda_guide_are_those_of_the_facts() -> None:
    rows = re.findall(
        r"^\| (\d+\.\d+) \| ([\d.]+) \| ([\d.]+) \|$", prose(DOCS / "how-to/cuda-version.md"), re.MULTILINE
    )
    facts = load()
    assert len(rows) >= 6
    for cuda, native, minimum in rows:
        first = next(one for one in facts.toolkits if str(one.toolkit).startswith(f"{cuda}."))
        major = next(one for one in facts.compat if str(one.cuda_major) == cuda.partition(".")[0])
        assert (str(first.linux_min), str(major.linux_min)) == (native, minimum)


def test_the_documentation_is_short() -> None:
    """`python -m tests.words` prints the words of each page."""
    assert words.written(words.counted()) <= words.LIMIT


def test_only_pages_that_are_made_from_code_or_data_are_not_counted() -> None:
    made = [page for page in PAGES if words.is_reference(named(page))]
    assert len(made) >= 10
    assert [named(page) for page in made if words.MADE not in page.read_text(encoding="utf-8")[:600]] == []
    assert words.written({"docs/a.md": 3, "docs/reference/b.md": 5, "README.md": 2}) == 5


def test_every_page_that_sets_a_machine_up_installs_the_same_packages() -> None:
    for page in (ROOT / "README.md", DOCS / "start/install.md", DOCS / "zh/zh.md"):
        lines = [line for line in page.read_text(encoding="utf-8").splitlines() if "apt-get install -y" in line]
        machine, container = (set(line.partition("#")[0].split()) for line in lines)
        assert machine ^ container == {"bubblewrap", "proot"}, page
        assert machine >= {"python3-venv", "mmdebstrap", "apt-get", "update"}, page
    assert all("~/envkit " not in page.read_text(encoding="utf-8") for page in TEXTS)


def test_the_page_of_the_cache_names_the_folder_of_every_kind() -> None:
    rows = [line.split("|")[1:3] for line in (DOCS / "cache.md").read_text().splitlines() if line.startswith("| ")]
    table = {
        name.strip(): set(re.findall("`([^`]+)`", folders)) for names, folders in rows for name in names.split(",")
    }
    assert {name for name in table if name != "entries"} == set(cache.ROWS)
    shown = {kind: "layers/<digest>" if kind == cache.UNPACKED else kind.folder for kind in cache.KINDS}
    assert {folder for kind, folder in shown.items() if folder not in table[kind.row]} == set()
    assert set().union(*table.values()) == {*shown.values(), cache.NOTES.folder}
