"""The smoke suite on a GPU: its numbers, whether it reports planted faults, and the effect of load and settings.

    python -m benchmarks.gpu_calibration [FOLDER [one|two|three]] [--standin]

Three calls of up to ten minutes each, on a machine with a GPU and in the Python that has torch and PyYAML:

    one     facts of the machine, `quick` twice, C10 three times, and the numbers that thresholds depend on: the time of
            reading the link, rates of products, errors by precision, pinned copies compared with cudaMemcpyAsync
    two     `standard`, then one planted fault after another, each with the code that must be reported
    three   C24, the suite during other loads, and in other environments

Every document is written to FOLDER/CALL.jsonl at once, with its verdicts, so a call that is cut off loses nothing. No
setting of the GPU is changed, and only processes started here are ended. `--standin` runs a smaller version on the
tests' model of a GPU, to test the harness itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._gpu_faults import ENVIRONMENTS, FAULTS, LOADS, Fault
from benchmarks._report import Figure, finish, tell
from envkit.checks.catalog import judges, select
from envkit.checks.model import Verdict
from envkit.ground.errors import EnvkitError
from envkit.verify.judge import Judged, judge
from envkit.verify.payload import parse_document, payload_archive

SPEC: dict[str, Any] = {
    "nonce": "calibration",
    "gpu": True,
    "loader": {"num_workers": 4, "prefetch_factor": 2, "batch_bytes": 16 << 20, "pin_memory": True},
    "features": {"compile": "optional"},
}
_NUMBERS = Path(__file__).with_name("_gpu_numbers.py")
_BOOT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
exec(compile(open(sys.argv.pop(1)).read(), "<fault>", "exec"))
from envkit.smoke.__main__ import main
sys.exit(main())
"""
_FACTS = (
    "nvidia-smi",
    "nvidia-smi -q",
    "nvidia-smi topo -m",
    "nvidia-smi nvlink -s",
    "lscpu",
    "cat /proc/pressure/cpu",
    "uname -a",
    "free -m",
    "df -h /dev/shm /tmp",
)
_QUIET = ("NOT_PROMISED", "NO_PLAN", "NOT_SELECTED")
_GPU_CHECK_S = 60
_PATIENCE = 5  # factor on time limits for the model, which computes on the CPU


