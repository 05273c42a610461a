"""Turn cells into build tasks, ordered so that images share as much work as possible."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from envkit.fleet.expand import base_of
from envkit.fleet.model import BuildTask
from envkit.ground.errors import UsageError
from envkit.image.name import DAEMON, InArchive, InEngine, InLayout, InRegistry, InSif, split_tag
from envkit.plan.names import repository

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.engines.model import BuildOptions
    from envkit.fleet.model import Cell


def task_of(
    cell: Cell,
    engine: str,
    options: BuildOptions,
    *,
    verify: bool,
    no_lock: bool = False,
    allow_cpu: bool = False,
    preset: str | None = None,
) -> BuildTask:
    """Return the task of one cell, without its lock.

    Args:
        cell: the image.
        engine: its name.
        options: the options that hold for every image: labels, base, ...
        verify: whether to verify the image.
        no_lock: whether conda and pip solve during the build.
        allow_cpu: whether a CUDA image passes without a GPU.
        preset: the value of `--preset`; None = the worker's own setting.

    Raises:
        UsageError: `--output` cannot hold several images.
    """
    fields = asdict(options)
    # Mirrors, folders and the log are not sent: the worker has its own.
    kept = ("labels", "no_cache", "timeout_s", "offline", "compression", "replace_tag", "mount_from")
    more = {key: fields[key] for key in kept}
    more["labels"] = [list(pair) for pair in options.labels]
    more["mount_from"] = list(options.mount_from)
    more["secrets"] = [[name, str(path)] for name, path in options.secrets]
    more["network"], more["base"] = options.network, base_of(cell, options.base)
    more |= {"no_lock": no_lock, "allow_cpu": allow_cpu}
    more |= {"preset": preset} if preset else {}
    more |= {"folder": cell.plan.folder} if cell.plan.copy else {}  # must exist on the worker, too
    return BuildTask(
        name=cell.name,
        plan=cell.plan.canonical().decode(),
        lock=None,
        engine=engine,
        output=output_of(options, cell.name),
        tags=(f"envkit/{repository(cell.plan.name)}:{cell.name}",),
        verify=verify,
        options=more,
    )


def output_of(options: BuildOptions, name: str) -> str | None:
    """Return the output of one of several images: its own tag, folder or file.

    Raises:
        UsageError: the output names a single tag or image.
    """
    output, target = options.output, options.target
    match target:
        case None:
            return None
        case InRegistry(reference=reference, name=typed) if split_tag(typed)[1] is not None:
            raise UsageError(
                f"--output {output!r:.200} names a tag, but each image needs its own",
                hint=f"--output registry:{reference.place}",
            )
        case InRegistry(reference=reference):
            return f"registry:{reference.place}:{name}"
        case InLayout(tag=str(text)) | InArchive(tag=str(text)) | InEngine(name=text) if text:
            kind = DAEMON if isinstance(target, InEngine) else target.kind
            raise UsageError(
                f"--output {output!r:.200} names one image, but each image needs its own",
                hint=f"--output {kind}:PATH",
            )
        case InLayout(path=path):
            return f"{target.kind}:{path}/{name}"
        case InArchive(path=path):
            return f"{target.kind}:{path}/{name}.tar"
        case InSif(path=path):
            return f"{target.kind}:{path}/{name}.sif"
        case InEngine():
            return output


def in_order(cells: Sequence[Cell], tasks: Sequence[BuildTask]) -> list[tuple[Cell, BuildTask]]:
    """Return the tasks in the order that shares most work.

    The first image of each group with equal packages comes first and fills the cache; the others of the groups follow
    and find their large layers there.
    """
    seen: dict[tuple[object, ...], int] = {}
    turns: list[tuple[int, int, Cell, BuildTask]] = []
    for cell, task in zip(cells, tasks, strict=True):
        plan = cell.plan
        key = (
            plan.family,
            plan.resolution.python,
            plan.resolution.source,
            plan.template,
            plan.conda,
            plan.pip,
            plan.constraints,
        )
        seen[key] = seen.get(key, -1) + 1
        turns.append((seen[key], len(turns), cell, task))
    return [(cell, task) for _, _, cell, task in sorted(turns, key=lambda turn: turn[:2])]
