"""The record of one verification (`envkit.verify/1`): the request, the machine, the observations, and the rules.

It has the samples, units and thresholds, so that its verdict can be recomputed years later.
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
MAX_FILE = 64 << 20
"""Bytes of a record's file, far above any record."""
MAX_SAMPLES = 200  # values per measurement, as many as the payload sends
# Endings of variables with paths of one machine, such as TRITON_CACHE_DIR.
_PATHS = ("_DIR", "_DIRECTORY", "_PATH", "_FILE", "PYTHONPATH", "LD_PRELOAD")
_KINDS = {
    "min_frac_of_limit": "floor",
    "min_ratio": "ratio",
    "not_worse_than_baseline": "ratio",
    "informs": "information",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run itself. `exit_code` and `stderr_tail` are the payload's; None and empty if it never started."""

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
    isolation: Mapping[str, Any] | None = None  # of the runner: {level, missing}; None: unknown
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
        """The exit code for the verdict."""
        return int(self.tree["summary"]["exit_code"])

    def to_bytes(self) -> bytes:
        """Return the record as indented UTF-8 JSON with a final newline."""
        return json.dumps(self.tree, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"

    def write(self, path: Path) -> None:
        """Write the record to `path` atomically: if envkit is killed meanwhile, the old file stays.

        Raises:
            OSError: the folder is not writable.
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
    """Build a record. NaN and infinities become null."""
    env = dict(document["env"]) if document is not None else {}
    # The nonce belongs to one run. Without it, equal specs have equal digests.
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
    """Return the record of the observations in `tree` with a judgment and its digest.

    If `tree` has checks of an earlier judgment, their fields that this version does not know are kept.
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
_SHARED = ("case.py", "observed.py", "peaks.py", "precision_bands.py", "shm.py")


def seal(tree: Mapping[str, Any]) -> str:
    """Return the digest of a record without its own field. It detects accidents and careless edits, not forgery."""
    return digest_of({name: part for name, part in tree.items() if name != "sha256"})


@cache
def rules_digest() -> str:
    """Return the digest of the judging code: equal rules and thresholds give the same verdict on the same record."""
    verify, checks = resources.files("envkit.verify"), resources.files("envkit.checks")
    files = {f"checks/{folder.name}/judge.py": folder / "judge.py" for folder in folders()}
    files |= {f"checks/{name}": checks / name for name in _SHARED}
    files |= {f"verify/{name}": verify / name for name in _JUDGING}
    digest = hashlib.sha256("\0".join(sorted(machine_codes())).encode())
    for name, item in sorted(files.items()):
        data = item.read_bytes()
        # With the lengths, no other division into files gives the same bytes.
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def spec_digest(promised: Mapping[str, Any]) -> str:
    """Return the digest of a spec."""
    return _digest(promised)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a record."""
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
    """Return short digests of the machine (`hw`), the software (`sw`) and the way of measuring (`policy`).

    Numbers of two runs may be compared if `hw` and `policy` are equal; `sw` is what is tested. None of them depends on
    host names. All are None without an `env` from the payload.
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
        # The self-test has to find work that is repeated on purpose; all other fields are part of how it measures.
        policy["launch"] = {name: value for name, value in launch.items() if name != "body_factor"}
    if data is not None:
        policy["data"] = dict(data)
    return {
        "hw": "h:" + _digest(machine)[:16],
        "sw": "s:" + _digest(env.get("sw"))[:16],
        "policy": "p:" + _digest(policy)[:16],
    }


def flags_that_count(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that affect measurements: all but the paths of cache folders and files, and search paths."""
    return {name: value for name, value in flags.items() if not name.endswith(_PATHS)}


def _gpu(gpu: Mapping[str, Any]) -> list[Any]:
    """Return the values that identify a GPU model. Of its link only the maximum: the current state changes.

    A MIG slice has the name of the whole GPU, so multiprocessors and memory are included as well.
    """
    link = gpu.get("link")
    ends = [link.get("gen_max"), link.get("width_max")] if isinstance(link, dict) else None
    return [gpu.get("name"), gpu.get("cc"), ends, gpu.get("sms"), gpu.get("torch_mem_mib")]


def check_tree(item: Judged) -> dict[str, Any]:
    """Return one check in the form of the record."""
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
    """Return plain JSON: enums as text, tuples as lists, NaN and infinities as null, lone surrogates as `?`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if hasattr(value, "items"):  # any mapping, not only a dict
        return {_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _text(value)


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _digest(value: Any) -> str:
    return digest_of(_plain(value))
