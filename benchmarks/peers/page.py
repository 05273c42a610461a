"""Make the page docs/peers.md from the questions and the results of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import fixtures
from benchmarks.peers.model import OWN, Answer, Question, Result, Tool, faster_by, rank, well_ranked

_RANKS = {
    "alone": "**envkit**, alone",
    "first": "**envkit**",
    "equal": "equal",
    "behind": "another tool",
    "nobody": "nobody",
}
_INTRO = """\
# envkit compared with other tools

{questions} everyday questions, answered by envkit and by similar tools. One program runs the tools that the Python
index has and checks their answers; the others are quoted from their documentation.

```
python -m benchmarks.peers            install the tools, run them and print the table
python -m benchmarks.peers --write    also write this page; with --only ID, the results of these questions
python -m benchmarks.torch_pickers    the wheels that envkit, uv and light-the-torch choose for 200 machines
```

Rules:

- Each tool has its own virtual environment and is used as its documentation shows, with as few commands as possible. A
  file that has to be edited is a command.
- A correct answer beats a wrong one. Among correct answers, fewer commands win. With equally many commands the tools
  are equal, unless one takes twice as long and a second more. Where another tool is faster at all, the table says so.
- A program checks each answer against the condition below its question.
- A tool that is not on the Python index, or needs a registry or a conda channel, is not run. It counts as correct, with
  its fewest documented commands.
- Times are CPU seconds of the faster of two runs, without installing the tools or downloading wheels: all tools use a
  local index that lists every published torch, with placeholders of a few kB instead of the wheels.
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
    intro = _INTRO.format(questions=len(questions), driver=fixtures.DRIVER, gpu=fixtures.GPU)
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
        yield question.asks, own, other, _RANKS[ranks[question.id]] + _faster(rows)


def _faster(rows: Mapping[str, Result]) -> str:
    """Return how much faster another tool with as many commands is, "" if none is."""
    found = faster_by(rows)
    return f"; {found[0]} is {found[1]:.1f}x faster" if found else ""


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
    rows = [
        (f"[{tool.name}]({tool.source})", run.versions.get(tool.name) or "not run", tool.does)
        if tool.name != OWN
        else (tool.name, run.versions[OWN], tool.does)
        for tool in tools
    ]
    return f"The tools, as of {run.date}:\n\n" + _table(("tool", "version", "what it does"), rows)


def _summary(questions: Sequence[Question], run: Run) -> str:
    rows = [(str(number), *row) for number, row in enumerate(summary(questions, run), 1)]
    good = well_ranked(list(run.ranks().values()))
    slower = sum(faster_by(run.results[question.id]) is not None for question in questions)
    sentence = (
        f"envkit is first or equal in {good} of {len(questions)} questions. In {slower} of them, another tool with as "
        "many commands is faster.\n"
    )
    return "## Result\n\n" + sentence + "\n" + _table(("", "question", "envkit", "best other tool", "first"), rows)


def _losses(questions: Sequence[Question], run: Run) -> str:
    ranks = run.ranks()
    lost = [question for question in questions if ranks[question.id] in {"behind", "nobody"}]
    lines = [f"- *{question.asks}* {question.lacks}".rstrip() for question in lost]
    return "## Where envkit loses\n\n" + ("\n".join(lines) if lines else "In none of them.") + "\n"


def _question(number: int, question: Question, run: Run) -> str:
    rows = []
    for name, result in run.results[question.id].items():
        answer = question.answers[name]
        commands = "<br>".join(f"`{_cell_text(command)}`" for command in answer.commands)
        rows.append((name, commands, _time(result), _outcome(answer, result)))
    table = _table(("tool", "commands", "seconds", "answer"), rows)
    asked = ", ".join(f"[{_thread(url)}]({url})" for url in question.asked)
    asked = f"Asked in {asked}.\n\n" if asked else ""
    return f"## {number}. {question.asks}\n\n{asked}Right: {question.right}\n\n{table}"


def _thread(url: str) -> str:
    """Return the name of a thread: https://github.com/OWNER/NAME/issues/1 is NAME 1."""
    parts = url.split("/")
    return f"{parts[4]} {parts[-1]}"


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
