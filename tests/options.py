"""The options of programs that install packages, from the programs' own parsers.

    python -m tests.options --update [--pip WHEEL...] [--conda FOLDER] [--mamba FOLDER]

writes envkit/project/options.json: for every option whether a value follows it. Reading `RUN pip install -i URL einops`
depends on that: without it a value is taken for a package. pip's and conda's parsers are imported, uv's is asked by
running it, micromamba's declarations are read from its source, and apt-get is asked for each option of its manual. Each
table keeps the version that it is from; conda and micromamba keep their tables if they are not named. An option that
has a value in one version and none in another is left out, so that a command that has it is not read.

    --pip WHEEL      wheels of pip; without any, the installed one
    --conda FOLDER   a checkout of https://github.com/conda/conda, whose requirements are installed
    --mamba FOLDER   a checkout of https://github.com/mamba-org/mamba
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from uv import find_uv_bin

DATA = Path(__file__).parent.parent / "envkit" / "project" / "options.json"
_Rows = list[tuple[tuple[str, ...], bool]]  # the names of an option, and whether a value follows
# Of apt-get(8).
_APT = (
    "--no-install-recommends", "--install-recommends", "--no-install-suggests", "--install-suggests",
    "-d --download-only", "-f --fix-broken", "-m --ignore-missing --fix-missing", "--no-download", "-q --quiet",
    "-s --simulate --just-print --dry-run --recon --no-act", "-y --yes --assume-yes", "--assume-no",
    "--no-show-upgraded", "-V --verbose-versions", "-a --host-architecture", "-P --build-profiles",
    "-b --compile --build", "--ignore-hold", "--with-new-pkgs", "--no-upgrade", "--only-upgrade",
    "--allow-downgrades", "--allow-remove-essential", "--allow-change-held-packages", "--force-yes", "--print-uris",
    "--purge", "--reinstall", "--list-cleanup", "-t --target-release --default-release", "--trivial-only",
    "--no-remove", "--auto-remove --autoremove", "--only-source", "--arch-only", "--indep-only",
    "--allow-unauthenticated", "--allow-insecure-repositories", "--allow-releaseinfo-change", "--show-progress",
    "--with-source", "-h --help", "-v --version", "-c --config-file", "-o --option", "-u --show-upgraded",
    "--allow-weak-repositories", "--no-allow-insecure-repositories",
)  # fmt: skip
_FORMER = (
    "--native-tls",
    "--no-native-tls",
    "--preview",
    "--no-preview",
    "--no-cache",
    "--isolated",
    "--no-python-install",
)
_PIP = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = sys.argv[1:]
import pip
from pip._internal.commands import create_command
parser = create_command("install").parser
options = [*parser.option_list, *(option for group in parser.option_groups for option in group.option_list)]
rows = [[option._short_opts + option._long_opts, option.takes_value() and option.nargs] for option in options]
print(json.dumps([pip.__version__, rows]))
"""
_CONDA = """
import argparse, json, sys
sys.path.insert(0, sys.argv[1])
from conda.cli.conda_argparse import generate_parser
actions = generate_parser()._actions
commands = next(action for action in actions if isinstance(action, argparse._SubParsersAction)).choices
actions = [action for name in ("install", "create") for action in commands[name]._actions if action.option_strings]
print(json.dumps([[action.option_strings, action.nargs] for action in actions]))
"""


def pip(wheels: Iterable[str]) -> tuple[str, _Rows]:
    """Return the versions and the options of pip: of wheels, or of the installed one."""
    versions, rows = [], []
    for path in list(wheels) or [""]:
        argv = [sys.executable, "-c", _PIP, *([str(Path(path).resolve())] if path else [])]
        version, options = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
        versions.append(version)
        rows += [(tuple(names), bool(values)) for names, values in options if values in (False, None, 1)]
    return f"pip {', '.join(versions)}", rows


