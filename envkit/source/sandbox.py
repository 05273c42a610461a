"""One build of one source in a sandbox without network, and the check of the wheel that comes out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envkit.assemble.wheel import Scheme, open_wheel
from envkit.ground.canonical import digest_of
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError
from envkit.ground.text import neutral
from envkit.lock.built import Outcome
from envkit.lock.wheel_choice import ranks_of
from envkit.run.model import RunLimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.lock.model import Lock
    from envkit.run.model import Runner
    from envkit.source.fetch import Archive
    from envkit.source.look import Project

_FOLDER = "/run/envkit-source"
_SCRIPT = Path(__file__).with_name("inside.py")
LIMIT_S = 3 * 3600.0  # large CUDA extensions take more than an hour
_MOST_WHEEL = 1 << 30  # bytes
_LINES = 30  # of a failed build that an error shows
# What a wheel depends on besides the source and the builder's packages. 315532800 is 1980-01-01, as dates in a zip.
# No CFLAGS: it would replace the optimization that Python was built with. Paths that compilers write into files are the
# same in every build, because the sandbox always unpacks a source into one folder.
_VARIABLES = {
    "HOME": "/tmp/home",  # noqa: S108 - of the sandbox
    "LC_ALL": "C.UTF-8",
    "PATH": "/opt/env/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
    "PIP_NO_INDEX": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": "315532800",
    "TZ": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A source and what it is built with."""

    archive: Archive
    project: Project  # with the requirements that its backend asked for added
    builder: Lock  # of the image
    nvcc: bool
    gpu_archs: tuple[str, ...]  # compute capabilities to compile for; none: torch's own choice

    @property
    def key(self) -> str:
        """The name of what is built: a hash of all that decides its bytes."""
        tree = {
            "source": self.archive.sha256,
            "name": self.archive.name,
            "python": self.builder.python,
            "platform": self.builder.platform,
            "base": self.builder.base.to_json(),
            "packages": [[row.name, row.sha256] for rows in (self.builder.conda, self.builder.wheels) for row in rows],
            "requires": list(self.project.requires),
            "variables": self.variables,
            "script": hashlib.sha256(_SCRIPT.read_bytes()).hexdigest(),
            "nvcc": self.nvcc,
        }
        return digest_of(tree)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the build."""
        if not self.project.torch or not self.nvcc:
            return dict(_VARIABLES)
        archs = {"TORCH_CUDA_ARCH_LIST": ";".join(self.gpu_archs)} if self.gpu_archs else {}
        return {**_VARIABLES, "FORCE_CUDA": "1", "CUDA_HOME": "/usr/local/cuda", **archs}


def build(
    job: Job, runner: Runner, image: str, folder: Path, reporter: Reporter, *, memory_mb: int | None = None
) -> Outcome:
    """Build a source in an image; the wheel is written into `folder`, checked.

    Args:
        job: what is built.
        runner: one that gives the command no network.
        image: what the runner calls the builder image.
        folder: for the wheel.
        reporter: hears what the build prints.
        memory_mb: MiB of the build; None = a share of the machine's.

    Raises:
        EngineError: the source's own script failed, or said nothing that can be read.
        EnvironmentProblem: the runner shares the network, the image has no nvcc, or the sandbox cannot be made.
        IntegrityError: what came out is not a valid wheel of this package and platform.
        TimeLimitError: it took longer than three hours.
    """
    if "network" in runner.isolation.missing or runner.isolation.level == "none":
        raise EnvironmentProblem(
            f"{job.archive.name} is not built here: the runner {runner.name} shares the network with what it runs",
            hint="--runner bubblewrap, or --runner docker",
        )
    label = f"{job.archive.name} {job.archive.version or (job.archive.commit or '')[:12]}"
    reporter.step(f"build {label} from source in a sandbox ({runner.name}, without network)")
    limits = RunLimits(timeout_s=LIMIT_S, output_bytes=_MOST_WHEEL, memory_mb=memory_mb)
    argv = ["env", *(f"{key}={value}" for key, value in sorted(job.variables.items()))]
    argv += ["/opt/env/bin/python", "-B", f"{_FOLDER}/inside.py"]
    done = runner.run(image, argv, _files(job), gpus=None, limits=limits, reporter=reporter)
    lines = tuple(neutral(line) for line in done.stderr.decode(errors="replace").splitlines() if line.strip())
    head, _, body = done.stdout.partition(b"\n")
    if done.exit_code != 0 or done.output_cut:
        memory = " (out of memory)" if done.oom_killed else ""
        why = "wrote more than 1 GiB" if done.output_cut else f"failed with exit code {done.exit_code}{memory}"
        raise EngineError(
            f"the build of {label} from source {why}",
            details=lines[-_LINES:],
            hint="add what it lacks to the definition, or take a version of it that has a wheel",
        )
    return _outcome(job, _answer(head, label), body, folder)


def _files(job: Job) -> Mapping[str, bytes]:
    project = job.project
    asked = {
        "folder": project.folder,
        "backend": project.backend,
        "backend_path": project.backend_path,
        "requires": project.requires,
        "torch": project.torch,
        "nvcc": job.nvcc,
    }
    return {
        f"{_FOLDER}/inside.py": _SCRIPT.read_bytes(),
        f"{_FOLDER}/asked.json": json.dumps(asked).encode(),
        f"{_FOLDER}/source.tar": job.archive.path.read_bytes(),
    }


def _answer(head: bytes, label: str) -> dict[str, Any]:
    try:
        tree = json.loads(head)
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise EngineError(f"the build of {label} from source gave no answer", hint="take a wheel of it")
    return tree


def _outcome(job: Job, answer: dict[str, Any], body: bytes, folder: Path) -> Outcome:
    if answer.get("missing") == "nvcc":
        raise EnvironmentProblem(
            f"{job.archive.name} needs nvcc to be built, and nvcc is missing in {job.builder.base.reference}, the base "
            "of the builder image",
            hint="leave --base out: the devel flavor takes an image with the CUDA toolkit",
        )
    requires = answer.get("requires")
    if isinstance(requires, list):
        return Outcome(wheel=None, requires=tuple(str(requirement) for requirement in requires))
    file, abi = str(answer.get("file")), answer.get("cxx11_abi")
    _check_name(job, file)
    path = folder / file
    path.write_bytes(body)
    with open_wheel(path, Scheme(python=job.builder.python), file):
        pass
    return Outcome(wheel=path, cxx11_abi=abi if abi in ("true", "false") else None)


def _check_name(job: Job, file: str) -> None:
    """Refuse a wheel of another package, version or platform than was asked for."""
    archive, lock = job.archive, job.builder
    try:
        name, version, _, tags = parse_wheel_filename(file)
        right = name == canonicalize_name(archive.name)
        right = right and (archive.version is None or version == Version(archive.version))
    except (InvalidWheelFilename, InvalidVersion):
        right, tags = False, frozenset()
    if not right:
        raise IntegrityError(
            f"the build of {archive.name} {archive.version or ''} from source gave {file!r:.200}",
            hint="take another version of it",
        )
    glibc = dict(lock.request).get("glibc")
    fitting: Sequence[object] = [
        tag for tag in tags if tag in ranks_of(lock.platform, str(glibc or "2.17"), lock.python)
    ]
    if not fitting:
        raise IntegrityError(
            f"{file:.200} is not for Python {lock.python} on {lock.platform}", hint="take another version of it"
        )
