"""Write an image as a SIF file, the form that Apptainer and SingularityCE run.

SIF holds one squashfs of the whole root; `apptainer build` makes it from an OCI layout, as a normal user.
Source: Apptainer User Guide, "Build a Container"; apptainer-build(1).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from envkit.ground.errors import EngineError, EnvironmentProblem, TimeLimitError
from envkit.ground.process import follow
from envkit.ground.store import fresh_folder, sync_folder
from envkit.image.layout import write_error

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.engines.log import BuildLog
    from envkit.ground.progress import Reporter

CLIENTS = ("apptainer", "singularity")
_TAIL = 10  # lines of the program's output in an error


def client() -> str:
    """Return the path of the program that writes SIF files.

    Raises:
        EnvironmentProblem: there is neither Apptainer nor Singularity on PATH.
    """
    for name in CLIENTS:
        if (path := shutil.which(name)) is not None:
            return path
    raise EnvironmentProblem(
        "--output sif: needs apptainer or singularity on PATH, and neither is there",
        hint="--output docker-archive:a.tar, and where there is one: apptainer build a.sif docker-archive:a.tar",
    )


def write(layout: Path, path: Path, log: BuildLog, reporter: Reporter, *, limit_s: float | None = None) -> None:
    """Convert the image of an OCI layout. A run that is killed leaves the old file or the new one.

    Args:
        layout: the layout's folder, with one image.
        path: the SIF file.
        log: gets the program's output.
        reporter: gets the step.
        limit_s: the rest of the build's time.

    Raises:
        EnvironmentProblem: the program is missing, the disk is full, or the folder is not writable.
        EngineError: the program refuses the image.
        TimeLimitError: the time is over.
    """
    program = client()
    target = path.absolute()
    lines: list[str] = []

    def on_line(line: str) -> None:
        log.write(line)
        lines.append(line)
        del lines[:-_TAIL]

    reporter.step(f"write {path}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with fresh_folder(target.parent, prefix=f".{target.name}.", suffix=".tmp") as folder:
            written = folder / target.name
            # Its cache would keep a second copy of every image that passes through it.
            argv = [program, "build", "--disable-cache", str(written), f"oci:{layout}"]
            ended = follow(argv, on_line, limit_s=limit_s)
            if ended.timed_out:
                raise TimeLimitError(f"{program} did not write {path} in the time of the build")
            if ended.code != 0:
                raise EngineError(
                    f"{program} build ended with exit code {ended.code}",
                    details=tuple(lines),
                    hint=f"{program} build {path} oci:{layout}",
                )
            written.replace(target)
    except OSError as error:
        raise write_error(error, target) from error
    sync_folder(target.parent)