def uv(command: str, candidates: Iterable[str]) -> tuple[str, _Rows]:
    """Return the version and the options of a command of uv, its hidden names among the candidates too."""
    run = [find_uv_bin(), *command.split()]
    text = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True).stdout
    shown = re.findall(r"^ {2,6}(-\S.*?)(?: {2}|$)", text, re.MULTILINE)
    rows = [(tuple(re.findall(r"(?<!\S)--?[A-Za-z][\w-]*", line)), "<" in line) for line in shown]
    known = {name for names, _ in rows for name in names}
    both = {*candidates, *known}
    both |= {f"{name}s" for name in both} | {name.removesuffix("s") for name in both}
    for name in sorted(name for name in both - known if name.startswith("--")):
        # Nothing is installed: a flag refuses the value, and an option with a value has no packages.
        done = subprocess.run([*run, f"{name}=x", "--offline"], capture_output=True, text=True, check=False)
        if "unexpected argument" not in done.stderr:
            rows.append(((name,), "unexpected value" not in done.stderr))
    version = subprocess.run([run[0], "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    return f"uv {version}", rows


def conda(folder: str) -> tuple[str, _Rows]:
    """Return the version and the options of `conda install` and `conda create`."""
    done = subprocess.run([sys.executable, "-c", _CONDA, folder], capture_output=True, check=True)
    rows = [(tuple(names), nargs is None) for names, nargs in json.loads(done.stdout) if nargs in (None, 0)]
    return f"conda {_described(folder)}", rows


def mamba(folder: str) -> tuple[str, _Rows]:
    """Return the version and the options of `micromamba install` and `micromamba create`."""
    rows: _Rows = []
    for name in ("common_options", "install", "create"):
        source = (Path(folder) / "micromamba" / "src" / f"{name}.cpp").read_text(encoding="utf-8")
        for kind, names, rest in re.findall(r'add_(option|flag)\(\s*"([^"]*)"(.*?);', source, re.DOTALL):
            words = tuple(word.strip(" !") for word in names.split(","))
            # A list without type_size(1) takes every word up to the next option.
            takes_many = "..." in rest and "type_size(1)" not in rest
            if words[0].startswith("-") and not takes_many:
                rows.append((words, kind == "option"))
    return f"micromamba {_described(folder)}", [*rows, (("-h", "--help"), False)]


def apt() -> tuple[str, _Rows]:
    """Return the version of apt-get, and which of the options of apt-get(8) its `install` knows, by asking for each."""
    rows: _Rows = []
    for group in _APT:
        names, valued = [], False
        for name in group.split():
            # Without a package nothing is installed.
            done = subprocess.run(["apt-get", "-s", "install", name], capture_output=True, text=True, check=False)
            if "not understood" not in done.stderr:
                names.append(name)
                valued = valued or "requires an argument" in done.stderr
        rows += [(tuple(names), valued)] if names else []
    version = subprocess.run(["apt-get", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    return f"apt {version}", rows


def _described(folder: str) -> str:
    argv = ["git", "-C", folder, "describe", "--tags"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def table(source: str, rows: _Rows) -> dict[str, object]:
    """Return a table of the file: the options of each kind, their names joined, without those of both kinds."""
    flags, valued = ({name for names, value in rows if value is kind for name in names} for kind in (False, True))
    return {
        "source": source,
        "flags": sorted(_grouped((names for names, _ in rows), flags - valued)),
        "valued": sorted(_grouped((names for names, _ in rows), valued - flags)),
    }


def _grouped(rows: Iterable[tuple[str, ...]], wanted: set[str]) -> Iterator[str]:
    groups: list[set[str]] = []
    for names in rows:
        group = set(names) & wanted
        for other in [other for other in groups if other & group]:
            groups.remove(other)
            group |= other
        groups += [group] if group else []
    yield from (" ".join(sorted(group)) for group in groups)


def main() -> int:
    """Write the tables of pip, uv and apt-get, and of the programs whose source is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", required=True)
    parser.add_argument("--pip", nargs="*", default=[])
    parser.add_argument("--conda")
    parser.add_argument("--mamba")
    arguments = parser.parse_args()
    tables = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    tables["pip"] = table(*pip(arguments.pip))
    names = {name for rows in (tables["pip"]["flags"], tables["pip"]["valued"]) for row in rows for name in row.split()}
    names |= set(_FORMER)
    for command in ("pip install", "add", "sync"):
        tables[f"uv {command}"] = table(*uv(command, names))
    tables["apt-get"] = table(*apt())
    if arguments.conda:
        tables["conda"] = table(*conda(arguments.conda))
    if arguments.mamba:
        tables["micromamba"] = table(*mamba(arguments.mamba))
    DATA.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
