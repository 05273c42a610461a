"""The base of an image, chosen from the facts: base images, the Miniconda installer and the system Python."""

from __future__ import annotations

from envkit.facts.model import CudaImage, Facts, Os
from envkit.ground import platforms
from envkit.ground.errors import UsageError
from envkit.ground.versions import build_key, key, minor
from envkit.plan.model import Installer
from envkit.resolve.model import Resolution

CUDA_REPOSITORY = "docker.io/nvidia/cuda"

# Miniconda's system requirements (anaconda.com, getting-started/miniconda/system-requirements): the current installers
# refuse a glibc older than 2.28. The 24.x ones are the last that still install on glibc 2.17.
_INSTALLER_GLIBC = "2.28"
_LAST_FOR_OLD_GLIBC = 24

# The RPM distributions named these packages without a dot: python39.
_DOTLESS_RPM_PYTHONS = ("3.6", "3.8", "3.9")


def os_row(os_id: str, facts: Facts) -> Os:
    """Return the row of an operating system that the resolver chose."""
    return next(row for row in facts.oses if row.id == os_id)


def devel_image(resolution: Resolution, system: Os, facts: Facts) -> str:
    """Return the nvidia/cuda image with the toolkit of the resolved CUDA runtime, without cuDNN: torch has its own.

    Raises:
        UsageError: no image exists for this OS or this CUDA.
    """
    suffix = system.cuda_image_suffix
    offered = {row.id for row in facts.oses if row.cuda_image_suffix}
    if suffix is None:
        raise UsageError(
            f"flavor devel needs an nvidia/cuda image, and there is none for {system.id}",
            hint=f"--os {' or '.join(sorted(offered))}",
        )
    tags = {row.cuda: tag for row in facts.cuda_images if (tag := _devel_tag(row, suffix))}
    fitting = sorted((cuda for cuda in tags if minor(cuda) == resolution.cuda), key=key)
    if not fitting:
        near = sorted({minor(cuda) for cuda in tags}, key=key)
        raise UsageError(
            f"there is no nvidia/cuda devel image with CUDA {resolution.cuda} for {system.id}",
            hint=f"--cuda with one of {', '.join(near)}" if near else f"--os {' or '.join(sorted(offered))}",
        )
    return f"{CUDA_REPOSITORY}:{tags[fitting[-1]]}"


def _devel_tag(row: CudaImage, suffix: str) -> str | None:
    ending = f"-devel-{suffix}"
    return next((tag for tag in row.tags if tag.endswith(ending) and "cudnn" not in tag), None)


def installer(platform: str, glibc: str, facts: Facts) -> Installer:
    """Return the newest Miniconda installer that runs on a platform with this glibc.

    Raises:
        UsageError: the facts have none.
    """
    old = key(glibc) < key(_INSTALLER_GLIBC)
    rows = [
        row
        for row in facts.installers
        if row.arch == platforms.platform(platform).machine and (not old or key(row.conda)[0] <= _LAST_FOR_OLD_GLIBC)
    ]
    if not rows:
        raise UsageError(f"there is no Miniconda installer for {platform} and glibc {glibc}", hint="--template wheels")
    best = max(rows, key=lambda row: (build_key(row.conda), key(row.python)))
    return Installer(file=best.file, url=best.url, sha256=best.sha256, conda=best.conda)


def system_python(system: Os, python: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the command of the OS's own Python, the packages that run it, and those that create a venv with it.

    Raises:
        UsageError: the OS has no such Python.
    """
    if python not in system.pythons:
        raise UsageError(
            f"{system.id} has no Python {python}, and the wheels template uses the system Python",
            hint=f"--python {' or '.join(system.pythons)}, or --template miniconda",
        )
    default = python == system.pythons[0]
    command = "python3" if default else f"python{python}"
    if system.family == "deb":
        return command, (command,), (command, f"{command}-venv")
    dotless = not default and python in _DOTLESS_RPM_PYTHONS
    package = f"python{python.replace('.', '')}" if dotless else command
    return command, (package,), (package,)
