from pathlib import Path

import pytest

from envkit.cli.help import pages, search, terminal_text
from envkit.cli.main import COMMANDS, run
from tests.support.command_lines import parsed


def test_without_a_topic_every_page_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help"]) == 0
    out = capsys.readouterr().out
    assert [out.index(f"\n{part}\n") for part in ("How-to", "Reference and explanation")] == sorted(
        out.index(f"\n{part}\n") for part in ("How-to", "Reference and explanation")
    )
    assert out.startswith("Start\n  first-image ")
    for topic, page in pages().items():
        assert f"  {topic} " in out
        assert page.title in out


def test_a_topic_shows_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "images"]) == 0
    assert capsys.readouterr().out.startswith("# Image definitions\n")


def test_a_page_of_a_command_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "verify"]) == 0
    assert capsys.readouterr().out.endswith("`envkit verify --help` lists the options.\n")


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - set(pages())))
def test_a_command_without_a_page_shows_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", command]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: envkit {command}")


def test_an_unknown_topic_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "imges"]) == 2
    assert capsys.readouterr().err == (
        "error: no page or command is called 'imges', and no page has it\n\nhint: envkit help images\n"
    )


@pytest.mark.parametrize(
    ("words", "first", "line"),
    [
        (["offline"], "mirrors", "$ envkit build image.yaml --engine embedded --locked envkit.lock --offline"),
        (["flash-attn"], "extensions", "--with flash-attn"),
        (["flash_attn"], "extensions", "--with flash-attn"),
        (["slow"], "slow-training", "data-bound"),
        (["singularity"], "apptainer", "Singularity"),
        (["NCCL", "hang"], "troubleshooting", "NCCL_DEBUG=INFO"),
        (["proxy"], "mirrors", "proxy"),
        (["notebook"], "run-it", "$ envkit run jupyter"),
        (["镜像站"], "zh-mirrors", "镜像站"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_words_that_name_no_page_are_searched_for(
    words: list[str], first: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["help", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{' '.join(words)!r} in ")
    assert shown[2].split()[:3] == ["envkit", "help", first]
    assert line in "\n".join(shown[3:10])


def test_a_search_ranks_names_over_headings_over_lines_and_made_pages_last(tmp_path: Path) -> None:
    texts = {
        "a": "# Other\n\nText about widgets.\n",
        "b": "# Other too\n\n## Widgets\n\nNothing.\n\n```\nenvkit resolve --here\n# not a heading: widgets\n```\n",
        "widget": "# The page\n\nWidget.\n",
        "how-to/c": "# Third\n\nMore widgets.\n",
        "reference/d": "# Table\n\n## Widgets\n\n| widgets | midwidgets |\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.md").write_text(text)
    found = search(["widget"], pages(tmp_path))
    assert [place.page.topic for place in found] == ["widget", "b", "c", "d", "a"]
    assert [(place.heading, place.line) for place in found][1] == ("Widgets", "# not a heading: widgets")
    assert search(["idget"], pages(tmp_path)) == []
    assert [place.page.topic for place in search(["widgets", "nothing"], pages(tmp_path))] == ["b"]
    assert search(["+"], pages(tmp_path)) == []


def test_a_long_line_is_cut_around_the_word(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(f"# A\n\n{'before ' * 40}needle {'after ' * 40}\n")
    (place,) = search(["needle"], pages(tmp_path))
    assert "needle" in place.line
    assert len(place.line) <= 106
    assert place.line.startswith("...before")
    assert place.line.endswith("...")


def test_links_become_commands_or_text(tmp_path: Path) -> None:
    (tmp_path / "how-to").mkdir()
    (tmp_path / "lock.md").write_text("# The lock\n")
    (tmp_path / "how-to" / "ci.md").write_text(
        '# CI\n\n<img src="a.png">\n\n<!-- made -->\n[lock.md](../lock.md), [the codes](../lock.md#codes), '
        "[below](#x), [SECURITY.md](../../SECURITY.md), [Dask](https://dask.example.com)\n"
    )
    known = pages(tmp_path)
    assert (known["ci"].part, known["lock"].part) == ("how-to", "")
    assert terminal_text(known["ci"], known) == (
        "# CI\n\n`envkit help lock`, the codes (`envkit help lock`), below, SECURITY.md, [Dask](https://dask.example.com)\n"
    )


def test_every_hint_at_a_page_names_one() -> None:
    """Hints say `envkit help TOPIC`, because a wheel has no folder docs."""
    package = Path(__file__).parents[3] / "envkit"
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    hints = [(path, part.split("`")[0]) for path, text in sources.items() for part in text.split("`envkit help ")[1:]]
    assert len(hints) >= 6
    for path, topic in hints:
        assert parsed(["help", *topic.split()]), path
        assert path.name == "help.py" or topic in pages(), (path, topic)
