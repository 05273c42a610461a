"""What a machine with a GPU has to show, in one command of at most nine minutes that needs nothing from outside.

    python -m benchmarks.gpu_session [FOLDER] [--seconds S] [--steps NAME,...] [--standin]

Run it in a checkout of this repository with a Python of a virtual environment that has torch and envkit's own packages;
bubblewrap and proot have to be installed, and nothing else. In order of what decides most, each step with a time limit
of its own, after which the next one starts:

    image        an image of this machine's own Python and torch
    CUDA         CUDA starts in that image, in bubblewrap and in proot
    run          a training with forked loader workers in `envkit run`
    watch        the same training with and without `envkit watch`, on this machine and in the image: equal exit codes
    quick        `envkit verify` in bubblewrap: VERIFIED, and how long it takes
    standard     the same with the tier standard
    faults       one planted fault after another, each with the code that must be reported
    beside       the suite during other loads, in other environments and as another user

`--steps` makes only some of them; the image is made for those that need it.

Every record is written to FOLDER at once and the folder is packed into FOLDER.tar.gz in the end, also after Ctrl-C.
The records name this machine's GPU and paths. `--standin` goes through all steps with the tests' model of a GPU, which
shows that the session works and says nothing about CUDA.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._gpu_faults import ENVIRONMENTS, FAULTS
from benchmarks._machine_image import MachineImage, make
from benchmarks._report import Figure, finish, tell
from benchmarks.gpu_calibration import Session, _named, _standin

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 540.0
QUICK_S, STANDARD_S = 35.0, 180.0
RUNNERS = {"bubblewrap": "bwrap", "proot": "proot"}
_WITHOUT_IMAGE = {"faults", "beside"}
_PATIENCE = 6  # factor on the limits of steps for the model, which computes on the CPU
_RESERVE_S = 3.0  # to pack the records
CUDA = """
import json, torch
ones = torch.ones(1 << 20, device="cuda")
ones.add_(1)
torch.cuda.synchronize()
print(json.dumps({"device": torch.cuda.get_device_name(0), "sum": float(ones.double().sum().item())}))
"""
TRAINING = """
import sys, time, torch
from torch import nn

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 14
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((1024,), float(index % 7)), index % 10

torch.manual_seed(0)
device, steps = torch.device("cuda"), int(sys.argv[1])
model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer, loss = torch.optim.SGD(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()
loader = torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=2, multiprocessing_context="fork")
for step, (samples, labels) in enumerate(loader):
    optimizer.zero_grad(set_to_none=True)
    value = loss(model(samples.to(device)), labels.to(device))
    value.backward()
    optimizer.step()
    if step == steps:
        break
torch.cuda.synchronize()
print("trained to a loss of", float(value.item()))
"""


@dataclass(slots=True)
class Steps:
    """The steps of a session: their figures, and what later ones need of earlier ones."""

    session: Session
    end: float
    standin: bool
    image: MachineImage | None = None
    figures: list[Figure] = field(default_factory=list)

    def left(self) -> float:
        """Return the seconds that the session has left."""
        return self.end - time.monotonic() - _RESERVE_S

    def limit(self, seconds: float) -> float:
        """Return a step's time limit: its own, or what is left."""
        return max(1.0, min(seconds * (_PATIENCE if self.standin else 1), self.left()))

    def envkit(self, name: str, *words: str, limit_s: float, model: bool = False) -> tuple[int, str, float]:
        """Run a command of envkit and keep what it says; return its exit code, its output and its seconds.

        `model`: the process sees the tests' model of a GPU, where that is used. In the image it is built in.
        """
        env = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "COLUMNS": "120"}
        scratch = self.session.scratch
        env |= {"XDG_CACHE_HOME": f"{scratch}/cache", "XDG_STATE_HOME": f"{scratch}/state"}
        if model:
            env["PYTHONPATH"] = f"{self.session.standin.get('PYTHONPATH', ROOT)}:{env['PYTHONPATH']}"
        kept, self.session.standin = self.session.standin, {}
        try:
            argv = [sys.executable, "-m", "envkit", *words]
            code, out, errors, wall = self.session.run(argv, self.limit(limit_s), env)
        finally:
            self.session.standin = kept
        text = out.decode("utf-8", "replace")
        self.session.keep("command", name, argv=words, exit=code, wall_s=wall, out=text[-20000:], err=errors[-20000:])
        if code:
            last = [line for line in (*errors.splitlines(), *text.splitlines()) if line.strip()][-3:]
            self.session.say(f"{name}: exit {code} after {wall:.1f} s: {' / '.join(last)[-300:]}")
        return code, text + errors, wall

    def gpus(self) -> tuple[str, str]:
        """Return the option for the GPUs of a container. The model has no device nodes."""
        return ("--gpus", "none" if self.standin else "all")

    def shows(self, name: str, holds: bool, against: str) -> None:
        """Add a figure that is 1 or 0."""
        self.figures.append(
            Figure(name=name, figure=float(holds), unit="1", better="higher", goal=1.0, against=against)
        )
        self.session.say(f"{name}: {'yes' if holds else 'NO'}")

    def took(self, name: str, seconds: float, goal: float, against: str) -> None:
        """Add a time. That of the model is the CPU's, so it is only said."""
        self.session.say(f"{name}: {seconds:.1f} s")
        if not self.standin:
            self.figures.append(Figure(name=name, figure=seconds, unit="s", better="lower", goal=goal, against=against))

    def reference(self) -> str:
        """Return the image's name; raises LookupError if it could not be made."""
        if self.image is None:
            raise LookupError("there is no image")
        return self.image.reference


