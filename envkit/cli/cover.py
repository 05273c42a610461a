"""`envkit cover`: find the fewest images that serve a set of machines, and changes that would save one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, flag, group, new_command, option
from envkit.cli.hosts_file import read_text
from envkit.cli.options import PATH, RequestOptions
from envkit.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envkit.cover.hosts import Completion, HostClass, Inventory
    from envkit.cover.model import Cover, Image, Served
    from envkit.facts.model import Facts
    from envkit.ground.errors import ConflictError

_FORMS = ("auto", "csv", "json", "nvidia-smi", "kubectl", "slurm", "doctor")
_SHOWN_FORCES = 3  # kinds of machines that are listed for each image; the others are counted

_HELP = """Find the fewest images that serve all machines of an inventory.

\b
envkit cover --hosts hosts.csv
kubectl get nodes -o json | envkit cover --hosts -
sinfo -N -h -o "%n %G %f" | envkit cover --hosts - --driver 550.54.15
pdsh -a nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader | envkit cover --hosts -

The request's flags apply to every image. --driver, --gpu and --platform fill in what the inventory leaves out.

Exit codes: 0 success; 2 the inventory is invalid; 3 some machines cannot run any image.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverFlags:
    """The options of `envkit cover`."""

    hosts_file: str = option(
        Section.INPUT,
        "--hosts FILE",
        shell_complete=shell_values.files,
        required=True,
        help="Inventory of the machines; - is stdin.",
    )
    form: str = option(
        Section.INPUT, "--format", type=click.Choice(_FORMS), default="auto", help="Format of the inventory. [detected]"
    )
    aliases: tuple[str, ...] = option(
        Section.INPUT,
        "--alias NAME=GPU",
        multiple=True,
        help="Your own name for a GPU in the inventory: --alias big=A100.",
    )
    skip_impossible: bool = flag(
        Section.OUTPUT, "--skip-impossible", help="Exit 0 even if some machines cannot run any image."
    )
    matrix_file: Path | None = option(
        Section.OUTPUT, "--matrix FILE", type=PATH, help="Write the images for `envkit build --matrix FILE`."
    )
    request: RequestOptions = group(RequestOptions)
    as_json: bool = flag(Section.OUTPUT, "--json", help="Print JSON (schema envkit.cover/1).")


@new_command("cover", CoverFlags, help=_HELP)
def command(flags: CoverFlags) -> None:
    """See `_HELP`."""
    from dataclasses import replace

    from envkit.cover.cover import cover
    from envkit.cover.hosts import classes
    from envkit.cover.inventory.detect import read_inventory
    from envkit.pipeline.resolving import template_kind
    from envkit.resolve.request import parse

    facts = flags.request.facts()
    _refuse(flags.request)
    fields = flags.request.fields(facts)
    complete = _completion(fields, flags.aliases, facts)
    template = template_kind(flags.request.template)
    request = parse({**fields, "driver": None, "gpu": (), "platform": None, "template": template}, facts)
    where = "stdin" if flags.hosts_file == "-" else flags.hosts_file
    inventory = read_inventory(read_text(flags.hosts_file, "--hosts"), facts, form=flags.form, where=where)
    coverage = replace(cover(request, classes(inventory, facts, complete), facts), notes=inventory.notes)
    if flags.matrix_file is not None and coverage.images:
        _write(flags.matrix_file, coverage)
    if flags.as_json:
        print_json(coverage.to_json())
    else:
        _show(coverage, inventory)
    if coverage.unserved and not flags.skip_impossible:
        raise _unserved(coverage)


def _show(coverage: Cover, inventory: Inventory) -> None:
    from envkit.cli.console import show
    from envkit.cli.output import show_table
    from envkit.ground.text import aligned, neutral

    served = sum(row.hosts.count for entry in coverage.images for row in entry.serves)
    number = len(coverage.images)
    show(
        f"{number} image{'s serve' if number != 1 else ' serves'} {served} of {coverage.machines} machines "
        f"({coverage.classes} kind{'s' if coverage.classes != 1 else ''}, read as {inventory.form})"
    )
    for note in coverage.notes:
        show(f"note: {neutral(note)}")
    if coverage.images:
        click.echo("")
        show_table(("image", "torch", "CUDA", "Python", "source", "driver", "GPUs", "machines"),
                   [_row(entry) for entry in coverage.images])  # fmt: skip
    for image in coverage.images:
        click.echo(f"\n{image.name} serves")
        rows = [
            (f"  {row.hosts.title}", row.mode, str(row.hosts.count), row.hosts.named, _held_back(image, row))
            for row in image.serves
        ]  # fmt: skip
        for line in aligned(rows):
            show(neutral(line))
        for line in _forces(image):
            show(neutral(line))
    if len(coverage.images) > 1:
        click.echo(
            "\nEach of these changes saves an image" if coverage.savings else "\nno single change saves an image"
        )
        for saving in coverage.savings:
            show(neutral(f"  {saving.text}"))
    for unserved in coverage.unserved:
        click.echo("")
        show(f"no image runs on {neutral(_hosts(unserved.hosts))}")
        for sentence in unserved.because:
            show(neutral(f"  {sentence}"))


