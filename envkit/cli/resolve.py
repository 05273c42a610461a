"""`envkit resolve`: the newest compatible combination, with the reason for every field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from envkit.cli.options import RequestOptions, gathered, group, request_options, template_kind
from envkit.cli.output import print_json, show_table

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.resolve.model import Resolution

_BOTH = ("torch", "cuda", "cudnn", "nccl", "triton", "python", "pythons", "torchvision", "torchaudio", "source")
_WHEEL = ("index", "local_version")
_CONDA = ("channels", "selector")
_REST = ("driver", "gpus", "gpu_archs", "ptx", "glibc", "platform", "os", "pins")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveFlags:
    """The options of `envkit resolve`."""

    request: RequestOptions = group(RequestOptions)
    as_json: bool
    verbose: bool


@click.command("resolve")
@request_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON (envkit.resolution/1, or envkit.conflict/1).")
@click.option("-v", "--verbose", is_flag=True, help="Also show the sources of the facts.")
@gathered(ResolveFlags)
def command(flags: ResolveFlags) -> None:
    """Find compatible versions of torch, CUDA, driver, GPU, Python and OS.

    Anything you leave out becomes the newest compatible version. Nothing is downloaded and no GPU is needed.

    \b
    envkit resolve --cuda 11.8
    envkit resolve --gpu "RTX 4090" --driver 550.54.15
    envkit resolve --gpu auto --driver auto --json
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.resolve.explain import Unresolvable
    from envkit.resolve.request import parse
    from envkit.resolve.resolver import resolve

    facts = flags.request.facts()
    request = parse(flags.request.fields() | {"template": template_kind(flags.request.template)}, facts)
    try:
        resolution = resolve(request, facts)
    except Unresolvable as conflict:
        if flags.as_json:
            print_json(conflict.conflict.to_json() | {"message": conflict.message})
        raise
    if flags.as_json:
        print_json(resolution.to_json())
        return
    _show(resolution)
    if flags.verbose:
        _show_sources(resolution, facts)


def _show(resolution: Resolution) -> None:

    fields = (*_BOTH, *(_CONDA if resolution.channels else _WHEEL), *_REST)
    show_table(
        ("field", "value", "why"),
        [(field, _value(resolution, field), resolution.reasons[field]) for field in fields],
    )
    for warning in resolution.warnings:
        click.echo(f"warning: {warning}")


def _value(resolution: Resolution, field: str) -> str:
    value = getattr(resolution, field)
    if field == "driver" and resolution.driver:
        driver = resolution.driver
        return f"{driver.mode}: {driver.given}" if driver.mode else f">={driver.minimum}"
    if isinstance(value, tuple):
        return " ".join(value) or "-"
    return str(value) if value is not None else "-"


def _show_sources(resolution: Resolution, facts: Facts) -> None:
    from envkit.facts.sources import describe, find

    rows = [(ref, describe(found[1], ref)) for ref in resolution.sources if (found := find(facts.sources, ref))]
    click.echo("")
    show_table(("source", "where"), rows)
