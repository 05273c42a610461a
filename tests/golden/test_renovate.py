"""The Renovate preset: Renovate's schema takes it, and it finds what files of envkit pin, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from tests.golden.cases import FOLDER, ROOT
from tests.golden.test_exports import schema_faults

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
                names |= {(hit["depName"], hit["currentValue"]) for hit in hits}
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


@pytest.mark.parametrize(
    "path",
    [
        "export-github/.github/workflows/envkit.yml",
        "export-github-lock/.github/workflows/envkit-lock.yml",
        "export-gitlab/.gitlab-ci.yml",
        "export-gitlab-lock/.gitlab/envkit-lock.yml",
    ],
)
def test_the_envkit_of_an_exported_job(path: str) -> None:
    inside = path.partition("/")[2]
    assert found(inside, (FOLDER / path).read_text()) == {("envkit", "1.2.3")}
