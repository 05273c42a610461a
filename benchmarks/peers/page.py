"""Make the page docs/peers.md from the questions and the results of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import fixtures
from benchmarks.peers.model import OWN, Answer, Question, Result, Tool, rank, well_ranked

_RANKS = {
    "alone": "**envkit**, alone",
    "first": "**envkit**",
    "equal": "equal",
    "behind": "another tool",
    "nobody": "nobody",
}
_INTRO = """\
# envkit compared with other tools

Twelve everyday questions, answered by envkit and by similar tools on the Python index. One program runs all tools and
checks their answers:

```
python -m benchmarks.peers            install the tools, run them and print the table
python -m benchmarks.peers --write    also write this page
python -m benchmarks.torch_pickers    the wheels that envkit, uv and light-the-torch choose for 200 machines
```

Rules:

- Each tool has its own virtual environment and is used as its documentation shows, with as few commands as possible.
- A correct answer beats a wrong one. Among correct answers, fewer commands win. With equally many commands, the faster
  tool wins if the difference is noticeable: at least a factor of two and one second.
- A program checks each answer against the condition below its question.
- A tool that needs Docker Hub or a conda channel, which are not available to the benchmark, is not run. It counts as
  correct, with its fewest documented commands.
- Times are CPU seconds of the faster of two runs, so other load on the machine and the network do not matter. They do
  not include installing the tools or downloading wheels: all tools use a local wheel index that lists every published
  torch, with placeholders of a few kB instead of the wheels.
- The GPU is simulated: `nvidia-smi` reports driver {driver} and an {gpu} with 24 GB.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of a run."""

    date: str
    versions: Mapping[str, str]
    results: Mapping[str, Mapping[str, Result]]  # by question, then by tool

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> Run:
        """Return a run from its JSON."""
        results = {
            question: {tool: Result(row["steps"], row["seconds"], row["wrong"]) for tool, row in rows.items()}
            for question, rows in tree["results"].items()
        }
        return cls(date=tree["date"], versions=tree["versions"], results=results)

    def ranks(self) -> dict[str, str]:
        """Return envkit's rank by question."""
        return {question: rank(rows) for question, rows in self.results.items()}


def page(tools: Sequence[Tool], questions: Sequence[Question], run: Run) -> str:
    """Return the whole page."""
    intro = _INTRO.format(driver=fixtures.DRIVER, gpu=fixtures.GPU)
    parts = [intro, _tools(tools, run), _summary(questions, run), _losses(questions, run)]
    return "\n".join([*parts, *(_question(number, question, run) for number, question in enumerate(questions, 1))])


def summary(questions: Sequence[Question], run: Run) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the table: question, envkit, the best other tool, which is first."""
    ranks = run.ranks()
    for question in questions:
        rows = run.results[question.id]
        own = _cell(rows.get(OWN))
        others = [(name, result) for name, result in rows.items() if name != OWN]
        best = min(others, key=_order, default=None)
        other = f"{best[0]}: {_cell(best[1])}" if best else "no command"
        yield question.asks, own, other, _RANKS[ranks[question.id]]


def _order(row: tuple[str, Result]) -> tuple[bool, int, bool, float]:
    """Return the sort key of the other tools: right ones, fewer commands, those that were run, faster ones."""
    result = row[1]
    return bool(result.wrong), result.steps, result.seconds is None, result.seconds or 0.0


def _cell(result: Result | None) -> str:
    if result is None:
        return "no command"
    steps = f"{result.steps} command{'s' * (result.steps != 1)}"
    if result.seconds is None:
        return f"{steps}, not run"
    return f"{'wrong, ' * bool(result.wrong)}{steps}, {result.seconds:.1f} s"


def _tools(tools: Sequence[Tool], run: Run) -> str:
    rows = [(tool.name, run.versions[tool.name], tool.does) for tool in tools]
    return f"The tools, as of {run.date}:\n\n" + _table(("tool", "version", "what it does"), rows)


def _summary(questions: Sequence[Question], run: Run) -> str:
    rows = [(str(number), *row) for number, row in enumerate(summary(questions, run), 1)]
    good = well_ranked(list(run.ranks().values()))
    sentence = f"envkit is first or equal in {good} of {len(questions)} questions.\n"
    return "## Result\n\n" + sentence + "\n" + _table(("", "question", "envkit", "best other tool", "first"), rows)


def _losses(questions: Sequence[Question], run: Run) -> str:
    ranks = run.ranks()
    lost = [question for question in questions if ranks[question.id] in {"behind", "nobody"}]
    lines = [f"- *{question.asks}* {question.lacks}".rstrip() for question in lost]
    return "## Where envkit loses\n\n" + ("\n".join(lines) if lines else "In none of the twelve.") + "\n"


def _question(number: int, question: Question, run: Run) -> str:
    rows = []
    for name, result in run.results[question.id].items():
        answer = question.answers[name]
        commands = "<br>".join(f"`{_cell_text(command)}`" for command in answer.commands)
        rows.append((name, commands, _time(result), _outcome(answer, result)))
    table = _table(("tool", "commands", "seconds", "answer"), rows)
    return f"## {number}. {question.asks}\n\nRight: {question.right}\n\n{table}"


def _time(result: Result) -> str:
    return "-" if result.seconds is None else f"{result.seconds:.1f}"


def _outcome(answer: Answer, result: Result) -> str:
    if answer.unrun:
        return f"not run: {answer.unrun}; counts as right"
    note = f" ({answer.note})" if answer.note else ""
    return (f"wrong: {_cell_text(result.wrong)}" if result.wrong else "right") + note


def _cell_text(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
