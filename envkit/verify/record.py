"""The record of one verification (`envkit.verify/1`): what was asked, where it ran, what came out, and each rule used.

A verdict can be recomputed from its record years later: samples, units and thresholds stand beside it.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from envkit import __version__
from envkit.checks import thresholds
from envkit.checks.catalog import folders, machine_codes
from envkit.checks.model import Verdict
from envkit.ground.canonical import digest_of
from envkit.ground.store import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envkit.verify.exitcode import Summary, Trouble
    from envkit.verify.judge import Judged

SCHEMA = "envkit.verify/1"
MAX_SAMPLES = 200  # values of one measurement, as the payload sends them
_PLACES = ("_DIR", "_DIRECTORY", "_PATH", "_FILE", "PYTHONPATH", "LD_PRELOAD")
_KINDS = {
    "min_frac_of_limit": "floor",
    "min_ratio": "ratio",
    "not_worse_than_baseline": "ratio",
    "informs": "information",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run itself. `exit_code` and `stderr_tail` are the payload's, None and empty where it never started."""

    id: str
    started: str  # RFC 3339, UTC
    duration_s: float
    tier: str
    suite_sha256: str
    argv: tuple[str, ...]
    runner: str
    gpus: str | None
    selected: tuple[str, ...]
    exit_code: int | None
    stderr_tail: tuple[str, ...]
    launch: Mapping[str, Any] | None = None  # how a launch for a comparison differs from a plain run
    trouble: Trouble | None = None
    isolation: Mapping[str, Any] | None = None  # of the runner: {level, missing}; None: not known
    timing_trusted: bool = True  # False: the self-test found timing unreliable on this machine


