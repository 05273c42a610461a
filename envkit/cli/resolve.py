"""`envkit resolve`: the combination that fits, with the reason for every field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envkit.cli.request_options import given, load_facts, request_options, template_kind

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.resolve.model import Resolution

_BOTH = ("torch", "cuda", "cudnn", "nccl", "triton", "python", "pythons", "torchvision", "torchaudio", "source")
_WHEEL = ("index", "local_version")
_CONDA = ("channels", "selector")
_REST = ("driver", "gpus", "gpu_archs", "ptx", "glibc", "platform", "os", "pins")


@click.command("resolve")
@request_options
@click.option(
    "--template", metavar="NAME", help="What will build it: wheels means a venv on the OS's own Python. [miniconda]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (envkit.resolution/1, or envkit.conflict/1).")
@click.option("-v", "--verbose", is_flag=True, help="Also name the sources of the facts.")
def command(*, template: str | None, as_json: bool, verbose: bool, **typed: Any) -> None:
    """Find the torch, CUDA, driver, GPU, Python and OS combination that fits.

    What is left out becomes the newest that fits all the rest. Nothing is downloaded and no GPU is needed.

    \b
    envkit resolve --cuda 11.8
    envkit resolve --gpu "RTX 4090" --driver 550.54.15
    envkit resolve --gpu auto --driver auto --json
    """  # noqa: D301 - click's mark for "do not wrap" is the character itself
    from envkit.resolve.explain import Unresolvable
    from envkit.resolve.request import parse
    from envkit.resolve.resolver import resolve

    facts = load_facts(typed.pop("facts_file"))
    request = parse({**given(typed), "template": template_kind(template)}, facts)
    try:
        resolution = resolve(request, facts)
    except Unresolvable as fault:
        if as_json:
            _print_json(fault.conflict.to_json() | {"message": fault.message})
        raise
    if as_json:
        _print_json(resolution.to_json())
    else:
        _show(resolution)
        if verbose:
            _show_sources(resolution, facts)


def _show(resolution: Resolution) -> None:
    from envkit.cli import table

    fields = (*_BOTH, *(_CONDA if resolution.channels else _WHEEL), *_REST)
    table.show(
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
    from envkit.cli import table
    from envkit.facts.sources import describe, find

    rows = [(ref, describe(found[1], ref)) for ref in resolution.sources if (found := find(facts.sources, ref))]
    click.echo("")
    table.show(("source", "where"), rows)


def _print_json(document: dict[str, Any]) -> None:
    import json

    click.echo(json.dumps(document, indent=2, ensure_ascii=False))
