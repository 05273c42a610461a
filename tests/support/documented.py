"""The commands in the documentation: how tests run each of them, or why they only parse it."""

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

REQUIREMENT = f"https://files.example.com/envkit_gpu-0.2.0-py3-none-any.whl --hash=sha256:{'0' * 64}"
"""The setting without which exports that install envkit end with exit code 2; the pages say so."""

# Reasons not to run a command, with a pattern. The first match applies.
PARSED_ONLY = (
    ("it needs a machine with no other load", r"envkit verify --self-test|envkit compare (A B|train:old)"),
    ("it needs GPUs", r"^envkit run .*--gpus|envkit verify .*--gpus"),
    ("it reads every release of the real Python index", r"matrix (check --online|update)"),
    ("it downloads from a public mirror", r"--preset"),
    ("it reads the public page of its wheels", r"--with flash-attn"),
    ("it installs and checks a real torch", r"install --venv"),
    ("tests/engines/test_run_project.py does it with a real torch", r"envkit (run|watch|shell) (?:\.|jupyter)(?: |$)"),
)
# Verified with a real torch by tests/engines/test_documented_verify.py.
_VERIFIED = re.compile(
    r"envkit verify\b(?! --(list|judge|schema))|envkit build .*--report|--engine podman|--no-lock|--template miniconda-"
)
# Run with a Docker engine: a name such as train:1 is an image there, unless the command itself sets the tag.
_DOCKED = re.compile(r"(?<!-t )(?<![\w/.-])(train|notebook):\w+|run --print$|\ndocker: |envkit shell", re.MULTILINE)
# Run by tests/engines/test_documented.py in bash, with a registry, an index and a channel on loopback.
_TYPED = re.compile(
    r"\b(REF|PATH|HOST|FILE)\b|\| envkit|\*|completion bash|/path/to"
    r"|envkit (build|lock(?! .*--(check|export))|install|push|attest|inspect|diff|run|watch|compare|cache)\b"
    r"|matrix prove|doctor(?! --(log|record|file))|--here|verify --judge"
)
_REAL_PAGE = "no-docker"
RUN, TYPED, DOCKED, VERIFIED, REAL = (
    "run in the process of a unit test",
    "run in bash, with a registry, an index and a channel on loopback",
    "run in bash with a Docker engine",
    "run in bash, with an image of a real torch that is verified",
    f"run in the order of the page {_REAL_PAGE}, with a real torch",
)
WAYS = (RUN, TYPED, DOCKED, VERIFIED, REAL)


@dataclass(frozen=True, slots=True)
class Shown:
    """A command on a page, with the output below it."""

    page: Path
    line: str
    words: tuple[str, ...]
    answer: str

    @property
    def state(self) -> str:
        """How tests run it (one of WAYS), or why they only parse it."""
        if self.page.stem == _REAL_PAGE:
            return REAL
        line = self.line.partition(" #")[0]
        shown = f"{line}\n{self.answer}"
        reason = next((reason for reason, pattern in PARSED_ONLY if re.search(pattern, shown, re.MULTILINE)), None)
        if reason is not None:
            return reason
        if _VERIFIED.search(line):
            return VERIFIED
        if _DOCKED.search(shown):
            return DOCKED
        return TYPED if _TYPED.search(line) else RUN

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.line}"


def pages() -> list[Path]:
    """Return the documentation's pages and the README."""
    return [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]


def lines_of(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each command line in the code blocks of a page, with the output below it."""
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


def shown(state: str) -> list[tuple[str, str]]:
    """Return each line of a state with the output below it. Equal ones on several pages have one entry."""
    return list(dict.fromkeys((command.line, command.answer) for command in commands() if command.state == state))


def summary() -> str:
    """Return a table of how many commands are run, by state, and how many are only parsed, by reason."""
    counts = Counter(command.state for command in set(commands()))
    reasons = [reason for reason, _ in PARSED_ONLY]
    run, parsed = (sum(counts[name] for name in names) for names in (WAYS, reasons))
    rows = [(run + parsed, "documented, all parsed"), (run, "run"), *((counts[name], f"  {name}") for name in WAYS)]
    rows += [(parsed, "only parsed"), *((counts[reason], f"  {reason}") for reason in reasons)]
    return "".join(f"{number:4}  {text}\n" for number, text in rows)


def fits(answer: str, printed: str) -> bool:
    """Return whether a command printed the output on the page, in which `...` stands for any text."""
    expected = re.escape(answer or "...").replace(re.escape("..."), "[\\s\\S]*")
    return re.fullmatch(expected, printed) is not None


def prepare(folder: Path, command: Shown | None = None) -> None:
    """Write the files that the documentation's commands name into a folder. For `init` there is no definition."""
    (folder / "requirements.txt").write_text("torch==2.7.1+cu118\ntorchvision\nnumpy\n")
    (folder / "train.log").write_text(_LOG)
    (folder / "docker").mkdir()
    (folder / "docker" / "Dockerfile").write_text("FROM pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime\n")
    (folder / "hosts.csv").write_text("host,gpu,driver\na,A100,550.54.15\nb,V100,470.82.01\n")
    (folder / "gpu01.csv").write_text("name, driver_version, compute_cap\nTesla V100-SXM2-32GB, 535.104.05, 7.0\n")
    (folder / "conda").mkdir()
    (folder / "conda" / "environment.yml").write_text("dependencies: [python=3.11, pytorch=2.5.1, scipy]\n")
    if command is None or command.words[0] != "init":
        _definition(folder)


def _definition(folder: Path) -> None:
    (folder / "image.yaml").write_text("schema: envkit.image/1\ntitle: An example\nrequest:\n  cuda: '12.6'\n")
    (folder / "train.yaml").write_text((folder / "image.yaml").read_text())
    (folder / "record.json").write_text(json.dumps(passed_record()))
    (folder / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
    (folder / "envkit.toml").write_text('engine = "auto"\n')
    (folder / "matrix.yaml").write_text("schema: envkit.matrix/1\nimage: image.yaml\naxes:\n  cuda: ['11.8', '12.6']\n")
    plan = shipped_plan(str(folder / "image.yaml"))
    for name in ("envkit.lock", "own.lock"):
        write_lock(folder / name, lock_for(plan))
