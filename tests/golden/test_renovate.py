"""The Renovate preset: Renovate's schema takes it, and it finds what files of envkit pin, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from envkit.ground.requirement import parse
from tests.golden.cases import ROOT
from tests.golden.test_exports import schema_faults
from tests.support.exports import exported

PRESET = ROOT / "ci" / "renovate.json"
DEFINITION = """schema: envkit.image/1
title: Pins
request: {torch: "2.7.1", python: "3.11"}
conda: [scipy >=1.11]
pip: [einops==0.8.0, "uvicorn[standard]==0.30.1", tqdm>=4,
  'left-pad == 1.0.0rc1']
"""


def found(path: str, text: str) -> set[tuple[str, str]]:
    """What Renovate would look up: its regular expressions are RE2's, which Python's are for these."""
    names = set()
    for manager in json.loads(PRESET.read_text())["customManagers"]:
        if any(re.search(pattern[1:-1], path) for pattern in manager["managerFilePatterns"]):
            for pattern in manager["matchStrings"]:
                hits = re.finditer(pattern.replace("(?<", "(?P<"), text)
                for row in map(re.Match.groupdict, hits):
                    name, value = ("depName", "currentValue") if "depName" in row else ("packageName", "currentDigest")
                    names.add((row[name], row[value]))
    return names


def test_renovates_schema_takes_it() -> None:
    assert schema_faults("vendor.renovate", PRESET) == ""


def test_the_schema_is_awake(tmp_path: Path) -> None:
    tree = json.loads(PRESET.read_text())
    tree["customManagers"][0] |= {"customType": "regexp", "matchStrings": "x"}
    bad = tmp_path / "renovate.json"
    bad.write_text(json.dumps(tree))
    assert "customManagers[0]" in schema_faults("vendor.renovate", bad)


def test_its_expressions_are_those_of_re2() -> None:
    assert not re.search(r"\(\?(?:[=!]|<[=!])|\\[1-9]", PRESET.read_text())


@pytest.mark.parametrize("path", ["image.yaml", "jobs/train.image.yml", "images/train.yaml"])
def test_pinned_packages_of_a_definition(path: str) -> None:
    wanted = {("einops", "0.8.0"), ("uvicorn", "0.30.1"), ("left-pad", "1.0.0rc1")}
    assert found(path, DEFINITION) == wanted
    assert found("docs/other.yaml", DEFINITION) == set()


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_the_commit_of_an_exported_job(kind: str) -> None:
    source, commit = "https://git.example/team/envkit.git", "0123456789abcdef0123456789abcdef01234567"
    files = exported(kind, ("cpu",), requirement=parse(f"git+{source}@{commit}"))
    ((path, text),) = files.items()
    assert found(path, text) == {(source, commit)}


def test_a_version_of_an_index_is_not_updated_because_its_hashes_would_not_fit() -> None:
    ((path, text),) = exported("github", ("cpu",)).items()
    assert found(path, text) == set()
