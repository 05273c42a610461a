"""Plans, payload documents, observations and a replaying runner, for tests of judging."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envkit.checks.case import Case
from envkit.checks.catalog import CheckEntry
from envkit.checks.model import Finding, Verdict
from envkit.ground.errors import Ending
from envkit.ground.pressure import Pressure
from envkit.ground.progress import Reporter
from envkit.image.name import ImageName
from envkit.plan.labels import plan_labels
from envkit.plan.model import BuildPlan, Smoke
from envkit.resolve.model import Driver, Resolution
from envkit.run.model import STRONG, RunLimits, RunResult

SELECTED = (
    CheckEntry("C04", "kernel", "quick", 1.0, "cuda"),
    CheckEntry("C05", "GEMM", "quick", 1.0, "torch"),
)


def plan(*, cuda: str | None = "12.6", user: str = "1000:1000", shm_mb: int = 512) -> BuildPlan:
    """Return a small plan; with `cuda=None`, a CPU plan."""
    resolution = Resolution(
        torch="2.7.1",
        cuda=cuda,
        cudnn="9.5.1" if cuda else None,
        nccl="2.26.2" if cuda else None,
        triton="3.3.1" if cuda else None,
        python="3.12",
        pythons=("3.12",),
        torchvision="0.22.1",
        torchaudio="2.7.1",
        files={"torch": "2.7.1+cu126" if cuda else "2.7.1+cpu"},
        source="pytorch",
        index="https://wheels.example.com/cu126" if cuda else None,
        channels=(),
        selector=None,
        local_version="cu126" if cuda else "cpu",
        driver=Driver(native="560.28", minimum="525.60.13", mode=None, given=None) if cuda else None,
        gpus=(),
        gpu_archs=("8.0", "9.0") if cuda else None,
        ptx=("9.0",) if cuda else (),
        glibc="2.28",
        platform="linux-64",
        os="debian12",
        pins=(),
        warnings=(),
        reasons={"torch": "the newest"},
    )
    return BuildPlan(
        name="train",
        title="Training",
        resolution=resolution,
        template="wheels",
        flavor="runtime",
        os_family="deb",
        base="registry.example.com/debian:12",
        build_base="registry.example.com/debian:12",
        installer=None,
        family=("torch==2.7.1", "torchvision==0.22.1"),
        channels=(),
        solve_env=(("CONDA_OVERRIDE_CUDA", "12.6"),),
        interpreter="python3",
        conda=(),
        pip=("einops",),
        system=(),
        build_system=(),
        env=(("LANG", "C.UTF-8"),),
        labels=(),
        features=(),
        user=user,
        workdir="/srv/train",
        entrypoint=(),
        cmd=("python",),
        smoke=Smoke(shm_mb=shm_mb),
        facts_digest="sha256:" + "0" * 64,
    )


def inspected(made: BuildPlan | None, **changed: Any) -> dict[str, Any]:
    """Return what a runner's `inspect` returns for the image of a plan."""
    labels = plan_labels(made) if made else {}
    user = made.user if made else "root"
    config = {"id": "sha256:" + "a" * 64, "labels": labels, "env": {"LANG": "C.UTF-8"}, "user": user, "entrypoint": []}
    return {**config, "architecture": "amd64", "size": 123_000_000, **changed}


def observation(check_id: str, subject: str = "cpu", status: str = "ran", **changed: Any) -> dict[str, Any]:
    """Return a valid observation whose control held."""
    reason = None if status == "ran" else {"code": "NO_GPU", "message": "torch sees no CUDA device here"}
    begin = {"id": check_id, "subject": subject, "status": status, "reason": reason, "observed": {"error": 2e-7}}
    rest = {
        "controls": [{"name": "planted", "held": True, "detail": ""}],
        "samples": None,
        "stats": None,
        "noise": None,
    }
    return {**begin, **rest, "nonfinite": {}, "duration_s": 0.1, **changed}


def document(*checks: Mapping[str, Any], nonce: str = "n") -> dict[str, Any]:
    """Return a payload document with these observations."""
    host = {"cpu_model": "Test CPU", "effective": 2.0}
    return {
        "schema": "envkit.payload/1",
        "nonce": nonce,
        "suite_version": "1",
        "started": "2026-01-01T00:00:00Z",
        "duration_s": 1.0,
        "tier": "quick",
        "seed": 0,
        "env": {"host": host, "gpu": [], "sw": {"torch": "2.7.1", "python": "3.12.1"}, "flags": {}},
        "checks": list(checks),
        "order": [],
    }


def printed(tree: Mapping[str, Any], nonce: str) -> bytes:
    """Return what the payload prints for a document."""
    return f"{json.dumps(tree)}\nenvkit.payload.end {nonce}\n".encode()


def passing(case: Case) -> Finding:
    """Judge every observation as PASS."""
    case.rule("max_rel_err")
    return case.passed("held")


def verdict_rule(verdict: Verdict, code: str | None = "SOME_CODE", **rule: Any) -> Callable[..., Finding]:
    """Return a rule that always gives this verdict."""
    return lambda *_: Finding(verdict, "a message", code, ("do this",), {"type": "max_rel_err", **rule})


class Load(Pressure):
    """The pressure of a quiet machine, for runs whose time limits are compared."""

    text: str | None = None

    def busy(self) -> str | None:
        """Return what keeps the CPUs busy."""
        return self.text

    def stretched(self, seconds: float) -> float:
        """Return the limit, four times as long on a busy machine."""
        return seconds * (4.0 if self.text else 1.0)


class Replay:
    """A runner whose runs print prepared bytes, computed from the spec."""

    name = "replay"
    isolation = STRONG

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], bytes] | Ending,
        *,
        exit_code: int = 0,
        oom_killed: bool = False,
        output_cut: bool = False,
        stderr: bytes = b"",
        image: Mapping[str, Any] | None = None,
    ) -> None:
        self.answer = answer
        self.exit_code = exit_code
        self.oom_killed = oom_killed
        self.output_cut = output_cut
        self.stderr = stderr
        self.image = image or inspected(None)
        self.argv: tuple[str, ...] = ()
        self.files: Mapping[str, bytes] = {}
        self.limits = RunLimits()
        self.spec: dict[str, Any] = {}

    def probe(self) -> str | None:
        """Return None: it always works."""
        return None

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """Return the prepared image."""
        del image
        return self.image

    def run(
        self,
        image: ImageName,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,
        entrypoint: bool = False,
    ) -> RunResult:
        """Record the arguments and return the prepared result. A start through the entry point always succeeds."""
        del gpus, reporter
        if entrypoint:
            return _started(argv[3], image.typed)
        self.argv, self.files, self.limits = tuple(argv), files, limits
        self.spec = next(json.loads(data) for path, data in files.items() if path.endswith("spec.json"))
        if isinstance(self.answer, Ending):
            raise self.answer
        return RunResult(
            exit_code=self.exit_code,
            stdout=self.answer(self.spec),
            stderr=self.stderr,
            duration_s=1.0,
            oom_killed=self.oom_killed,
            output_cut=self.output_cut,
            image_id=image.typed,
        )


def _started(nonce: str, image: str) -> RunResult:
    output = json.dumps({"nonce": nonce, "prefix": "/opt/env", "uid": 1000, "torch": "2.7.1"}).encode()
    return RunResult(exit_code=0, stdout=output, stderr=b"", duration_s=0.1, oom_killed=False, image_id=image)
