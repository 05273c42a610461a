"""`envkit matrix check --online --index pytorch` against a copy of the PyTorch index's pages on loopback."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from envkit.cli.main import run
from envkit.facts.load import load
from envkit.ground.platforms import platform
from tests.lock.served import Served, Site
from tests.support.family_files import folders, listed

FACTS = load()
Check = Callable[..., tuple[int, str, str]]


@dataclass
class Pages:
    """The names on each page, which a test changes before it asks."""

    site: Site
    names: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def put(self, *, cut: tuple[str, str] | None = None) -> None:
        for (folder, package), names in self.names.items():
            links = "".join(f'<a href="/whl/{name.replace("+", "%2B")}">{name}</a><br/>\n' for name in names)
            html = f"<!DOCTYPE html><html><body>\n{links}</body></html>"
            if cut == (folder, package):
                html = html[: len(html) // 2]
            self.site.put(f"/whl/{folder}/{package}/", html.encode(), "text/html")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """The pages with the recorded files and the later ones of the facts."""
    with Served() as site:
        monkeypatch.setenv("ENVKIT_PYTORCH_INDEX", f"{site.url}/whl")
        found = Pages(site)
        for release in listed(FACTS):
            for folder in folders(release, FACTS) if release.index != "pypi" else ():
                for python in release.pythons:
                    tag = f"cp{python.replace('.', '')}"
                    machine = platform(release.platform).machine
                    name = f"{release.package}-{release.version}-{tag}-{tag}-linux_{machine}.whl"
                    found.names[folder, release.package].append(name)
        for row in FACTS.companions:
            if row.package in ("torchtext", "torchcodec") and row.index != "pypi":
                for python in row.pythons:
                    tag = f"cp{python.replace('.', '')}"
                    name = f"{row.package}-{row.pinned}-{tag}-{tag}-linux_{platform(row.platform).machine}.whl"
                    found.names[row.index, row.package].append(name)
        yield found


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the command."""

    def asked(*words: str) -> tuple[int, str, str]:
        code = run(["matrix", "check", "--online", "--index", "pytorch", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked


def test_the_recorded_pages_say_what_the_facts_say(pages: Pages, check: Check) -> None:
    pages.put()
    code, out, err = check()
    assert (code, "all match the facts" in out) == (0, True), out[:2000] + err


def test_a_name_that_changes_a_file_that_goes_and_one_that_comes_are_differences(pages: Pages, check: Check) -> None:
    torch, audio = pages.names["cu130", "torch"], pages.names["cu132", "torchaudio"]
    torch[:] = [name.replace("torch-2.9.1+cu130", "torch-2.9.1") for name in torch]
    gone = [name for name in torch if name.startswith("torch-2.10.0+cu130-cp314-") and "x86_64" in name]
    torch[:] = [name for name in torch if name not in gone]
    audio.append("torchaudio-2.12.0+cu132-cp312-cp312-manylinux_2_28_x86_64.whl")
    pages.put()
    code, out, err = check()
    assert (code, len(gone)) == (2, 1)
    what = "builds 2.9.1 13.0 pytorch linux-64: version: the facts say 2.9.1+cu130, the page cu130/torch says 2.9.1\n"
    assert what in out
    assert "builds 2.10.0 13.0 pytorch linux-64: pythons: the facts say 3.10 3.11 3.12 3.13 3.14, " in out
    assert "torchaudio 2.12.0+cu132 cu132 linux-64: pythons: the facts have no such row; " in out
    assert "4 differ from the facts" in err


def test_a_page_that_is_cut_is_named_and_says_nothing_about_files(pages: Pages, check: Check) -> None:
    pages.put(cut=("cu126", "torch"))
    code, out, err = check()
    assert code == 2
    assert out == f"{pages.site.url}/whl/cu126/torch/ is refused: the page is cut short, it ends inside <body>\n"
    assert "0 differ from the facts, 1 pages rejected" in err


def test_one_release_and_what_fits_it(pages: Pages, check: Check) -> None:
    pages.names["cu126", "torchvision"].clear()
    pages.names["cu126", "torchvision"].append("torchvision-0.99.0+cu126-cp312-cp312-linux_x86_64.whl")
    pages.put()
    code, out, _ = check("--torch", "2.7.1")
    assert code == 2
    row = "companions torchvision 0.22.1 cu126 linux-64"
    assert out == f"{row}: version: the facts say 0.22.1+cu126, the page cu126/torchvision says nothing\n"


def test_an_index_that_does_not_answer_is_exit_9(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVKIT_PYTORCH_INDEX", "http://127.0.0.1:9/whl")
    code, out, err = check()
    assert (code, out, "connection refused" in err) == (9, "", True)
    assert "hint: curl -I http://127.0.0.1:9/whl/cpu/torch/" in err
    assert "ENVKIT_PYTORCH_INDEX=URL sets another index" in err


@pytest.mark.parametrize(
    ("variable", "words", "said"),
    [
        ("flat+https://wheels.example.com/whl", (), "lists the files of a folder"),
        ("https://wheels.example.com/whl", ("--deep",), "--index pytorch reads only pages"),
    ],
)
def test_what_cannot_be_asked(
    check: Check, monkeypatch: pytest.MonkeyPatch, variable: str, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setenv("ENVKIT_PYTORCH_INDEX", variable)
    code, out, err = check(*words)
    assert (code, out, said in err) == (2, "", True)
