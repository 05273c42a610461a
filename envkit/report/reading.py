"""What all formats read from a record in the same way: groups of findings, their weight, names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envkit.checks.reading import Tree, check_of, is_number, mapping
from envkit.ground.text import clean

# Worst first; the order also sorts the findings within one check.
VERDICTS = ("FAIL", "ERROR", "INCONCLUSIVE", "WARN", "PASS", "SKIP")
# Where a document's word is not a reader's.
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
NOT_PROMISED = "the plan does not specify it; the value found is in the record"


def word(verdict: object) -> str:
    """A verdict, or what became of an image, as people read it."""
    return WORDS.get(str(verdict), str(verdict))


def headline(summary: Tree) -> str:
    """The verdict on the whole run as people read it; a faulty machine is not the image's failure."""
    return MACHINE if blames_machine(summary) else word(summary["verdict"])


def blames_machine(item: Tree) -> bool:
    """Whether a finding or a summary says that the machine is faulty. Records before 0.3 say nothing of it."""
    return item.get("blames") == "machine"


def code_of(item: Tree) -> str:
    """The reason code of a finding, with the machine where that is faulty: `XID (machine)`."""
    return f"{item['reason_code']} (machine)" if blames_machine(item) else str(item["reason_code"])


def by_check(checks: Iterable[Tree]) -> dict[str, list[Tree]]:
    """The findings of each check, in the order of the record."""
    groups: dict[str, list[Tree]] = {}
    for check in checks:
        groups.setdefault(check_of(check["id"]), []).append(check)
    return groups


def neutral(item: Tree) -> bool:
    """Whether a finding is an unreliable number that nothing depends on."""
    return item["verdict"] == "INCONCLUSIVE" and not item["gates"]


def weight(item: Tree) -> str:
    """Return the verdict a finding counts as: one that informs warns at most."""
    return "WARN" if item["verdict"] in ("FAIL", "ERROR") and not item["gates"] else str(item["verdict"])


def worst(group: Iterable[Tree]) -> str:
    """The verdict of a check: the worst of its findings that count."""
    verdicts = {weight(item) for item in group if not neutral(item)} or {"INCONCLUSIVE"}
    return next(verdict for verdict in VERDICTS if verdict in verdicts)


def wrong(group: Sequence[Tree]) -> list[Tree]:
    """Return the findings of a check besides PASS and SKIP, the worst first."""
    findings = (item for item in group if item["verdict"] not in ("PASS", "SKIP") and not neutral(item))
    return sorted(findings, key=lambda item: VERDICTS.index(weight(item)))


def title_of(record: Tree) -> tuple[str, str]:
    """Return the image's name in its plan ('' without one), and its name in the engine."""
    subject = record["subject"]
    name = clean(subject.get("name") or "")
    by_id = str(subject["image"]).startswith("sha256:")
    image = clean(subject["tags"][0] if by_id and subject["tags"] else subject["image"])
    return ("" if name == image else name), image


def environment(env: Tree) -> list[str]:
    """Torch, CUDA runtime, Python, GPUs and processor, each in a few words."""
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
    """Return the runner, and the isolation it lacks, if any."""
    isolation = mapping(run.get("isolation"))
    facts = [f"runner {run['runner']}"]
    if isolation.get("level") not in (None, "strong"):
        missing = ", ".join(str(part) for part in isolation.get("missing") or ())
        facts.append(f"isolation: {isolation['level']}: {run['runner']} (missing: {missing or 'nothing'})")
    return [clean(fact) for fact in facts]


def not_checked(checks: Iterable[Tree]) -> dict[tuple[str, str], list[str]]:
    """The findings that are missing or were skipped, by reason code and message."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        if check["verdict"] == "SKIP" or check["reason_code"] == "NOT_OBSERVED":
            code = str(check["reason_code"])
            message = NOT_PROMISED if code == "NOT_PROMISED" else str(check["message"])
            by_reason.setdefault((code, message), []).append(str(check["id"]))
    return by_reason


def counted(summary: Tree) -> str:
    """Return how many findings have each verdict, the most severe first: `1 failed, 48 passed`."""
    counts = {verdict: summary["counts"].get(verdict) or 0 for verdict in VERDICTS}
    return ", ".join(f"{count} {_COUNTED[verdict][count > 1]}" for verdict, count in counts.items() if count)
