"""Read from a record what all formats show: groups of findings, verdicts, names, environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envkit.checks.catalog import catalog
from envkit.checks.reading import Tree, check_of, is_number, mapping
from envkit.ground.text import clean

# Most severe first; the order also sorts the findings of one check.
VERDICTS = ("FAIL", "ERROR", "INCONCLUSIVE", "WARN", "PASS", "SKIP")
# Values of documents that people should read differently.
WORDS = {"NOT_VERIFIED": "NOT VERIFIED", "unproved": "not verified", "present": "already there"}
MACHINE = "MACHINE FAULT"
# One finding with the verdict, and several.
_COUNTED = {
    "FAIL": ("failed", "failed"),
    "ERROR": ("error", "errors"),
    "INCONCLUSIVE": ("inconclusive", "inconclusive"),
    "WARN": ("warning", "warnings"),
    "PASS": ("passed", "passed"),
    "SKIP": ("skipped", "skipped"),
}
_MODELS = {"cnn": "CNN", "mlp": "MLP", "transformer": "Transformer"}
_BENCH = 3  # words in `bench.cnn.fp32`
NOT_PROMISED = "the plan does not specify it; the value found is in the record"


def metric_title(key: str) -> str:
    """Return what a metric `CHECK.NAME@SUBJECT` measures, in words: `CNN training step, fp32, CPU`."""
    ident, _, subject = key.partition("@")
    check, *names = ident.split(".")
    where = subject.upper().replace(":", " ")
    if check == "C14" and len(names) == _BENCH and names[0] == "bench":
        return f"{_MODELS.get(names[1], names[1])} training step, {names[2]}, {where}"
    entry = next((entry for entry in catalog() if entry.id == check), None)
    return f"{entry.topic}: {' '.join(names).replace('_', ' ')}, {where}" if entry and names else key


def word(verdict: object) -> str:
    """Return a verdict, or the status of an image, as people read it."""
    return WORDS.get(str(verdict), str(verdict))


def headline(summary: Tree) -> str:
    """Return the verdict on the run as people read it; a machine fault is not a failure of the image."""
    return MACHINE if blames_machine(summary) else word(summary["verdict"])


def blames_machine(item: Tree) -> bool:
    """Return whether a finding or summary blames the machine. Records before 0.3 have no such field."""
    return item.get("blames") == "machine"


def code_of(item: Tree) -> str:
    """Return the reason code of a finding; for a machine fault as `XID (machine)`."""
    return f"{item['reason_code']} (machine)" if blames_machine(item) else str(item["reason_code"])


def by_check(checks: Iterable[Tree]) -> dict[str, list[Tree]]:
    """Return the findings by check, in the order of the record."""
    groups: dict[str, list[Tree]] = {}
    for check in checks:
        groups.setdefault(check_of(check["id"]), []).append(check)
    return groups


def neutral(item: Tree) -> bool:
    """Return whether a finding is inconclusive and does not count for the verdict."""
    return item["verdict"] == "INCONCLUSIVE" and not item["gates"]


def weight(item: Tree) -> str:
    """Return the verdict that a finding counts as: an informational one is at most a warning."""
    return "WARN" if item["verdict"] in ("FAIL", "ERROR") and not item["gates"] else str(item["verdict"])


def worst(group: Iterable[Tree]) -> str:
    """Return the verdict of a check: the most severe of its findings that count."""
    verdicts = {weight(item) for item in group if not neutral(item)} or {"INCONCLUSIVE"}
    return next(verdict for verdict in VERDICTS if verdict in verdicts)


def unseen(item: Tree) -> bool:
    """Return whether a check did not run because the suite ended before it; one line says so for all of them."""
    return item["reason_code"] in ("NOT_OBSERVED", "SUITE_STOPPED")


def wrong(group: Sequence[Tree]) -> list[Tree]:
    """Return the findings of a check other than PASS and SKIP, most severe first; without those that were not seen."""
    findings = (
        item for item in group if item["verdict"] not in ("PASS", "SKIP") and not neutral(item) and not unseen(item)
    )
    return sorted(findings, key=lambda item: VERDICTS.index(weight(item)))


def title_of(record: Tree) -> tuple[str, str]:
    """Return the image's name in its plan ('' without one), and its name in the engine."""
    subject = record["subject"]
    name = clean(subject.get("name") or "")
    by_id = str(subject["image"]).startswith("sha256:")
    image = clean(subject["tags"][0] if by_id and subject["tags"] else subject["image"])
    return ("" if name == image else name), image


def environment(env: Tree) -> list[str]:
    """Return torch, CUDA runtime, Python, GPUs and CPU in short form."""
    software, host = mapping(env.get("sw")), mapping(env.get("host"))
    facts = []
    if software.get("torch"):
        facts.append(f"torch {software['torch']}")
        facts.append(f"CUDA {software['torch_cuda']}" if software.get("torch_cuda") else "no CUDA")
    if software.get("python"):
        facts.append(f"Python {software['python']}")
    cards = [str(card.get("name")) for card in env.get("gpu") or [] if isinstance(card, dict)]
    counted = [f"{cards.count(card)} x {card}" if cards.count(card) > 1 else card for card in dict.fromkeys(cards)]
    facts += counted or (["no GPU"] if host else [])
    if host.get("cpu_model"):
        effective = host.get("effective")
        cpus = f" ({effective:g} CPUs)" if is_number(effective) else ""
        facts.append(f"{host['cpu_model']}{cpus}")
    return [clean(fact) for fact in facts]


def ran_by(run: Tree) -> list[str]:
    """Return the runner and, if its isolation is not strong, what is missing."""
    isolation = mapping(run.get("isolation"))
    facts = [f"runner {run['runner']}"]
    if isolation.get("level") not in (None, "strong"):
        missing = ", ".join(str(part) for part in isolation.get("missing") or ())
        level = "no" if isolation["level"] == "none" else isolation["level"]
        facts.append(f"{level} isolation" + (f" (without {missing})" if missing else ""))
    return [clean(fact) for fact in facts]


def not_checked(checks: Iterable[Tree]) -> dict[tuple[str, str], list[str]]:
    """Return the IDs of findings that are missing or were skipped, by reason code and message."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        if check["verdict"] == "SKIP" or unseen(check):
            code = str(check["reason_code"])
            message = NOT_PROMISED if code == "NOT_PROMISED" else str(check["message"])
            by_reason.setdefault((code, message), []).append(str(check["id"]))
    return by_reason


def counted(summary: Tree) -> str:
    """Return the number of findings per verdict, most severe first: `1 failed, 48 passed`."""
    counts = {verdict: summary["counts"].get(verdict) or 0 for verdict in VERDICTS}
    return ", ".join(f"{count} {_COUNTED[verdict][count > 1]}" for verdict, count in counts.items() if count)