@dataclass(slots=True)
class Session:
    """One call: where its records go, and how its processes are started."""

    folder: Path
    scratch: Path
    call: str
    begin: float
    standin: Mapping[str, str] = field(default_factory=dict)  # variables of every process
    smaller: str = ""  # code before every patch

    def keep(self, kind: str, name: str, **data: Any) -> None:
        """Add a line to the call's records."""
        row = {"kind": kind, "name": name, "at_s": round(time.monotonic() - self.begin, 1), **data}
        with (self.folder / f"{self.call}.jsonl").open("a") as stream:
            stream.write(json.dumps(row, default=str) + "\n")

    def say(self, text: str) -> None:
        """Print a line with the seconds since the call began."""
        tell(f"{time.monotonic() - self.begin:6.1f}  {text}")

    def run(
        self, argv: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, str, float]:
        """Run a command in its own session; return its exit code (124: over the limit), output, errors and seconds."""
        begin = time.monotonic()
        with subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.scratch,
            env={**os.environ, **self.standin, **(env or {})},
            start_new_session=True,
        ) as process:
            try:
                out, errors = process.communicate(timeout=limit_s)
                code = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, errors = process.communicate()
                code = 124
        return code, out, errors.decode("utf-8", "replace"), time.monotonic() - begin

    def payload(
        self,
        name: str,
        only: str = "",
        *,
        tier: str = "quick",
        patch: str = "",
        env: Mapping[str, str] | None = None,
        limit_s: float = 240.0,
        prefix: Sequence[str] = (),
    ) -> tuple[Judged, ...]:
        """Run the payload, keep and judge its document; return the findings, none if there is no document."""
        files = {
            "payload.pyz": payload_archive(),
            "spec.json": json.dumps(SPEC).encode(),
            "patch.py": (self.smaller + patch).encode(),
        }
        for file, data in files.items():
            (self.scratch / file).write_bytes(data)
        argv = [*prefix, sys.executable, "-B", "-c", _BOOT, "payload.pyz", "patch.py", "--spec", "spec.json"]
        argv += ["--tier", tier, *(["--only", only] if only else [])]
        code, out, errors, wall = self.run(argv, limit_s * (_PATIENCE if self.standin else 1), env)
        try:
            document = parse_document(out, SPEC["nonce"])
        except EnvkitError as error:
            self.keep("payload", name, wall_s=wall, exit=code, error=str(error), stderr=errors[-3000:])
            self.say(f"{name}: NO DOCUMENT after {wall:.1f} s, exit {code}: {error}")
            return ()
        chosen = select(tier, only.split(",") if only else ())
        judged = judge(document, SPEC, chosen, judges())
        times = {item["id"].partition(".")[0]: item["duration_s"] for item in reversed(document["checks"])}
        verdicts = [[item.id, item.subject, str(item.finding.verdict), item.finding.reason_code] for item in judged]
        self.keep("payload", name, wall_s=wall, exit=code, seconds=times, said=verdicts, document=document)
        slowest = sorted(times.items(), key=lambda item: -(item[1] or 0))[:5]
        self.say(f"{name}: {wall:.1f} s ({', '.join(f'{check} {spent or 0:.1f}' for check, spent in slowest)})")
        for item in judged:
            finding = item.finding
            if finding.verdict is not Verdict.PASS and finding.reason_code not in _QUIET:
                line = f"{item.id} {item.subject} {finding.verdict} {finding.reason_code}: {finding.message}"
                self.say(f"    {line[:200]}")
        return judged

    @contextmanager
    def beside(self, load: str, *arguments: object) -> Iterator[bool]:
        """Keep the GPU or the CPUs busy with another process; yield whether it started."""
        process = subprocess.Popen(
            [sys.executable, "-c", LOADS[load], *map(str, arguments)],
            stdout=subprocess.PIPE,
            cwd=self.scratch,
            env={**os.environ, **self.standin},
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip() == b"up"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def one(session: Session, short: bool) -> list[Figure]:
    """Record facts, repeated runs and the numbers that thresholds depend on."""
    for command in _FACTS:
        if shutil.which(command.split()[0]):
            _, out, _, wall = session.run(command.split(), 60)
            session.keep("fact", command, text=out.decode("utf-8", "replace")[:40000], seconds=wall)
    for name, code in (("import torch", "import torch"), ("context", "import torch; torch.zeros(1, device='cuda')")):
        spent = [session.run([sys.executable, "-c", code], 120)[3] for _ in range(1 if short else 3)]
        session.keep("fact", name, seconds=spent)
        session.say(f"{name}: {', '.join(f'{value:.1f}' for value in spent)} s")
    figures = []
    for number in range(1 if short else 2):
        begin = time.monotonic()
        session.payload(f"quick {number}", limit_s=240)
        figures.append(
            Figure(
                name=f"quick {number}",
                figure=time.monotonic() - begin,
                unit="s",
                better="lower",
                goal=60,
                against="the documented limit on an H100 with 16 CPUs",
            )
        )
    for number in range(1 if short else 3):
        session.payload(f"C10 again {number}", "C10")
    ended, out, errors, wall = session.run([sys.executable, "-B", str(_NUMBERS), "payload.pyz"], 900 if short else 300)
    rows = [json.loads(line) for line in out.decode("utf-8", "replace").splitlines() if line.startswith("{")]
    session.keep("numbers", "all", exit=ended, wall_s=wall, rows=rows, stderr=errors[-3000:])
    for row in rows:
        session.say(f"{row['name']}: {json.dumps(row['value'])[:300]}")
    if ended:
        session.say(f"the numbers ended with exit code {ended}: {errors.strip().splitlines()[-1:]}")
    for row in rows:
        for name, share in row["value"].items() if row["name"] == "share of a plain copy loop" else ():
            against = "a loop of cudaMemcpyAsync over the same buffers"
            figures.append(Figure(name=name, figure=share, unit="1", better="higher", goal=0.95, against=against))
    return figures


def two(session: Session, short: bool) -> list[Figure]:
    """Run the standard tier, then plant every fault."""
    if not short:
        session.payload("standard", tier="standard", limit_s=330)
    named = [_named(session, fault) for fault in FAULTS if fault.modeled or not short]
    against = f"{len(named)} faults, each planted alone"
    share = sum(named) / len(named)
    return [Figure(name="faults named", figure=share, unit="1", better="higher", goal=1.0, against=against)]


def _named(session: Session, fault: Fault) -> bool:
    """Plant one fault; return whether each of its findings has the expected code."""
    judged = session.payload(f"fault {fault.name}", fault.only, tier="standard", patch=fault.patch, limit_s=120)
    codes = {(item.id, item.finding.reason_code) for item in judged}
    missed = [f"{ident} without {code}" for ident, code in fault.expected.items() if (ident, code) not in codes]
    session.keep("fault", fault.name, expected=fault.expected, missed=missed)
    session.say(f"    {fault.name}: {'NOT named: ' + '; '.join(missed) if missed else 'named'}")
    return not missed


def three(session: Session, short: bool) -> list[Figure]:
    """Run a minute of load, then the suite during other loads and in other environments."""
    if not short:
        session.payload("C24", "C24", tier="deep", limit_s=150)
    busy: list[tuple[str, str, tuple[int, ...]]] = [
        ("copy", "C10,C11", (60,)),
        ("gemm", "C10,C15,C26", (60,)),
        ("cpu", "C10,C14", (60,)),
        ("memory", "C04,C09,C10,C14", (90, 300)),
        ("memory", "C04,C09,C10,C14,C15,C27", (90, 1500)),
    ]
    for load, only, arguments in busy[2:3] if short else busy:
        with session.beside(load, *arguments) as up:
            if up:
                session.payload(f"beside {load} {arguments}", only, tier="standard", limit_s=120)
            else:
                session.say(f"the load {load} {arguments} did not start")
    for name, (env, only) in list(ENVIRONMENTS.items())[: 3 if short else None]:
        session.payload(f"env {name}", only, tier="standard", env=env, limit_s=120)
    if os.geteuid() == 0 and shutil.which("setpriv") and not short:
        another = ("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups")
        only = "C03,C04,C05,C09,C10,C13,C18"
        session.payload("as another user", only, tier="standard", env={"HOME": "/nonexistent"}, prefix=another)
    if shutil.which("prlimit"):
        session.payload("memlock 64 KiB", "C00,C09,C10", prefix=("prlimit", "--memlock=65536:65536"))
    return []


CALLS = {"one": one, "two": two, "three": three}


def main() -> int:
    """Make one call; return 0 if its goals hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_calibration", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gpu-calibration"), help="where records go")
    parser.add_argument("call", nargs="?", choices=CALLS, default="one")
    parser.add_argument("--standin", action="store_true", help="the tests' model of a GPU, and less of everything")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="envkit-calibration-") as scratch:
        session = Session(options.folder, Path(scratch), options.call, time.monotonic())
        Path(scratch).chmod(0o755)  # because another user makes one of the runs
        if options.standin:
            session.standin, session.smaller = _standin(Path(scratch))
        else:
            sees = "import torch, sys; sys.exit(not torch.cuda.is_available())"
            if session.run([sys.executable, "-c", sees], _GPU_CHECK_S)[0]:
                tell("torch sees no GPU here, so there is nothing to calibrate; --standin tests the harness itself")
                return 0
        options.folder.mkdir(parents=True, exist_ok=True)
        figures = CALLS[options.call](session, options.standin)
        session.say(f"records: {options.folder / (options.call + '.jsonl')}")
    return finish("gpu_calibration", figures) if figures else 0


def _standin(folder: Path) -> tuple[dict[str, str], str]:
    """Return variables by which processes see the tests' model of a GPU, and code that gives it less to do."""
    from tests.support.standin import SMALLER, StandIn  # noqa: PLC0415 - the tests are not where a GPU is calibrated

    StandIn.prepare(folder)
    return {"PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(folder)}, SMALLER


if __name__ == "__main__":
    sys.exit(main())
