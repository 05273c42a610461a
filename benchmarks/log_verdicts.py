"""How many failures `envkit doctor --log` names, admits as unknown, hides, or takes for a job that ended well.

    python -m benchmarks.log_verdicts [FOLDER]

FOLDER has `one_line_failures.txt` (NAME|LINE) and the folders `hidden`, `healthy` and `cases` with one log per file;
each part may be missing. Without FOLDER, the logs of `tests/logs` are read: `failures.yaml` (single lines),
`public/*.yaml` (logs of a few lines, named after the public thread, file or page that they are rewritten from),
`recorded.yaml` (logs of planted failures and of healthy jobs on one GPU), `healthy.yaml` and the folders. Each failing
log has the rows that are right for it. Without FOLDER, the share of named failures is that of the logs whose cause a
row knows: the others test that a failure of any shape is seen.

Each failure is diagnosed alone, after a healthy line, and before each of `FINAL`, which follow any failure.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._report import Figure, finish
from envkit.doctor.logs import diagnose_log
from envkit.doctor.logtext import straight
from envkit.doctor.model import Diagnosis, Severity
from envkit.ground import strictyaml
from envkit.knowledge.failures import rows

KEPT = Path(__file__).parents[1] / "tests" / "logs"
BEFORE = "epoch 3 step 40 loss 0.9"
FINAL = (
    "The command '/bin/sh -c python train.py' returned a non-zero code: 1",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "##[error]Process completed with exit code 1.",
    "Warning  BackOff  3s  kubelet  CrashLoopBackOff: Back-off restarting failed container train in pod train-0",
    "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
    "srun: error: node07: task 0: Exited with exit code 1",
    "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
    "ERROR: Job failed: exit code 1",
)


def diagnosed(text: str) -> Diagnosis:
    """Diagnose a text."""
    return diagnose_log(io.BufferedReader(io.BytesIO(text.encode())), "log")


def failures(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each failing log of a folder."""
    listed = folder / "one_line_failures.txt"
    if listed.exists():
        for line in listed.read_text(encoding="utf-8").splitlines():
            name, _, text = line.partition("|")
            yield name, text
    else:
        yield from ((entry["name"], entry["line"].rstrip("\n")) for entry in entries(folder, "failures"))


def healthy(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each log of a folder that ends well."""
    yield from ((entry["name"], entry["line"]) for entry in entries(folder, "healthy"))


def right_rows() -> Mapping[str, frozenset[str]]:
    """Return the rows that are a right answer, by the name of a failing log."""
    return {entry["name"]: frozenset(entry.get("rows", ())) for entry in entries(KEPT, "failures")}


def has_cause(right: frozenset[str]) -> bool:
    """Return whether one of the right rows is a cause, so that the log has to be named; an effect explains nothing."""
    by_id = {row.id: row for row in rows()}
    known = [by_id.get(ident) for ident in right]
    # An ID without a row is that of an error code, which names its cause.
    return any(row is None or (row.role == "cause" and row.severity is Severity.ERROR) for row in known)


def entries(folder: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a kind: `failures`, `healthy`, `notes` (remarks that are no failure) or `open` (no end)."""
    for path in [folder / f"{key}.yaml", folder / "recorded.yaml", *sorted((folder / "public").glob("*.yaml"))]:
        if path.exists():
            tree = strictyaml.read_file(path)
            assert isinstance(tree, dict)
            yield from tree.get(key, ())


def judge(found: Diagnosis, right: frozenset[str], line: str) -> str:
    """Return what became of a failing line: named, unknown, hidden, false clear or false diagnosis."""
    shown = [evidence.text for finding in found.findings for evidence in finding.evidence]
    shown += [value for section in found.sections for _, value in section.facts]
    if found.exit_code == 0 and not any(finding.severity is Severity.ERROR for finding in found.findings):
        return "false clear"
    # The prefixes of engines are not shown, long lines are cut, and the reader straightens quotes.
    line = straight(line)
    if not any(text and (text[:200] in line or line[:200] in text) for text in shown):
        return "hidden"
    if found.exit_code != 0:
        return "unknown"
    return "named" if found.findings[0].id in right else "false diagnosis"


def main() -> int:
    """Run the benchmark; return 0 if all goals hold."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT
    right = right_rows()
    alone: Counter[str] = Counter()
    behind: Counter[str] = Counter()
    for name, line in failures(folder):
        answer = judge(diagnosed(f"{BEFORE}\n{line}\n"), right.get(name, frozenset()), line)
        alone[answer] += 1
        if answer != "named":
            print(f"  {name}: {answer}")
        for final in FINAL:
            behind[judge(diagnosed(f"{BEFORE}\n{line}\n{final}\n"), right.get(name, frozenset()), line)] += 1
    for part in ("hidden", "healthy", "cases"):
        _print_folder(folder / part)
    calm = Counter(str(diagnosed(text).verdict) for _, text in healthy(folder))
    if calm:
        print(f"healthy ({calm.total()}): " + ", ".join(f"{count} {kind}" for kind, count in calm.most_common()))
    total = max(1, alone.total() if folder != KEPT else sum(has_cause(known) for known in right.values()))
    for title, counts in (("alone", alone), (f"before each of {len(FINAL)} final lines", behind)):
        print(f"{title} ({counts.total()}): " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    both = alone + behind
    against = f"{alone.total()} failing logs, alone and before {len(FINAL)} final lines each"
    return finish(
        "log_verdicts",
        [
            Figure(
                name="named", figure=100 * alone["named"] / total, unit="%", better="higher", goal=85, against=against
            ),
            *(
                Figure(name=kind, figure=both[kind], unit="", better="lower", goal=0, against=against)
                for kind in ("false clear", "hidden", "false diagnosis")
            ),
        ],
    )


def _print_folder(folder: Path) -> None:
    if folder.is_dir():
        print(f"{folder.name}:")
        for path in sorted(folder.iterdir()):
            found = diagnosed(path.read_text(encoding="utf-8"))
            print(f"  {path.name}: {found.exit_code} {found.conclusion} {[finding.id for finding in found.findings]}")


if __name__ == "__main__":
    sys.exit(main())
