"""Plug-ins as their users have them: example packages that are installed, and used through the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = sorted((Path(__file__).parent / "plugins").iterdir())
LINES = [
    "acme-checks 1.0: acme = acme_checks:FOLDER (envkit.checks)",
    "acme-export 1.0: names = acme_export (envkit.exports)",
    "acme-facts 1.0: lab = acme_facts:FACTS (envkit.facts)",
    "acme-templates 1.0: acme = acme_templates:FOLDER (envkit.templates)",
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with all examples installed; the sources are copied, as a build writes beside them."""
    target = tmp_path_factory.mktemp("plugins") / "site"
    argv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-index", "--no-build-isolation"]
    argv += ["--no-deps", "--python", sys.executable, "--target", str(target), *map(str, PACKAGES)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return target


def envkit(folder: Path, *arguments: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder; `site` is a further folder of packages."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("ENVKIT_")}
    env |= {"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(site) if site else ""}
    argv = [sys.executable, "-m", "envkit", *arguments]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def printed(folder: Path, *arguments: str, site: Path) -> str:
    done = envkit(folder, *arguments, site=site)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_installed_is_shown(installed: Path, tmp_path: Path) -> None:
    expected = [f"plug-in {line}" for line in LINES]
    assert printed(tmp_path, "version", "-v", site=installed).splitlines()[-4:] == expected
    assert printed(tmp_path, "config", site=installed).splitlines()[-4:] == expected
    rows = json.loads(printed(tmp_path, "config", "--json", site=installed))["plugins"]
    assert [row["distribution"] for row in rows] == [line.partition(":")[0] for line in LINES]
    assert {row["broken"] for row in rows} == {None}
    assert envkit(tmp_path, "version", "-v").stdout.endswith("\nno plug-ins\n")


def test_rows_count_and_name_their_source(installed: Path, tmp_path: Path) -> None:
    shown = printed(tmp_path, "matrix", "show", "ACME X1", site=installed)
    assert "compute capability 8.8 (Acme)" in shown
    assert "acme-lab" in shown
    assert json.loads(printed(tmp_path, "resolve", "--gpu", "ACME X1", "--json", site=installed))["gpus"] == ["8.8"]
    assert "unknown GPU 'ACME X1'" in envkit(tmp_path, "resolve", "--gpu", "ACME X1").stderr


def test_the_rows_of_the_user_come_last(installed: Path, tmp_path: Path) -> None:
    source = next(installed.rglob("rows.yaml")).read_text()
    (tmp_path / "own.yaml").write_text(source.replace("family: Acme", "family: Own"))
    shown = printed(tmp_path, "matrix", "show", "ACME X1", "--facts", "own.yaml", site=installed)
    assert "compute capability 8.8 (Own)" in shown


def test_a_template_is_rendered(installed: Path, tmp_path: Path) -> None:
    words = ("render", "cu126", "--only", "dockerfile")
    assert 'LABEL "com.example.site"="acme"' in printed(
        tmp_path, *words, "--template", "miniconda-acme", site=installed
    )
    assert "com.example.site" not in printed(tmp_path, *words, site=installed)
    assert "labels" in printed(tmp_path, "render", "--show-blocks", "--template", "miniconda-acme", site=installed)


def test_a_check_is_listed(installed: Path, tmp_path: Path) -> None:
    assert "C90  quick     host   time zone" in printed(tmp_path, "verify", "--list", site=installed)
    assert "C90" not in envkit(tmp_path, "verify", "--list").stdout


@pytest.mark.long
def test_a_check_runs_and_is_judged(installed: Path, tmp_path: Path) -> None:
    done = envkit(tmp_path, "verify", "--runner", "host", "--only", "C90", "--json", site=installed)
    (row,) = [one for one in json.loads(done.stdout)["checks"] if one["id"] == "C90"]
    assert row["status"] == "ran"
    assert row["verdict"] in ("PASS", "WARN")
    assert "from UTC" in row["message"]


def test_a_kind_is_exported(installed: Path, tmp_path: Path) -> None:
    words = ("export", "names", "cu126", "cpu", "--set", "prefix=x-")
    assert printed(tmp_path, *words, site=installed) == "x-envkit:cu126\nx-envkit:cpu\n"
    assert "the names of the images, one a line" in printed(tmp_path, "export", "--list", site=installed)


def declare(site: Path, entry: str, *files: tuple[str, str]) -> None:
    """Put a distribution `bad` with one entry point, `GROUP NAME=VALUE`, into a folder of packages."""
    group, _, line = entry.partition(" ")
    for name, text in (
        ("bad-2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: bad\nVersion: 2.0\n"),
        ("bad-2.0.dist-info/entry_points.txt", f"[{group}]\n{line}\n"),
        *files,
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


_CARD = "id: C91\ntitle: t\ntopic: t\ntier: quick\nneeds: host\nverifies: v\ncounts: yes\nbudget_s: 1\n"
_FOLDER = ("bad.py", "import pathlib\nP = pathlib.Path(__file__).parent / 'd'\n")
_FULL = (("d/c91_x/__init__.py", ""), ("d/c91_x/observe.py", ""), ("d/c91_x/judge.py", "raise RuntimeError('no')\n"))
_ORDER = "ABOUT = FILE = 'x'\nOPTIONS = {}\n\ndef export(order):\n    "


_BROKEN = [
    ("envkit.facts x=bad:P", [_FOLDER], "resolve", "/d is not a file"),
    ("envkit.templates x=bad:P", [_FOLDER], "render --template miniconda-x", "/d is not a folder"),
    ("envkit.checks x=bad:P", [_FOLDER, ("d/c91_x/check.yaml", "id: 1\n")], "verify --list", "title: missing"),
    ("envkit.exports x=bad", [("bad.py", f"{_ORDER}1 / 0")], "export x", "bad.export: ZeroDivisionError: "),
]
_BROKEN_TOO = [
    ("envkit.facts x=bad:P", [], "resolve", "bad:P: ModuleNotFoundError: No module named 'bad'"),
    ("envkit.facts x=bad:P", [("bad.py", "raise ValueError('two\\nlines')")], "resolve", "ValueError: two lines"),
    ("envkit.facts x=bad:P", [("bad.py", "raise SystemExit(3)")], "resolve", "bad:P: SystemExit: 3"),
    ("envkit.facts x=bad:P", [("bad.py", "P = 1")], "matrix list gpus", "bad:P is of type int, not a path"),
    ("envkit.facts x=bad:P", [_FOLDER, ("d", "schema: 1\nbuilds: 1\n")], "resolve", "builds: is not a list"),
    ("envkit.checks x=bad:P", [_FOLDER, ("d/c91_x/check.yaml", _CARD)], "verify --list", "has no __init__.py"),
    (
        "envkit.checks x=bad:P",
        [_FOLDER, *_FULL, ("d/c91_x/check.yaml", _CARD.replace("C91", "C12"))],
        "verify --list",
        "the folder of check C12 must be named c12_NAME",
    ),
    (
        "envkit.checks x=bad:P",
        [_FOLDER, *((name.replace("c91", "c12"), text) for name, text in _FULL),
         ("d/c12_x/check.yaml", _CARD.replace("C91", "C12"))],
        "verify --list",
        "id: C12 is below C80, the first ID for plug-ins",
    ),
    (
        "envkit.checks x=bad:P",
        [_FOLDER, *_FULL, ("d/c91_x/check.yaml", _CARD)],
        "verify --list",
        "checks/c91_x/judge.py: RuntimeError: no",
    ),
    (
        "envkit.checks x=bad:P",
        [_FOLDER, *_FULL, ("d/c91_x/check.yaml", _CARD),
         ("d/c91_x/judge.py", "def judge(observation, spec, env):\n    pass\n")],
        "verify --list",
        "checks/c91_x/judge.py cannot be called as judge(case): missing a required argument: 'spec'",
    ),
    (
        "envkit.checks x=bad:P",
        [_FOLDER, *_FULL, ("d/c91_x/check.yaml", _CARD), ("d/c91_x/judge.py", "judge = 1\n")],
        "verify --list",
        "checks/c91_x/judge.py cannot be called as judge(case): 1 is not a callable object",
    ),
    ("envkit.exports bake=bad", [("bad.py", "")], "export --list", "'bake' is the name of another export kind"),
    ("envkit.exports x=bad", [("bad.py", "ABOUT = 1")], "export x", "must define the strings ABOUT and FILE"),
    ("envkit.exports x=bad", [("bad.py", f"{_ORDER}return {{'x': 1}}")], "export x", "did not return a mapping of"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "files", "words", "why"), [*_BROKEN, *(pytest.param(*row, marks=pytest.mark.long) for row in _BROKEN_TOO)]
)
def test_a_broken_one_is_one_line_with_its_name(
    entry: str, files: list[tuple[str, str]], words: str, why: str, tmp_path: Path
) -> None:
    declare(tmp_path / "site", entry, *files)
    done = envkit(tmp_path, *words.split(), site=tmp_path / "site")
    first, *rest = done.stderr.splitlines()
    group, _, line = entry.partition(" ")
    assert done.returncode == 9
    assert first.startswith(f"error: plug-in bad 2.0 ({group}: {line.partition('=')[0]}): ")
    assert why in first
    assert rest == ["", "hint: install another version, or pip uninstall bad"]


def run(code: str, folder: Path) -> str:
    """Return what Python code prints in an installation with the packages in `site`."""
    env = {**os.environ, "PYTHONPATH": str(folder / "site")}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


_JUDGED = """
from envkit.checks.catalog import CheckEntry, judges
from envkit.verify.judge import judge

control = {"name": "planted", "held": True, "detail": ""}
item = {"id": "C91", "subject": "image", "status": "ran", "reason": None, "observed": {"n": 1}, "controls": [control]}
entry = CheckEntry("C91", "t", "quick", 1.0, "host")
(judged,) = judge({"env": {}, "checks": [item]}, {}, [entry], judges())
print(judged.finding.verdict, judged.finding.reason_code, judged.finding.message)
"""
_FAILED = "ERROR PLUGIN_FAILED plug-in bad 2.0 (envkit.checks: x): checks/c91_x/judge.py"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return case.passed(f'n is {case.value(\"n\"):.0f}')", "PASS None n is 1"),
        ("case.warn('N_IS_ODD', 'n is odd')", f"{_FAILED}: returned NoneType, not a Finding"),
        ("return 'PASS', 'n is 1'", f"{_FAILED}: returned tuple, not a Finding"),
        ("return undefined", f"{_FAILED}: NameError: name 'undefined' is not defined"),
        ("raise SystemExit(0)", f"{_FAILED}: SystemExit: 0"),
        ("case.use('C91.limit')", f"{_FAILED}: KeyError: 'C91.limit'"),
        ("assert case.value('n') == 2, 'two\\nlines'", f"{_FAILED}: AssertionError: two lines"),
        (
            "return case.warn('n is odd')",
            f"{_FAILED}: TypeError: Case.warn() missing 1 required positional argument: 'message'",
        ),
        ("return case.value('m')", "ERROR MALFORMED_OBSERVATION malformed observation: m is None, not a number"),
    ],
)
def test_a_judge_that_fails_is_an_error_with_the_name_of_its_plug_in(body: str, said: str, tmp_path: Path) -> None:
    judge = ("d/c91_x/judge.py", f"def judge(case):\n    {body}\n")
    declare(tmp_path / "site", "envkit.checks x=bad:P", _FOLDER, *_FULL[:2], ("d/c91_x/check.yaml", _CARD), judge)
    assert run(_JUDGED, tmp_path) == f"{said}\n"


_SHOWN = """
from envkit.checks.catalog import shows

(sheet,) = shows()["C91"]([]).sheets
print(sheet.title, sheet.rows[0][0], *sheet.notes)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return Shown(ident='n', title='N', sheets=(Sheet('N', ('n',), [['1']]),))", "N 1"),
        ("Shown(ident='n', title='N')", "t failed {0}: returned NoneType, not a Shown"),
        ("return checks[0]", "t failed {0}: IndexError: list index out of range"),
        ("raise SystemExit(2)", "t failed {0}: SystemExit: 2"),
    ],
)
def test_a_table_that_fails_leaves_the_rest_of_the_report(body: str, said: str, tmp_path: Path) -> None:
    source = f"from envkit.checks.sheet import Sheet, Shown\n\ndef show(checks):\n    {body}\n"
    judge = ("d/c91_x/judge.py", "def judge(case):\n    return case.passed('held')\n")
    files = (_FOLDER, *_FULL[:2], ("d/c91_x/check.yaml", _CARD), judge, ("d/c91_x/show.py", source))
    declare(tmp_path / "site", "envkit.checks x=bad:P", *files)
    named = said.format("plug-in bad 2.0 (envkit.checks: x): checks/c91_x/show.py")
    assert run(_SHOWN, tmp_path) == f"{named}\n"


def test_config_shows_a_broken_one(tmp_path: Path) -> None:
    declare(tmp_path / "site", "envkit.facts x=bad:P")
    done = envkit(tmp_path, "config", site=tmp_path / "site")
    assert done.returncode == 9
    assert "BROKEN: plug-in bad 2.0 (envkit.facts: x): bad:P: ModuleNotFoundError" in done.stdout.splitlines()[-1]


def test_what_needs_no_plug_in_does_not_load_it(tmp_path: Path) -> None:
    declare(tmp_path / "site", "envkit.exports x=bad")
    assert envkit(tmp_path, "resolve", site=tmp_path / "site").returncode == 0
    assert envkit(tmp_path, "export", "bake", site=tmp_path / "site").returncode == 0
    assert envkit(tmp_path, "--help", site=tmp_path / "site").returncode == 0


def test_two_plug_ins_with_one_template_are_told(installed: Path, tmp_path: Path) -> None:
    template = ("d/miniconda-acme.Dockerfile.j2", "FROM x\n")
    declare(tmp_path / "site", "envkit.templates x=bad:P", _FOLDER, template)
    both = Path(f"{installed}{os.pathsep}{tmp_path / 'site'}")
    done = envkit(tmp_path, "render", "--template", "miniconda-acme", site=both)
    assert "template miniconda-acme.Dockerfile.j2 is in two plug-ins: acme-templates 1.0 and bad 2.0" in done.stderr


def test_the_current_folder_adds_nothing(tmp_path: Path) -> None:
    """`python -m envkit` has it on the path, and it may be somebody else's checkout."""
    declare(tmp_path, "envkit.facts x=bad:P", ("bad.py", "raise SystemExit('loaded')"))
    done = envkit(tmp_path, "version", "-v")
    assert done.returncode == 0
    assert done.stdout.endswith("no plug-ins\n")


@pytest.mark.parametrize("words", [["--help"], ["resolve"], ["resolve", "--cuda", "12.6"]], ids=" ".join)
def test_what_is_typed_most_starts_without_the_readers_of_files_and_servers(words: list[str], tmp_path: Path) -> None:
    code = f"import sys\nfrom envkit.cli.main import run\nrun({words!r})\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    heavy = {"importlib.metadata", "packaging", "yaml", "requests", "jinja2", "rattler", "docker", "subprocess"}
    heavy |= {"_hashlib", "secrets"}  # OpenSSL: 5 MB and some milliseconds
    heavy |= {"dataclasses"} if words == ["--help"] else set()  # only commands have options that are fields of one
    assert heavy.isdisjoint(done.stdout.splitlines()[-1].split())
