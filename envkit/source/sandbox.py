"""Build a source in a sandbox without network, and check the wheel."""

from __future__ import annotations

import hashlib
import json
import re
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
    from envkit.image.name import ImageName
    from envkit.lock.model import Lock
    from envkit.run.model import Runner
    from envkit.source.fetch import Archive
    from envkit.source.look import Project

_FOLDER = "/run/envkit-source"
_SCRIPT = Path(__file__).with_name("inside.py")
LIMIT_S = 3 * 3600.0  # large CUDA extensions need more than an hour
_MOST_WHEEL = 1 << 30  # bytes
_FILE = re.compile(r"[A-Za-z0-9_.+!-]{1,255}")  # of a wheel; Linux allows 255 bytes
_LINES = 30  # lines of a failed build's output in the error
# The environment of every build. 315532800 is 1980-01-01, the earliest date in a zip. CFLAGS is not set, because it
# would replace the optimization flags of Python's own build. Paths that compilers write into files are always the same,
# because the sandbox unpacks every source into the same folder.
_VARIABLES = {
    "HOME": "/tmp/home",  # noqa: S108 - a folder of the sandbox
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
    """A source and the inputs of its build."""

    archive: Archive
    project: Project  # including the requirements that its backend asked for
    builder: Lock  # of the builder image
    nvcc: bool
    gpu_archs: tuple[str, ...]  # compute capabilities to compile for; empty: torch's default

    @property
    def key(self) -> str:
        """The cache key of the wheel: a hash of everything that affects its bytes.

        Locks contain it: after a change of inside.py, built wheels of existing locks cannot be built again.
        """
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
        """The environment variables of the build."""
        if not self.project.torch or not self.nvcc:
            return dict(_VARIABLES)
        archs = {"TORCH_CUDA_ARCH_LIST": ";".join(self.gpu_archs)} if self.gpu_archs else {}
        return {**_VARIABLES, "FORCE_CUDA": "1", "CUDA_HOME": "/usr/local/cuda", **archs}


def build(
    job: Job, runner: Runner, image: ImageName, folder: Path, reporter: Reporter, *, memory_mb: int | None = None
) -> Outcome:
    """Build a source in an image; check the wheel and write it into `folder`.

    Args:
        job: the source and its inputs.
        runner: a runner that isolates the network.
        image: the builder image, as named by the runner.
        folder: for the wheel.
        reporter: gets the output of the build.
        memory_mb: memory limit in MiB; None = a share of the machine's memory.

    Raises:
        EngineError: the build script failed or returned no result.
        EnvironmentProblem: the runner shares the network, the image has no nvcc, or the sandbox cannot be created.
        IntegrityError: the result is not a valid wheel of this package and platform.
        TimeLimitError: the build took longer than three hours.
    """
    # With a network, a build could download what no hash in the lock covers.
    if "network" in runner.isolation.missing or runner.isolation.level == "none":
        raise EnvironmentProblem(
            f"{job.archive.name} cannot be built: the runner {runner.name} does not isolate the network",
            hint="use --runner bubblewrap or --runner docker",
        )
    label = f"{job.archive.name} {job.archive.version or (job.archive.commit or '')[:12]}"
    reporter.step(f"build {label} from source in a sandbox ({runner.name}, without network)")
    limits = RunLimits(timeout_s=LIMIT_S, output_bytes=_MOST_WHEEL, memory_mb=memory_mb)
    # env(1) sets the variables, because a runner has no option for them.
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
            hint="add the missing packages to the definition, or use a version that has a wheel",
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
        raise EngineError(f"the build of {label} from source returned no result", hint="use a wheel instead")
    return tree


def _outcome(job: Job, answer: dict[str, Any], body: bytes, folder: Path) -> Outcome:
    if answer.get("missing") == "nvcc":
        raise EnvironmentProblem(
            f"the build of {job.archive.name} needs nvcc, which is missing in {job.builder.base.reference}, the base "
            "of the builder image",
            hint="omit --base: the devel flavor uses an image with the CUDA toolkit",
        )
    requires = answer.get("requires")
    if isinstance(requires, list):
        return Outcome(wheel=None, requires=tuple(str(requirement) for requirement in requires))
    file, abi = str(answer.get("file")), answer.get("cxx11_abi")
    _check_name(job, file)
    path = folder / file
    path.write_bytes(body)
    # Opening it checks it: the contents have to match the name.
    with open_wheel(path, Scheme(python=job.builder.python), file):
        pass
    return Outcome(wheel=path, cxx11_abi=abi if abi in ("true", "false") else None)


def _check_name(job: Job, file: str) -> None:
    """Refuse a wheel of another package, version or platform."""
    archive, lock = job.archive, job.builder
    try:
        name, version, _, tags = parse_wheel_filename(file)
        # Build tags and tags may contain any characters, a slash too.
        matches = _FILE.fullmatch(file) is not None
        matches = matches and name == canonicalize_name(archive.name)
        matches = matches and (archive.version is None or version == Version(archive.version))
    except (InvalidWheelFilename, InvalidVersion):
        matches, tags = False, frozenset()
    if not matches:
        raise IntegrityError(
            f"the build of {archive.name} {archive.version or ''} from source made {file!r:.200}",
            hint="use another version",
        )
    glibc = dict(lock.request).get("glibc")
    fitting: Sequence[object] = [
        tag for tag in tags if tag in ranks_of(lock.platform, str(glibc or "2.17"), lock.python)
    ]
    if not fitting:
        raise IntegrityError(
            f"{file:.200} is not for Python {lock.python} on {lock.platform}", hint="use another version"
        )