def image(steps: Steps) -> None:
    """Make the image. That of a GPU machine has a C compiler, with which Triton compiles."""
    more = _model(steps.session) if steps.standin else {}
    steps.image = make(steps.session.scratch / "image", sys.executable, compiler=not steps.standin, more=more)
    steps.session.keep("image", "made", bytes=steps.image.size, seconds=steps.image.seconds)
    steps.session.say(f"image: {steps.image.size / 1e9:.2f} GB in {steps.image.seconds:.1f} s")


def cuda(steps: Steps) -> None:
    """Start CUDA in each runner that this machine has."""
    ran = ["--runner", "bubblewrap", "--workspace", "none", *steps.gpus()]
    _, said, _ = steps.envkit(
        "CUDA in bubblewrap", "run", steps.reference(), *ran, "--", "python3", "-c", CUDA, limit_s=90
    )
    steps.shows("CUDA starts in bubblewrap", f'"sum": {2.0 * (1 << 20)}' in said, "a kernel with an exact sum")
    record = steps.session.folder / "proot.json"
    options = ["--runner", "proot", "--only", "C04", "-o", str(record), *steps.gpus()]
    steps.envkit("CUDA in proot", "verify", steps.reference(), *options, limit_s=120)
    steps.shows("CUDA starts in proot", _verdict(record, "C04.kernel") == "PASS", "the kernel check, C04")


def run(steps: Steps) -> None:
    """Train in a session of a user, with forked loader workers."""
    options = ["--runner", "bubblewrap", "--workspace", "none", *steps.gpus()]
    words = ["run", steps.reference(), *options, "--", "python3", "-c", TRAINING, "60"]
    code, said, _ = steps.envkit("training in envkit run", *words, limit_s=60)
    steps.shows("a training with workers runs in envkit run", code == 0 and "trained to" in said, "its own exit code")


def watch(steps: Steps) -> None:
    """Compare the outcome of a training with and without probes, here and in the image."""
    record = steps.session.folder / "watch.json"
    program = [sys.executable, "-c", TRAINING, "400" if not steps.standin else "60"]
    code, out, errors, _ = steps.session.run(program, steps.limit(60))
    steps.session.keep("command", "training alone", exit=code, out=out.decode("utf-8", "replace"), err=errors[-3000:])
    watched, said, _ = steps.envkit("watch", "watch", "-o", str(record), "--", *program, limit_s=60, model=True)
    loss = out.decode("utf-8", "replace").strip()
    equal = code == watched == 0 and loss.startswith("trained to") and loss in said
    steps.shows("watch changes no outcome", equal, "exit code and loss of the same training without it")
    found = _bottleneck(record)
    # The model computes on the CPU, so what is slow there is the CPU.
    named = found != "nothing" if steps.standin else found == "data-bound"
    steps.shows("watch names the bottleneck", named, f"a loader that is slow; found: {found}")
    options = ["watch", "--runner", "bubblewrap", "--workspace", "none", *steps.gpus(), steps.reference()]
    inside, said, _ = steps.envkit("watch in the image", *options, "--", "python3", *program[1:], limit_s=60)
    steps.shows("watch IMAGE changes no outcome", inside == 0 and "trained to" in said, "its own exit code")