def _row(image: Image) -> tuple[str, ...]:
    from envkit.ground.versions import key
    from envkit.resolve.gpus import sm

    resolution = image.resolution
    driver = f">={resolution.driver.minimum}" if resolution.driver else "-"
    served = {card.gpu.capability for row in image.serves for card in row.hosts.cards}
    gpus = " ".join(sm(capability) for capability in sorted(served, key=key))
    machines = str(sum(row.hosts.count for row in image.serves))
    return (
        image.name,
        resolution.torch,
        resolution.cuda or "-",
        resolution.python,
        resolution.source,
        driver,
        gpus,
        machines,
    )


def _forces(image: Image) -> Iterator[str]:
    for force in image.forced_by[:_SHOWN_FORCES]:
        yield f"  forced by {_hosts(force.hosts)}"
        yield from (f"    {sentence}" for sentence in force.because)
    left = len(image.forced_by) - _SHOWN_FORCES
    if left > 0:
        yield f"  and by {left} more kind{'s' if left > 1 else ''} of machines that no other image runs on"


def _held_back(image: Image, row: Served) -> str:
    """Return the newer torch that machines would get alone, and what their driver would run natively, as text."""
    alone = "" if row.alone == image.resolution.torch else f"alone: torch {row.alone}"
    return "; ".join(text for text in (alone, f"natively: {row.native}" if row.native else "") if text)


def _hosts(host_class: HostClass) -> str:
    return f"{host_class.title} ({host_class.named})"


def _completion(fields: Mapping[str, Any], aliases: tuple[str, ...], facts: Facts) -> Completion:
    from envkit.cover.hosts import Completion
    from envkit.ground.errors import UsageError
    from envkit.resolve.wanted import card

    gpus: dict[str, str] = {}
    for text in aliases:
        name, sign, gpu = text.partition("=")
        if not sign or not name or not gpu:
            raise UsageError(f"--alias {text!r:.100} is not NAME=GPU", hint="--alias big=A100")
        card(gpu, facts, "--alias")
        gpus[name.lower()] = gpu
    return Completion(
        driver=fields["driver"], gpus=tuple(fields["gpu"] or ()), platform=fields["platform"], aliases=gpus
    )


def _write(path: Path, coverage: Cover) -> None:
    from envkit.cover.matrix import matrix_text
    from envkit.ground.errors import EnvironmentProblem
    from envkit.ground.store import write_atomic

    try:
        write_atomic(path, matrix_text(coverage).encode())
    except OSError as error:
        raise EnvironmentProblem(
            f"--matrix {path}: {error.strerror or error}", hint="name a file in a writable folder"
        ) from error


def _unserved(coverage: Cover) -> ConflictError:
    from envkit.ground.errors import ConflictError

    first = coverage.unserved[0]
    kinds = f"{len(coverage.unserved)} of {coverage.classes} kinds of machines"
    return ConflictError(
        f"no image runs on {kinds}: {'; '.join(_hosts(row.hosts) for row in coverage.unserved)}",
        hint=first.hint or "--skip-impossible leaves them out",
        details=tuple(dict.fromkeys(sentence for row in coverage.unserved for sentence in row.because)),
    )


def _refuse(request: RequestOptions) -> None:
    """Refuse options that make no sense for several kinds of machines."""
    from envkit.ground.errors import UsageError

    if request.cpu:
        raise UsageError("--cpu: a CPU image serves every machine of its platform", hint="envkit resolve --cpu")
    if request.allow_forward_compat:
        raise UsageError(
            "--allow-forward-compat: an image for it runs on the driver branch of one kind of machine",
            hint="envkit resolve --gpu A100 --driver 535.104.05 --allow-forward-compat",
        )