@dataclass(frozen=True, slots=True)
class Record:
    """A finished record; `tree` is plain JSON."""

    tree: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """The verdict on the image."""
        return str(self.tree["summary"]["verdict"])

    @property
    def exit_code(self) -> int:
        """The exit code that says the verdict."""
        return int(self.tree["summary"]["exit_code"])

    def to_bytes(self) -> bytes:
        """Indented UTF-8 JSON with a final newline."""
        return json.dumps(self.tree, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"

    def write(self, path: Path) -> None:
        """Replace `path` by the record; a run killed meanwhile leaves the old file.

        Raises:
            OSError: the folder cannot be written.
        """
        write_atomic(path, self.to_bytes())


def build_record(
    *,
    run: RunFacts,
    subject: Mapping[str, Any],
    spec: Mapping[str, Any],
    document: Mapping[str, Any] | None,
    judged: Sequence[Judged],
    summary: Summary,
    baseline: Mapping[str, Any] | None = None,
) -> Record:
    """Put one record together. Numbers that JSON lacks become null."""
    env = dict(document["env"]) if document is not None else {}
    promised = {key: value for key, value in spec.items() if key != "nonce"}
    tree = {
        "schema": SCHEMA,
        "run": {
            "id": run.id,
            "started": run.started,
            "duration_s": round(run.duration_s, 3),
            "tier": run.tier,
            "suite_version": document["suite_version"] if document is not None else None,
            "suite_sha256": run.suite_sha256,
            "seed": document["seed"] if document is not None else None,
            "argv": list(run.argv),
            "runner": run.runner,
            "isolation": None if run.isolation is None else dict(run.isolation),
            "gpus": run.gpus,
            "selected": list(run.selected),
            "attempt": 1,
            "parent_run": None,
            "payload": {"exit_code": run.exit_code, "stderr_tail": list(run.stderr_tail)},
            "launch": run.launch,
            "trouble": None if run.trouble is None else run.trouble.to_json(),
            "timing_trusted": run.timing_trusted,
        },
        "subject": {**subject, "spec": {**promised, "sha256": spec_digest(promised)}},
        "env": {
            "fingerprint": fingerprint(
                env, tier=run.tier, suite_sha256=run.suite_sha256, launch=run.launch, data=spec.get("data")
            ),
            "host": env.get("host") or {},
            "gpu": env.get("gpu") or [],
            "sw": env.get("sw") or {},
            "flags": env.get("flags") or {},
        },
        "baseline": baseline,
    }
    return judged_record(tree, judged, summary)


def judged_record(tree: Mapping[str, Any], judged: Sequence[Judged], summary: Summary) -> Record:
    """The record of what was observed (`tree`, without a judgment) with its judgment and its seal.

    Where `tree` has checks of an earlier judgment, their fields that this version does not know are kept.
    """
    earlier = {(item["id"], item["subject"]): item for item in tree.get("checks", ())}
    whole = _plain(
        {
            **{name: part for name, part in tree.items() if name not in _JUDGEMENT},
            "checks": [{**earlier.get((item.id, item.subject), {}), **check_tree(item)} for item in judged],
            "summary": summary.to_json(),
            "judge": {
                "envkit": __version__,
                "rules_sha256": rules_digest(),
                "thresholds": thresholds.load().to_json(),
            },
        }
    )
    return Record({**whole, "sha256": seal(whole)})


_JUDGEMENT = ("checks", "summary", "judge", "sha256")
_JUDGING = ("judge.py", "exitcode.py", "static.py", "launch.py", "baseline.py")
_SHARED = ("fields.py", "precision_bands.py", "shm.py")


def seal(tree: Mapping[str, Any]) -> str:
    """Digest of a whole record but for the digest itself. It detects accidents and careless edits, not a forgery."""
    return digest_of({name: part for name, part in tree.items() if name != "sha256"})


@cache
def rules_digest() -> str:
    """Digest of the code that judges: the same rules and thresholds give the same verdict on the same record."""
    verify, checks = resources.files("envkit.verify"), resources.files("envkit.checks")
    files = {f"checks/{folder.name}/judge.py": folder / "judge.py" for folder in folders()}
    files |= {f"checks/{name}": checks / name for name in _SHARED}
    files |= {f"verify/{name}": verify / name for name in _JUDGING}
    digest = hashlib.sha256("\0".join(sorted(machine_codes())).encode())
    for name, item in sorted(files.items()):
        data = item.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def spec_digest(promised: Mapping[str, Any]) -> str:
    """Digest of what an image promises."""
    return _digest(promised)


def schema() -> dict[str, Any]:
    """The JSON Schema of a record, as shipped."""
    text = (resources.files("envkit.verify") / "record.schema.json").read_text(encoding="utf-8")
    tree: dict[str, Any] = json.loads(text)
    return tree


def fingerprint(
    env: Mapping[str, Any],
    *,
    tier: str,
    suite_sha256: str,
    launch: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> dict[str, str | None]:
    """Three short digests: the machine, the software, and how it was measured.

    Numbers of two runs may be compared where `hw` and `policy` agree; `sw` is what is being tested. Host names are in
    none of them. All are null where the payload told nothing.
    """
    if not env:
        return {"hw": None, "sw": None, "policy": None}
    host, gpus = env.get("host") or {}, env.get("gpu") or []
    machine = {
        "cpu": host.get("cpu_model"),
        "effective": host.get("effective"),
        "gpus": [_gpu(gpu) for gpu in gpus if isinstance(gpu, dict)],
    }
    policy = {"flags": flags_that_count(env.get("flags") or {}), "tier": tier, "suite": suite_sha256}
    if launch is not None:
        # A body repeated on purpose is what a self-test is to find; everything else says how it was measured.
        policy["launch"] = {name: value for name, value in launch.items() if name != "body_factor"}
    if data is not None:
        policy["data"] = dict(data)
    return {
        "hw": "h:" + _digest(machine)[:16],
        "sw": "s:" + _digest(env.get("sw"))[:16],
        "policy": "p:" + _digest(policy)[:16],
    }


def flags_that_count(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that say how it was measured; a cache folder or a search path only says where."""
    return {name: value for name, value in flags.items() if not name.endswith(_PLACES)}


def _gpu(gpu: Mapping[str, Any]) -> list[Any]:
    """What tells one GPU from another. Of its link only what it can do: what it did changes from run to run.

    A MIG slice has the name of the whole GPU, so its multiprocessors and its memory count as well.
    """
    link = gpu.get("link")
    ends = [link.get("gen_max"), link.get("width_max")] if isinstance(link, dict) else None
    return [gpu.get("name"), gpu.get("cc"), ends, gpu.get("sms"), gpu.get("torch_mem_mib")]


def check_tree(item: Judged) -> dict[str, Any]:
    """One check as the record keeps it."""
    finding, observation = item.finding, item.observation or {}
    rule = dict(finding.rule)
    return {
        "id": item.id,
        "title": item.title,
        "check_version": 1,
        "subject": item.subject,
        "kind": _KINDS.get(str(rule.get("type")), "static" if item.id.startswith("S") else "correctness"),
        "gates": item.gates,
        "blames": item.blames,
        "verdict": str(finding.verdict),
        "reason_code": finding.reason_code if finding.verdict is not Verdict.PASS else None,
        "message": finding.message,
        "status": observation.get("status"),
        "reason": observation.get("reason"),
        "advice": list(finding.advice),
        "metric": None if finding.metric is None else dict(finding.metric),
        "derived": dict(finding.derived),
        "observed": observation.get("observed") or {},
        "samples": _capped(observation.get("samples")),
        "stats": observation.get("stats"),
        "rule": rule,
        "controls": observation.get("controls") or [],
        "noise": observation.get("noise"),
        "duration_s": observation.get("duration_s"),
    }


def _capped(samples: Any) -> Any:
    if not isinstance(samples, dict) or not isinstance(samples.get("values"), list):
        return samples
    return {**samples, "values": samples["values"][:MAX_SAMPLES]}


def _plain(value: Any) -> Any:
    """Plain JSON: enums as text, tuples as lists, NaN and infinities as null, half a surrogate pair as `?`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if hasattr(value, "items"):
        return {_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _text(value)


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _digest(value: Any) -> str:
    return digest_of(_plain(value))
