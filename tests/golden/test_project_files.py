"""Files by which services know the project: their schemas take them, and they say the same as the package."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from envkit import __version__
from tests.golden.cases import ROOT
from tests.golden.test_exports import schema_faults
from tests.support.command_lines import of_line, parsed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"
FORMS = sorted(path for path in TEMPLATES.iterdir() if path.name != "config.yml")
_COMMAND = re.compile(r"`(envkit [^`]+)`")


def test_the_citation_says_what_the_package_says() -> None:
    assert schema_faults("vendor.citation-file-format", ROOT / "CITATION.cff") == ""
    assert CITATION["version"] == __version__
    assert f"## [{__version__}] - {CITATION['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert CITATION["license"] == PROJECT["license"]
    assert [one["name"] for one in CITATION["authors"]] == [one["name"] for one in PROJECT["authors"]]
    assert CITATION["keywords"] == PROJECT["keywords"]


def test_the_newest_changes_are_short_sentences_in_groups() -> None:
    """The file is merged by union, so a rebase can bring a rewritten bullet back: outside of its group, and long."""
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    groups = [group.split("\n- ") for group in newest.split("\n### ")[1:]]
    bullets = [re.sub(r"\]\(\S+\)", "]", " ".join(bullet.split())) for _, *rest in groups for bullet in rest]
    assert len(bullets) >= 5
    assert [one for one in bullets if len(one.split()) > 40 or ";" in one or bullets.count(one) > 1] == []
    assert [title.strip() for title, *rest in groups if not 5 <= len(rest) <= 35] == []


def test_the_forms_fit_githubs_schemas() -> None:
    assert len(FORMS) == 3
    assert schema_faults("vendor.github-issue-forms", *FORMS) == ""
    assert schema_faults("vendor.github-issue-config", TEMPLATES / "config.yml") == ""


def test_the_schemas_are_awake(tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text("name: x\ndescription: x\nbody: [{type: textfield}]\n")
    assert "textfield" in schema_faults("vendor.github-issue-forms", tmp_path / "bad.yml")
    (tmp_path / "bad.cff").write_text("cff-version: 1.2.0\ntitle: x\nauthors: []\n")
    assert "message" in schema_faults("vendor.citation-file-format", tmp_path / "bad.cff")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_commands_in_a_form_are_envkits(path: Path) -> None:
    for line in _COMMAND.findall(path.read_text()):
        for words in of_line(line.replace("...", "")):
            parsed(words)


def test_the_threat_model_is_there() -> None:
    titles = re.findall(r"^## (.+)$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert {"How to report a vulnerability", "Who is trusted with what", "Limits"} <= set(titles)
