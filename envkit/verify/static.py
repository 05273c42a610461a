"""S00 to S04: checks of an image's configuration, without running it: labels, platform, user, environment, size.

Every rule runs a second time with a planted fault. If that still gives PASS, the rule cannot fail on this image, and
its finding is an ERROR.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envkit.checks.model import Finding, Verdict
from envkit.ground import platforms
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.sizes import shown_size
from envkit.knowledge import variables
from envkit.plan.labels import plan_labels
from envkit.verify.judge import Judged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envkit.plan.model import BuildPlan

PLAN_LABEL = f"{LABEL_PREFIX}.plan"
_KINDS = (variables.SHADOWS, variables.CHECK, variables.HIDES)


def shadowing(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a process load something else than what the plan installed."""
    return {name: environ[name] for name in variables.names(variables.SHADOWS) if environ.get(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """An image's configuration, as an engine reports it."""

    id: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    user: str
    entrypoint: tuple[str, ...]
    architecture: str
    size: int | None  # bytes, as the engine counts
    cmd: tuple[str, ...] = ()
    workdir: str = ""


def image_facts(inspected: Mapping[str, Any]) -> ImageFacts:
    """Return the runner's answer with every field in its type; missing fields are empty."""
    env = inspected.get("env") or {}
    if not isinstance(env, dict):
        # Docker lists variables as NAME=VALUE; a value may contain further equals signs.
        env = dict(str(item).partition("=")[::2] for item in env)
    return ImageFacts(
        id=str(inspected.get("id") or ""),
        labels=dict(inspected.get("labels") or {}),
        env=env,
        user=str(inspected.get("user") or ""),
        entrypoint=tuple(inspected.get("entrypoint") or ()),
        architecture=str(inspected.get("architecture") or ""),
        size=inspected.get("size"),
        cmd=tuple(inspected.get("cmd") or ()),
        workdir=str(inspected.get("workdir") or ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a plan specifies of its image's configuration, small enough for every record."""

    plan: str  # digest
    labels: Mapping[str, str]
    platform: str
    user: str
    env: Mapping[str, str]  # only the variables that load other files than were installed
    cuda: bool

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Promise:
        """Return the promise of a record; raises KeyError or TypeError if it is incomplete."""
        return cls(
            plan=str(tree["plan"]),
            labels=dict(tree["labels"]),
            platform=str(tree["platform"]),
            user=str(tree["user"]),
            env=dict(tree["env"]),
            cuda=tree["cuda"] is True,
        )


def promise_of(plan: BuildPlan) -> Promise:
    """Return what `plan` specifies of its image's configuration."""
    return Promise(
        plan=plan.digest,
        labels={name: value for name, value in plan_labels(plan).items() if name.startswith(f"{LABEL_PREFIX}.")},
        platform=plan.resolution.platform,
        user=plan.user,
        env=shadowing(dict(plan.env)),
        cuda=plan.resolution.cuda is not None,
    )


def static_checks(facts: ImageFacts, plan: BuildPlan | None) -> tuple[Judged, ...]:
    """Return S00 to S04 for one image."""
    promise = None if plan is None else promise_of(plan)
    return tuple(_controlled(check, facts, promise) for check in _CHECKS)


def static_again(check_id: str, observed: Mapping[str, Any], promise: Promise | None) -> Judged:
    """Return one of S00 to S04 from a record's observation; raises KeyError for another ID."""
    check = {item.id: item for item in _CHECKS}[check_id]
    return _controlled(check, image_facts(observed), promise)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Static:
    id: str
    title: str
    rule: Callable[[ImageFacts, Promise | None], Finding]
    planted: Mapping[str, Any]
    """Fields of an image on which a working rule does not give PASS."""


def _controlled(check: _Static, facts: ImageFacts, promise: Promise | None) -> Judged:
    finding = check.rule(facts, promise)
    controls: list[dict[str, Any]] = []
    if finding.verdict is not Verdict.SKIP:
        values = {name: getattr(facts, name) for name in ImageFacts.__dataclass_fields__}
        control = check.rule(ImageFacts(**{**values, **check.planted}), promise)
        noticed = control.verdict is not Verdict.PASS
        controls = [{"name": "planted_fault_is_noticed", "held": noticed, "detail": control.message}]
        if not noticed:
            message = "the rule does not notice a planted fault"
            finding = Finding(Verdict.ERROR, message, "CONTROL_FAILED", rule=finding.rule)
    observed = {name: getattr(facts, name) for name in ("id", *check.planted)}
    if "env" in observed:  # an image's other variables may contain secrets
        recorded = variables.names(*_KINDS)
        observed["env"] = {name: value for name, value in facts.env.items() if name in recorded}
    observation = {"status": "skip" if finding.verdict is Verdict.SKIP else "ran", "observed": observed}
    return Judged(
        id=check.id,
        title=check.title,
        subject="image",
        finding=finding,
        observation={**observation, "controls": controls},
    )


def _labels(facts: ImageFacts, promise: Promise | None) -> Finding:
    rule = {"type": "equals", "label": PLAN_LABEL, "value": promise.plan if promise else None}
    label = facts.labels.get(PLAN_LABEL)
    if promise is None:
        return Finding(Verdict.SKIP, "there is no plan to compare the labels with", "NO_PLAN", rule=rule)
    if label is None:
        advice = ("Build it with envkit build, which labels the image with its plan's digest.",)
        return Finding(Verdict.WARN, f"the image has no {PLAN_LABEL} label", "UNLABELLED", advice, rule)
    if label != promise.plan:
        message = f"the image was built from the plan {label[:19]}…, not from {promise.plan[:19]}…"
        advice = ("Verify with the plan the image was built from, or build it again.",)
        return Finding(Verdict.FAIL, message, "PLAN_MISMATCH", advice, rule)
    wrong = [name for name, value in promise.labels.items() if facts.labels.get(name) != value]
    if wrong:
        message = f"labels that contradict the plan: {', '.join(wrong)}"
        return Finding(
            Verdict.FAIL, message, "LABEL_MISMATCH", ("Build it again; a later step changed its labels.",), rule
        )
    return Finding(Verdict.PASS, f"built from the plan {promise.plan[:19]}…", rule=rule)


def _architecture(facts: ImageFacts, promise: Promise | None) -> Finding:
    if promise is None:
        message = f"there is no plan to compare the architecture with; the image is for {facts.architecture}"
        return Finding(Verdict.SKIP, message, "NO_PLAN")
    platform = promise.platform
    known = platforms.platform(platform) if platform in platforms.PLATFORMS else None
    allowed = (known.architecture, known.machine) if known is not None else ()
    rule = {"type": "equals", "platform": platform, "architectures": list(allowed)}
    if facts.architecture not in allowed:
        message = f"the image is for {facts.architecture or 'an unknown architecture'}, the plan for {platform}"
        return Finding(Verdict.FAIL, message, "PLATFORM_MISMATCH", (f"Build it again for {platform}.",), rule)
    return Finding(Verdict.PASS, f"{facts.architecture}, as planned for {platform}", rule=rule)


def _user(facts: ImageFacts, promise: Promise | None) -> Finding:
    rule = {"type": "equals", "user": promise.user if promise else None}
    root = facts.user.partition(":")[0] in ("", "0", "root")
    planned = promise is None or facts.user == promise.user
    if root and promise is not None and promise.user.partition(":")[0] not in ("", "0", "root"):
        return Finding(Verdict.FAIL, f"runs as root; the plan says {promise.user}", "RUNS_AS_ROOT", (_USER,), rule)
    if root:
        # Also if the plan asks for root: then it is no fault, but still worth a warning.
        return Finding(Verdict.WARN, "runs as root", "RUNS_AS_ROOT", (_USER,), rule)
    if not planned:
        message = f"runs as {facts.user}; the plan says {promise.user if promise else None}"
        return Finding(Verdict.WARN, message, "USER_MISMATCH", ("Build it again from its plan.",), rule)
    return Finding(Verdict.PASS, f"runs as {facts.user}", rule=rule)


_USER = "Set `user` in the image definition to a numeric uid:gid and build again."


def _environment(facts: ImageFacts, promise: Promise | None) -> Finding:
    wanted = promise.env if promise else {}
    rule = {"type": "absent", "variables": list(variables.names(variables.SHADOWS, variables.CHECK))}
    set_here = [name for name, value in shadowing(facts.env).items() if value != wanted.get(name)]
    for variable, _ in variables.found(facts.env, kinds=(variables.CHECK,)):
        advice = (f"Remove {variable.name} from the image: it {variable.effect}.",)
        return Finding(Verdict.WARN, f"sets {variable.name}", "DRIVER_CHECK_DISABLED", advice, rule)
    if set_here:
        names = ", ".join(set_here)
        advice = (f"Remove {names} from the image, or name it under `env` in the definition.",)
        return Finding(Verdict.WARN, f"sets {names}, which can load other libraries", "ENV_SHADOWS", advice, rule)
    capabilities = variables.one("NVIDIA_DRIVER_CAPABILITIES", variables.HIDES)
    value = facts.env.get(capabilities.name, "")
    if promise is not None and promise.cuda and capabilities.applies(value):
        return Finding(Verdict.FAIL, capabilities.said(value), "NO_COMPUTE_CAPABILITY", (capabilities.fix,), rule)
    return Finding(Verdict.PASS, "no environment variable overrides libraries or the driver check", rule=rule)


def _size(facts: ImageFacts, promise: Promise | None) -> Finding:
    del promise
    rule = {"type": "informs", "gates": False}
    if not facts.size:
        return Finding(Verdict.SKIP, "the engine does not report the size", "NO_SIZE", rule=rule)
    metric = {"name": "image_size", "value": facts.size, "unit": "B", "better": "lower"}
    return Finding(Verdict.PASS, f"{shown_size(facts.size)} unpacked", rule=rule, metric=metric)


_CHECKS = (
    _Static(id="S00", title="labels agree with the plan", rule=_labels, planted={"labels": {PLAN_LABEL: "sha256:0"}}),
    _Static(id="S01", title="architecture agrees with the plan", rule=_architecture, planted={"architecture": "vax"}),
    _Static(id="S02", title="user is not root", rule=_user, planted={"user": "root"}),
    _Static(
        id="S03",
        title="environment shadows nothing",
        rule=_environment,
        planted={"env": {"LD_LIBRARY_PATH": "/planted", "NVIDIA_DISABLE_REQUIRE": "1"}},
    ),
    _Static(id="S04", title="image size", rule=_size, planted={"size": None}),
)
