"""The verdict on the whole image, and its exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.checks.model import Verdict
from envkit.checks.observed import promises
from envkit.ground.errors import EnvironmentProblem, NotVerifiedError, TimeLimitError, VerificationError
from envkit.ground.records import Row
from envkit.verify.judge import check_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.checks.model import Spec
    from envkit.verify.judge import Judged

NOT_VERIFIED = "NOT_VERIFIED"
"""The verdict on an image without failures for which required checks could not run."""

# Most severe first. SKIP is not in it: it does not affect the verdict.
_RANK = (Verdict.FAIL, Verdict.ERROR, NOT_VERIFIED, Verdict.INCONCLUSIVE, Verdict.WARN, Verdict.PASS)
_SEEN = (Verdict.PASS, Verdict.WARN, Verdict.INCONCLUSIVE)
_INFORMING = {Verdict.FAIL: Verdict.WARN, Verdict.ERROR: Verdict.WARN, Verdict.INCONCLUSIVE: Verdict.SKIP}
_TIME_LIMIT = frozenset({"TIME_LIMIT", "SUITE_STOPPED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason(Row):
    """A reason for the verdict on the whole image."""

    code: str  # UPPER_SNAKE
    message: str
    advice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A run that failed: the payload died, printed something else, never started, or reached its time limit."""

    verdict: Verdict  # FAIL | ERROR | INCONCLUSIVE
    exit_code: int
    reason: Reason

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {"verdict": str(self.verdict), "exit_code": self.exit_code, "reason": self.reason.to_json()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Trouble:
        """Return the trouble of a record; raises KeyError, TypeError or ValueError if it is incomplete."""
        reason = tree["reason"]
        return cls(
            verdict=Verdict(tree["verdict"]),
            exit_code=int(tree["exit_code"]),
            reason=Reason(code=str(reason["code"]), message=str(reason["message"]), advice=reason["advice"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Row):
    """The whole run in a few fields."""

    verdict: str  # a Verdict, or NOT_VERIFIED
    exit_code: int
    reasons: tuple[Reason, ...]
    counts: dict[str, int]
    diagnosis: tuple[str, ...]  # reason codes of failures, errors and warnings
    gpu: str  # 'exercised' | 'absent' | 'not promised'
    blames: str | None = None  # what failed: 'image' | 'machine'; None: the verdict is not FAIL


_Rule = tuple[bool, str | None, Reason]
"""Whether it applies, the verdict that it adds to those of the findings if any, and the reason that is shown."""


def summarize(judged: Sequence[Judged], spec: Spec, *, trouble: Trouble | None = None) -> Summary:
    """Return the most severe of all verdicts, with the reasons that belong to no single check.

    A GPU image is NOT_VERIFIED if no check ran on a GPU, and any image if its spec is empty. With `spec["allow_cpu"]`
    the verdict for a missing GPU is the same, but the exit code is 0 if there is no other reason.

    A fault of the machine gives FAIL and exit code 9. Failures of the image on a faulty GPU are ignored; any other
    failure of the image gives exit code 6.
    """
    gpu = _gpu(judged, spec)
    machine = [item for item in judged if item.blames == "machine"]
    image = [item for item in judged if item.blames == "image"]
    image_faults = [item for item in image if not _doubted(item, machine)]
    fault = (bool(machine), None, _machine_fault(machine, image, image_faults))
    applied = [(verdict, reason) for when, verdict, reason in (fault, *_rules(judged, spec, trouble, gpu)) if when]
    verdicts = {*map(_weight, judged), *(verdict for verdict, _ in applied)}
    verdict = next(rank for rank in _RANK if rank in verdicts)
    reasons = [reason for _, reason in applied]
    if verdict == Verdict.INCONCLUSIVE and trouble is None:
        reasons.append(_LATE if _stopped(judged) else _INCONCLUSIVE)
    # A run that failed is not excused by the machine; other trouble is an ERROR, which the machine may have caused.
    has_failed = trouble is not None and trouble.verdict is Verdict.FAIL
    only_machine = verdict == Verdict.FAIL and bool(machine) and not image_faults and not has_failed
    bad = (Verdict.FAIL, Verdict.ERROR, Verdict.WARN)
    codes = [item.finding.reason_code for kind in bad for item in judged if item.finding.verdict is kind]
    return Summary(
        verdict=str(verdict),
        exit_code=EnvironmentProblem.exit_code if only_machine else _exit_code(verdict, judged, reasons, spec, trouble),
        reasons=tuple(reasons),
        counts={str(kind): sum(item.finding.verdict is kind for item in judged) for kind in Verdict},
        diagnosis=tuple(dict.fromkeys(code for code in codes if code)),
        gpu=gpu,
        blames=None if verdict != Verdict.FAIL else "machine" if only_machine else "image",
    )


def _rules(judged: Sequence[Judged], spec: Spec, trouble: Trouble | None, gpu: str) -> tuple[_Rule, ...]:
    """Return the rules about the whole run, in the order in which their reasons are shown."""
    is_absent, is_stopped = gpu == "absent", _stopped(judged)
    is_unchecked = trouble is None and not is_stopped and not any(map(_counts, judged))
    skipped = [item.finding for item in judged if item.finding.verdict is Verdict.SKIP]
    torch = [finding.message for finding in skipped if finding.reason_code == "TORCH_MISSING"]
    left_out = sum(item.finding.reason_code == "NOT_SELECTED" for item in judged)
    return (
        # It explains all skipped checks, so it comes first.
        (bool(torch), NOT_VERIFIED, _torch_missing(torch, spec)),
        *(() if trouble is None else ((True, trouble.verdict, trouble.reason),)),
        # Whether there is a GPU is unknown if the suite was stopped before it looked for one.
        (is_absent and not is_stopped, NOT_VERIFIED, _no_gpu(spec)),
        (bool(spec.get("launch")), NOT_VERIFIED, _LAUNCH),
        (not promises(spec), NOT_VERIFIED, _NO_PLAN),
        # Without a GPU, the required checks of a GPU image are skipped; otherwise a run without any check is a fault.
        (is_unchecked, NOT_VERIFIED if is_absent else Verdict.ERROR, _NOTHING),
        (left_out > 0, None, Reason(code="PARTIAL", message=f"{left_out} checks of the tier were left out on request")),
    )


def _doubted(item: Judged, machine: Sequence[Judged]) -> bool:
    """Whether a failure of the image was measured on a faulty GPU; a faulty driver affects every GPU."""
    sick = {fault.subject for fault in machine}
    return item.subject.startswith("gpu:") and (
        item.subject in sick or any(not subject.startswith("gpu:") for subject in sick)
    )


def _machine_fault(machine: Sequence[Judged], image: Sequence[Judged], image_faults: Sequence[Judged]) -> Reason:
    faults = ", ".join(dict.fromkeys(f"{item.finding.reason_code} on {item.subject}" for item in machine))
    doubted = ", ".join(item.id for item in image if item not in image_faults)
    message = f"this machine is faulty, not the image: {faults}"
    if image_faults:
        message = f"this machine is faulty, and so is the image: {faults}"
    if doubted:
        message += f"; {doubted} failed on the same GPU and does not count against the image"
    return Reason(code="MACHINE_FAULT", message=message, advice=_ELSEWHERE)


def _counts(item: Judged) -> bool:
    """Return whether a required check ran and says something about the image."""
    return item.ran and item.gates and item.id.startswith("C") and item.finding.verdict is not Verdict.SKIP


def _weight(item: Judged) -> str:
    """Return the verdict that a finding counts as: one that only informs is at most a WARN."""
    verdict = item.finding.verdict
    if item.gates:
        return verdict
    return _INFORMING.get(verdict, verdict)


def _stopped(judged: Sequence[Judged]) -> bool:
    """Return whether a busy machine kept a check from ending within its time limit."""
    codes = {item.finding.reason_code for item in judged if item.finding.verdict is Verdict.INCONCLUSIVE and item.gates}
    return bool(codes & _TIME_LIMIT)


def _gpu(judged: Sequence[Judged], spec: Spec) -> str:
    """Return whether a GPU was used. The kernel check (C04) decides if it was selected, else any check on a GPU."""
    if not spec.get("gpu"):
        return "not promised"
    kernel = [item for item in judged if check_of(item.id) == "C04" and item.finding.reason_code != "NOT_SELECTED"]
    deciding = kernel or [item for item in judged if item.subject.startswith("gpu:")]
    seen = any(item.ran and item.subject.startswith("gpu:") and item.finding.verdict in _SEEN for item in deciding)
    # A kernel that failed did run on a GPU; its failure decides the verdict.
    tried = any(item.finding.verdict in (Verdict.FAIL, Verdict.ERROR) and item.ran for item in kernel)
    return "exercised" if seen or tried else "absent"


def _exit_code(
    verdict: str, judged: Sequence[Judged], reasons: Sequence[Reason], spec: Spec, trouble: Trouble | None
) -> int:
    if trouble is not None and trouble.verdict == verdict:
        return trouble.exit_code
    worst = {item.finding.reason_code for item in judged if item.gates and item.finding.verdict == verdict}
    # --allow-cpu excuses a missing GPU and nothing else.
    is_allowed = spec.get("allow_cpu") and all(reason.code in ("NO_GPU", "PARTIAL") for reason in reasons)
    is_noisy = any(_weight(item) == Verdict.INCONCLUSIVE for item in judged)
    # The first that applies decides.
    rules = (
        (verdict == Verdict.FAIL, VerificationError.exit_code),
        (verdict == Verdict.ERROR and bool(worst) and worst <= _TIME_LIMIT, TimeLimitError.exit_code),
        (verdict == Verdict.ERROR, VerificationError.exit_code),
        (verdict == NOT_VERIFIED and is_allowed and not is_noisy, 0),
        (verdict in (NOT_VERIFIED, Verdict.INCONCLUSIVE), NotVerifiedError.exit_code),
    )
    return next((code for when, code in rules if when), 0)


def _torch_missing(messages: Sequence[str], spec: Spec) -> Reason:
    advice = _REBUILD if promises(spec) else _NO_TORCH
    return Reason(code="TORCH_MISSING", message=next(iter(messages), ""), advice=advice)


def _no_gpu(spec: Spec) -> Reason:
    what = f"CUDA {spec['cuda']}" if spec.get("cuda") else "a GPU"
    if spec.get("allow_cpu"):
        return Reason(code="NO_GPU", message=f"the image is made for {what}; no GPU was used, which --allow-cpu allows")
    return Reason(
        code="NO_GPU",
        message=f"the image is made for {what} and no GPU was used, so it is not verified",
        advice="run envkit verify on a machine with a GPU, or accept this with --allow-cpu",
    )


_ELSEWHERE = "take this machine out of service until it is repaired, and verify the image on another one"
_REBUILD = "build the image again from its plan: envkit build"
_NO_TORCH = "install torch in this environment, or name the Python that has it: envkit verify --runner host PYTHON"
_LAUNCH = Reason(
    code="LAUNCH",
    message="this launch is part of a comparison and was timed differently, so it does not verify the image",
)
_NO_PLAN = Reason(
    code="NO_PLAN",
    message="no plan found for this image; results are informational",
    advice="give the plan it was built from: envkit verify IMAGE --plan FILE",
)
_NOTHING = Reason(
    code="NOTHING_EXECUTED",
    message="no required check was run",
    advice="run without --only and --skip",
)
_LATE = Reason(
    code="INCONCLUSIVE",
    message="the machine is busy: a check reached its time limit, although the limit was stretched",
    advice="run it again while nothing else uses this machine",
)
_INCONCLUSIVE = Reason(
    code="INCONCLUSIVE",
    message="a required check gave unreliable numbers, most often because the machine was busy",
    advice="run it again while nothing else uses this machine",
)
