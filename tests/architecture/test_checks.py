"""A check is one folder: adding it takes one folder, removing it removes one folder, and nothing else names it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import envkit
from envkit.checks.catalog import catalog

PACKAGE = Path(envkit.__file__).parent
CHECKS = PACKAGE / "checks"
FOLDERS = sorted(path for path in CHECKS.iterdir() if path.is_dir() and path.name != "__pycache__")
FILES = {"observe.py", "judge.py", "check.yaml"}
CHECK_ID = re.compile(r"C\d\d")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_check_is_its_files_and_nothing_else(folder: Path) -> None:
    found = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
    # The empty __init__.py makes it a package for import contracts and zip files.
    assert found - {"show.py"} == {*FILES, "__init__.py"}
    assert (folder / "__init__.py").read_bytes() == b""


def test_every_folder_is_a_check_of_the_catalog_with_an_id_of_its_name() -> None:
    assert {entry.folder: entry.id.lower() for entry in catalog()} == {path.name: path.name[:3] for path in FOLDERS}


def listed_ids(path: Path) -> list[str]:
    """The list, tuple, set or dictionary displays of a module that have check ids of two checks or more."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        items = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else []
        items = [key for key in node.keys if key is not None] if isinstance(node, ast.Dict) else items
        texts = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        ids = {text[:3] for text in texts if CHECK_ID.match(text)}
        found += [f"{path.name}:{node.lineno}: {sorted(ids)}"] if len(ids) > 1 else []  # type: ignore[attr-defined]
    return found


def test_no_other_module_lists_checks() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(CHECKS) or path.parent == CHECKS]
    assert [fault for path in modules for fault in listed_ids(path)] == []


def test_no_other_module_imports_a_check() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(CHECKS) or path.parent == CHECKS]
    assert [path for path in modules if re.search(r"checks\.c\d\d_", path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("text", ['RULES = {"C10": 1, "C12": 2}', 'ORDER = ["C10.h2d", "C12"]', 'a = {"C01", "C02"}'])
def test_a_dispatch_list_is_noticed(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(text)
    assert listed_ids(tmp_path / "module.py")


CARD = """\
id: C90
title: a planted check
topic: Other checks
tier: quick
needs: host
verifies: that one folder is a check
counts: informs
budget_s: 1
thresholds:
  C90.line:
    applies_to: [C90]
    type: minimum
    gates: false
    unit: "1"
    values: {warn_below: 2}
    source: [this test]
"""
OBSERVE = """\
from envkit.smoke.observation import control, ran


def run(ctx):
    return [ran("C90.answer", "host", {"answer": 42}, [control("planted", True)])]
"""
JUDGE = """\
def judge(case):
    case.use("C90.line")
    return case.passed(f"answer {case.value('answer'):.0f}")
"""
SHOW = """\
from envkit.checks.sheet import Sheet, Shown, tables


def show(checks):
    rows = [["answer", str(check["observed"]["answer"])] for check in checks]
    return Shown(ident="planted", title="Planted", sheets=tables(Sheet("Planted", ("what", "value"), rows)))
"""
SCRIPT = """
    import io, json, subprocess, sys, zipfile
    import envkit
    from envkit.checks import catalog, thresholds
    from envkit.report.measured import sheets
    from envkit.verify.judge import judge
    from envkit.verify.payload import parse_document, payload_archive

    entry = next(entry for entry in catalog.catalog() if entry.id == "C90")
    names = zipfile.ZipFile(io.BytesIO(payload_archive())).namelist()
    open("payload.pyz", "wb").write(payload_archive())
    open("spec.json", "w").write(json.dumps({"nonce": "n"}))
    asked = [sys.executable, "payload.pyz", "--spec", "spec.json", "--only", "C90"]
    done = subprocess.run(asked, capture_output=True, check=True)
    document = parse_document(done.stdout, "n")
    (judged,) = judge(document, {}, [entry], catalog.judges())
    sheet = sheets(document["checks"])[-1]
    print(json.dumps({
        "from": envkit.__file__,
        "title": entry.title,
        "packed": "envkit/checks/c90_planted.py" in names,
        "row": thresholds.shipped().row("C90.line").number("warn_below"),
        "verdict": judged.finding.message,
        "shown": [sheet.title, sheet.rows],
    }))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with one more folder below `checks`."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "envkit", ignore=ignored)
    folder = tmp_path / "envkit" / "checks" / "c90_planted"
    folder.mkdir()
    texts = {"check.yaml": CARD, "observe.py": OBSERVE, "judge.py": JUDGE, "show.py": SHOW, "__init__.py": ""}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_new_folder_is_listed_packed_run_judged_and_shown(copy: Path) -> None:
    before = python(copy, "-m", "envkit", "verify", "--list")
    assert "C90  quick     host   a planted check" in before
    told = json.loads(python(copy, "-c", textwrap.dedent(SCRIPT)))
    assert told.pop("from") == str(copy / "envkit" / "__init__.py")
    shown = ["Planted", [["answer", "42"]]]
    assert told == {"title": "a planted check", "packed": True, "row": 2.0, "verdict": "answer 42", "shown": shown}
    shutil.rmtree(copy / "envkit" / "checks" / "c90_planted")
    assert "C90" not in python(copy, "-m", "envkit", "verify", "--list")
