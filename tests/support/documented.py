"""The commands in the documentation, and why some of them are parsed by the tests and not run."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envkit.lock.store import write_lock
from tests.support.command_lines import of_line
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan
from tests.support.records import passed_record

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_IN_TEXT = re.compile(r"^(?:[a-z].*\| |[a-z -]+ < .*)?envkit [a-z-]")
_LOG = (
    "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. "
    "It is possible that dataloader workers are out of shared memory.\n"
)

# Why a command is parsed only, and which: the first that matches its line counts. All others are run.
PARSED_ONLY = (
    ("a placeholder stands for a value", r"\b(COMMAND|TOPIC|NAME|KIND|SHELL|DEFINITION|IMAGE|FILE|REF|ID)\b|\.\.\."),
    ("it reads what another program prints", r"\| envkit|<\("),
    ("it looks at this machine", r"envkit (doctor(?! --(log|record|file))|install|resolve .*--here|cache)\b|auto\b"),
    ("it asks the network", r"--online|matrix (prove|update)|envkit lock(?! .*--(check|export))"),
    ("it builds", r"envkit build\b"),
    ("it runs an image or a training", r"envkit (run|shell|watch|compare|verify(?! --list))\b"),
    ("it reads an image or a registry", r"envkit (push|attest|inspect|diff)\b|doctor --image"),
    ("it shows pages on a terminal", r"envkit help\b"),
    ("it asks bash for its version", r"completion bash"),
    ("a shell expands its words", r"\*"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A command on a page, with what stands below it."""

    page: Path
    line: str
    words: tuple[str, ...]
    answer: str

    @property
    def why_not_run(self) -> str | None:
        """Why it is parsed only; None = it is run."""
        line = self.line.partition(" #")[0]
        return next((reason for reason, pattern in PARSED_ONLY if re.search(pattern, line)), None)

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.line}"


def pages() -> list[Path]:
    """Return the pages of the documentation, and the README."""
    return [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]


def lines_of(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each command line in the blocks of a page, with what stands below it."""
    for language, block in _FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "console":
            for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, answer = piece.partition("\n")
                yield line, answer.strip("\n")
        elif language in ("", "text"):
            for line in block.splitlines():
                if _IN_TEXT.match(line) and "[OPTIONS]" not in line:
                    yield re.sub(r" {2,}(?![#-]).*", "", line), ""


def commands() -> list[Shown]:
    """Return every command of envkit in the documentation."""
    return [
        Shown(page, line, tuple(words), answer)
        for page in pages()
        for line, answer in lines_of(page)
        for words in of_line(line)
    ]


def summary() -> str:
    """Return how many commands are run, and how many are parsed only, by reason."""
    found = Counter(one.why_not_run or "run" for one in set(commands()))
    order = ["run", *(reason for reason, _ in PARSED_ONLY)]
    return "".join(f"{found[reason]:4}  {reason}\n" for reason in order)


def prepare(folder: Path, command: Shown) -> None:
    """Put the files that the documentation's commands name into a folder; `init` finds no definition there."""
    (folder / "requirements.txt").write_text("torch==2.7.1+cu118\ntorchvision\nnumpy\n")
    (folder / "train.log").write_text(_LOG)
    (folder / "docker").mkdir()
    (folder / "docker" / "Dockerfile").write_text("FROM pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime\n")
    (folder / "hosts.csv").write_text("host,gpu,driver\na,A100,550.54.15\nb,V100,470.82.01\n")
    (folder / "gpu01.csv").write_text("name, driver_version, compute_cap\nTesla V100-SXM2-32GB, 535.104.05, 7.0\n")
    if command.words[0] != "init":
        _definition(folder)


def _definition(folder: Path) -> None:
    (folder / "image.yaml").write_text("schema: envkit.image/1\ntitle: An example\nrequest:\n  cuda: '12.6'\n")
    (folder / "train.yaml").write_text((folder / "image.yaml").read_text())
    (folder / "record.json").write_text(json.dumps(passed_record()))
    (folder / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
    (folder / "envkit.toml").write_text('cache_limit = "20GB"\n')
    (folder / "matrix.yaml").write_text("schema: envkit.matrix/1\nimage: image.yaml\naxes:\n  cuda: ['11.8', '12.6']\n")
    plan = shipped_plan(str(folder / "image.yaml"))
    for name in ("envkit.lock", "own.lock"):
        write_lock(folder / name, lock_for(plan))