def quick(steps: Steps) -> None:
    """Verify the image in bubblewrap."""
    _verify(steps, "quick", 120, QUICK_S)


def standard(steps: Steps) -> None:
    """Verify the image in bubblewrap with the tier standard."""
    _verify(steps, "standard", 240, STANDARD_S)


def _verify(steps: Steps, tier: str, limit_s: float, goal_s: float) -> None:
    record = steps.session.folder / f"{tier}.json"
    page = steps.session.folder / f"{tier}.html"
    options = ["--tier", tier, "--runner", "bubblewrap", "-o", str(record), "--report", f"html={page}", *steps.gpus()]
    # The model of a GPU is not fast enough for the limits of checks in the larger tier.
    narrowed = ["--only", "C00,C01,C04,C09,C17"] if steps.standin else []
    code, _, wall = steps.envkit(tier, "verify", steps.reference(), *options, *narrowed, limit_s=limit_s)
    bad = _bad(record)
    steps.shows(f"{tier} in the image passes", code == 0, f"exit code {code}{': ' + bad if bad else ''}")
    steps.took(f"{tier} in the image", wall, goal_s, "the whole command, image unpacked")


def faults(steps: Steps) -> None:
    """Plant one fault after another."""
    planned = [fault for fault in FAULTS if fault.modeled or not steps.standin]
    if steps.standin:
        planned = [fault for fault in planned if fault.only in ("C27", "C28")]
    named = []
    for fault in planned:
        if steps.left() < 20:
            steps.session.say(f"no time for: {fault.name}")
            break
        named.append(_named(steps.session, fault))
    against = f"{len(named)} of {len(planned)} faults, each planted alone"
    share = sum(named) / len(named) if named else 0.0
    steps.figures.append(
        Figure(name="faults named", figure=share, unit="1", better="higher", goal=1.0, against=against)
    )


def beside(steps: Steps) -> None:
    """Run parts of the suite beside other loads, in other environments and as another user, while there is time."""
    loads: list[tuple[str, str, tuple[int, ...]]] = [
        ("gemm", "C10,C26", (60,)),
        ("copy", "C10", (60,)),
        ("memory", "C04,C09,C14", (60, 300)),
    ]
    for load, only, arguments in loads if not steps.standin else loads[:1]:
        if steps.left() < 30:
            return
        with steps.session.beside(load, *arguments) as up:
            if up:
                steps.session.payload(f"beside {load} {arguments}", only, limit_s=steps.limit(60))
    for name, (env, only) in ENVIRONMENTS.items() if not steps.standin else list(ENVIRONMENTS.items())[1:2]:
        if steps.left() < 20:
            return
        steps.session.payload(f"env {name}", only, tier="standard", env=env, limit_s=steps.limit(60))
    if os.geteuid() == 0 and shutil.which("setpriv") and steps.left() > 20:
        another = ("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups")
        env = {"HOME": "/nonexistent"}
        steps.session.payload("as another user", "C03,C04,C09", env=env, prefix=another, limit_s=steps.limit(60))


STEPS: Mapping[str, Callable[[Steps], None]] = {
    "image": image,
    "CUDA": cuda,
    "run": run,
    "watch": watch,
    "quick": quick,
    "standard": standard,
    "faults": faults,
    "beside": beside,
}


def chosen(names: str) -> dict[str, Callable[[Steps], None]]:
    """Return the steps of a list with commas, in the session's order, and `image` where one of them needs it.

    Raises:
        argparse.ArgumentTypeError: there is no step of that name.
    """
    wanted = set(names.split(","))
    if unknown := sorted(wanted - set(STEPS)):
        raise argparse.ArgumentTypeError(f"no step {', '.join(unknown)}; there are {', '.join(STEPS)}")
    if wanted - _WITHOUT_IMAGE:
        wanted.add("image")
    return {name: step for name, step in STEPS.items() if name in wanted}


