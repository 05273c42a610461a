"""The Dockerfile that holds its build context gives the files that the context gives."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from envkit.render import lint
from envkit.render.model import SYNTAXES, Rendered
from tests.golden.cases import Case, context_files, inlined, rendered
from tests.golden.test_goldens import CASES

Files = dict[tuple[int, str], tuple[bytes, int]]
"""Stage and path in the image -> contents and mode."""
_STAGE = re.compile(r"^FROM ", re.MULTILINE)
_BASE64 = re.compile(r" +[A-Za-z0-9+/=]+ \\")
_DOCUMENT = re.compile(r"<<'([^']+)'")


def of_context(dockerfile: str, files: dict[str, bytes], executable: frozenset[str]) -> Files:
    """What the COPY instructions of a Dockerfile take from its context."""
    found: Files = {}
    for stage, text in enumerate(_STAGE.split(dockerfile)):
        for line in text.splitlines():
            keyword, *words = line.split() or [""]
            if keyword == "COPY" and not words[0].startswith("--from="):
                for name in words[:-1]:
                    found |= {
                        (stage, target): (files[one], 0o755 if one in executable else 0o644)
                        for one, target in _targets(name, words[-1], files)
                    }
    return found


def _targets(name: str, target: str, files: dict[str, bytes]) -> list[tuple[str, str]]:
    if name.endswith("/"):
        return [(one, target + one.removeprefix(name)) for one in files if one.startswith(name)]
    return [(name, str(PurePosixPath(target + (PurePosixPath(name).name if target.endswith("/") else ""))))]


def of_inline(dockerfile: str, folder: Path) -> Files:
    """The files that an inline Dockerfile writes: its heredocs read, its decoding steps run by a shell."""
    found: Files = {}
    for stage, text in enumerate(_STAGE.split(dockerfile)):
        lines = iter(text.split("\n"))
        scripts = []
        for line in lines:
            if names := _DOCUMENT.findall(line):
                assert line.startswith("COPY <<")
                target = line.split()[-1]
                for name in names:
                    document = "".join(f"{one}\n" for one in _until(name, lines))
                    path = str(PurePosixPath(target + (name if target.endswith("/") else "")))
                    found[stage, path] = document.encode(), 0o644
            elif line == "RUN set -eu; \\":
                step = _step(line, lines)
                scripts += [step] if "base64 -d" in step else []
        found |= _run(stage, scripts, folder / str(stage))
    return found


def _until(end: str, lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line == end:
            return
        yield line


def _step(first: str, lines: Iterator[str]) -> str:
    """A RUN as the shell gets it."""
    found = [first]
    while found[-1].endswith("\\"):
        found.append(next(lines))
    assert max(map(len, found)) < 64 << 10
    script = "\n".join(found).removeprefix("RUN ")
    assert len(script) < 128 << 10
    return script


def _run(stage: int, scripts: list[str], root: Path) -> Files:
    """Run the steps of a stage in a folder, absolute paths of the image below it; return what they write."""
    (root / "cwd").mkdir(parents=True)
    lines = "\n".join(scripts).split("\n")
    inside = [line if _BASE64.fullmatch(line) else re.sub(r"(?<= )/", f"{root}/", line) for line in lines]
    (root / "steps.sh").write_text("\n".join(inside))
    subprocess.run(["/bin/sh", "../steps.sh"], cwd=root / "cwd", check=True, timeout=60)
    (root / "steps.sh").unlink()
    return _written(stage, root)


def _written(stage: int, root: Path) -> Files:
    files = [path for path in root.rglob("*") if path.is_file()]
    names = {path: str(path.relative_to(root)) for path in files}
    return {
        (stage, name.removeprefix("cwd/") if name.startswith("cwd/") else f"/{name}"): (
            path.read_bytes(),
            path.stat().st_mode & 0o777,
        )
        for path, name in names.items()
    }


@pytest.mark.parametrize("syntax", SYNTAXES)
@CASES
def test_the_same_files_with_the_same_modes(case: Case, syntax: str, tmp_path: Path) -> None:
    made = rendered(case, syntax)
    wanted = of_context(made.dockerfile, context_files(case, syntax), made.executable)
    assert len(wanted) >= 8
    assert of_inline(inlined(case, syntax), tmp_path) == wanted


@pytest.mark.parametrize("syntax", SYNTAXES)
@CASES
def test_nothing_but_the_copies_changes(case: Case, syntax: str) -> None:
    """Without what writes files, both Dockerfiles are the same lines."""

    def rest(text: str) -> list[str]:
        text = re.sub(r"RUN set -eu; \\\n    umask 022; \\\n(?:.*\\\n)*.*\n", "", text)
        text = re.sub(r"COPY <<'.*\n(?:.*\n)*?(?=(?:RUN|ENV|COPY --|WORKDIR) |FROM .*\n(?:COPY|RUN) )", "", text)
        return [line for line in text.splitlines() if line and not re.match(r"COPY (?!--from)|# It ", line)]

    assert rest(inlined(case, syntax)) == rest(rendered(case, syntax).dockerfile)


@CASES
def test_the_classic_form_holds_the_rules_of_the_lint(case: Case) -> None:
    made = rendered(case, "classic")
    files = made.files | {"Dockerfile": inlined(case, "classic").encode()}
    again = Rendered(files, made.build_image, made.final_image, made.syntax, locked=made.locked)
    rules = set(lint.RULES) - {"D7"}  # it takes the file name miniconda.curl for a download
    assert [str(item) for item in lint.check(again, rules) if item.severity == "error"] == []