def _record(path: Path) -> dict[str, Any]:
    """Return a record that a step wrote, empty if it wrote none."""
    try:
        tree: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return tree


def _verdict(path: Path, check: str) -> str:
    return next((item["verdict"] for item in _record(path).get("checks", ()) if item["id"] == check), "no record")


def _bad(path: Path) -> str:
    """Return what a record of a verification has against the image or the machine, in short."""
    wrong = [item for item in _record(path).get("checks", ()) if item["verdict"] in ("FAIL", "ERROR") and item["gates"]]
    return ", ".join(f"{item['id']} {item['reason_code']}" for item in wrong[:5])


def _bottleneck(path: Path) -> str:
    """Return the kind of the first finding in a record of `watch`."""
    findings = _record(path).get("judgment", {}).get("findings") or [{"kind": "nothing"}]
    return str(findings[0]["kind"])


def _model(session: Session) -> dict[str, bytes]:
    """Return the files by which torch in the image sees the tests' model of a GPU, below its environment."""
    from tests.support.standin import DEVICE  # noqa: PLC0415 - the tests are not where a GPU is used

    (site,) = Path(sys.prefix).glob("lib/python3*/site-packages")
    packages = site.relative_to(sys.prefix)
    hook = (session.scratch / "sitecustomize.py").read_bytes()
    device = f"{sys.prefix}/standin/cuda_standin.py"
    return {
        f"{packages}/sitecustomize.py": hook.replace(str(DEVICE).encode(), device.encode()),
        "standin/cuda_standin.py": DEVICE.read_bytes(),
    }


@contextlib.contextmanager
def _packed(folder: Path) -> Iterator[None]:
    """Pack the folder of the records into one file in the end, whatever happens."""
    try:
        yield
    finally:
        with tarfile.open(f"{folder}.tar.gz", "w:gz") as tar:
            tar.add(folder, folder.name)
        tell(f"records: {folder}.tar.gz")


def go_through(steps: Steps, table: Mapping[str, Callable[[Steps], None]] = STEPS) -> None:
    """Make every step. One that fails, or for which there is no time, does not end the others."""
    for name, step in table.items():
        begin = time.monotonic()
        if steps.left() <= 0:
            steps.shows(name, holds=False, against="there was no time for it")
            continue
        try:
            step(steps)
        except Exception as error:  # noqa: BLE001 - the other steps must still run on a machine that is there for minutes
            steps.session.keep("error", name, text=f"{type(error).__name__}: {error}")
            steps.shows(name, holds=False, against=f"{type(error).__name__}: {error}"[:200])
        steps.session.keep("step", name, seconds=round(time.monotonic() - begin, 1))


def main() -> int:
    """Make the session; return 0 if its goals hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_session", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gpu-session"), help="where records go")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all steps together")
    parser.add_argument("--steps", type=chosen, default=STEPS, metavar="NAME,...", help="only these; all without it")
    parser.add_argument("--standin", action="store_true", help="the tests' model of a GPU, and less of everything")
    options = parser.parse_args()
    begin = time.monotonic()
    folder = options.folder.resolve()
    # Runs in proot are another user's, who has to reach the image.
    with tempfile.TemporaryDirectory(prefix="envkit-gpu-", dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        scratch = Path(name)
        scratch.chmod(0o755)
        session = Session(folder, scratch, "session", begin)
        if options.standin:
            session.standin, session.smaller = _standin(scratch)
        elif session.run([sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"], 60)[0]:
            tell("torch sees no GPU here, so there is nothing to show; --standin tests the session itself")
            return 0
        missing = [program for program in RUNNERS.values() if shutil.which(program) is None]
        if missing:
            tell(f"not installed, so its steps will fail: {', '.join(missing)}")
        folder.mkdir(parents=True, exist_ok=True)
        steps = Steps(session, begin + options.seconds * (_PATIENCE if options.standin else 1), options.standin)
        with _packed(folder):
            go_through(steps, options.steps)
    return finish("gpu_session", steps.figures)


if __name__ == "__main__":
    sys.exit(main())
