"""`envkit resolve`: the newest compatible combination, with the reason for every field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.console import show, tell
from envkit.cli.declare import Section, flag, group, new_command, option, verbose_option
from envkit.cli.options import RequestOptions, definition_argument, exclude, note
from envkit.cli.output import print_json, show_table
from envkit.ground.errors import ConflictError, UsageError
from envkit.pipeline.resolving import resolution_of
from envkit.plan.install import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envkit.facts.model import Facts
    from envkit.resolve.model import Request, Resolution, Suggestion

_SHORT = ("torch", "cuda", "cudnn", "python", "source", "driver")
# Fields that the short table has only where the request has them, or the answer is not the default.
_UNDERSTOOD = ("gpus", "platform", "os")
_BOTH = ("torch", "cuda", "cudnn", "nccl", "triton", "python", "pythons", "torchvision", "torchaudio", "source")
_WHEEL = ("index", "local_version")
_CONDA = ("channels", "selector")
_REST = ("driver", "gpus", "gpu_archs", "ptx", "glibc", "platform", "os", "pins")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveFlags:
    """The options of `envkit resolve`."""

    definition: str | None = definition_argument()
    request: RequestOptions = group(RequestOptions)
    for_host: str | None = option(
        Section.REQUEST,
        "--for-host FILE",
        shell_complete=shell_values.files,
        help="Read GPUs, driver and platform from the output of nvidia-smi, kubectl, Slurm or envkit doctor --json, "
        "or from CSV or JSON; - is stdin.",
    )
    advise: bool = flag(
        Section.OUTPUT,
        "--advise",
        help="Also show which newer driver allows a newer torch or CUDA, and which GPU prevents one.",
    )
    form: str | None = option(
        Section.OUTPUT,
        "--format",
        type=click.Choice(tuple(FORMATS)),
        help="Print only an install command, or a snippet for the file of another tool.",
    )
    as_json: bool = flag(Section.OUTPUT, "--json", help="Print JSON (envkit.resolution/1, or envkit.conflict/1).")
    verbose: bool = verbose_option("Show every field, and the sources of the facts.")


# What a conflict says about the implied source -> what the user typed. The order matters: the first texts contain the
# later ones.
_STANDS_FOR = (
    ("--source auto instead of conda-forge", "without --format conda"),
    ("instead of conda-forge", "instead of --format conda"),
    ("--source conda-forge", "--format conda"),
)


@new_command("resolve", ResolveFlags)
def command(flags: ResolveFlags) -> None:
    """Find compatible versions of torch, CUDA, driver, GPU, Python and OS.

    Anything you leave out becomes the newest compatible version. Nothing is downloaded and no GPU is needed.
    DEFINITION is a shipped image (envkit render --list-images), a YAML file, or a project file or folder that envkit
    init can read. Flags override it.

    \b
    envkit resolve --cuda 11.8
    envkit resolve train.yaml
    envkit resolve --gpu "RTX 4090" --driver 550.54.15
    envkit resolve --here --format uv > pyproject.toml
    envkit resolve --for-host gpu01.csv
    envkit resolve --gpu V100 --driver 535.104.05 --advise
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.plan import install
    from envkit.resolve.conflict import Unresolvable

    exclude(format=flags.form, json=flags.as_json)
    exclude(format=flags.form, advise=flags.advise)
    exclude(for_host=flags.for_host, here=flags.request.here)
    facts = flags.request.facts()
    fields = flags.request.fields(facts)
    if flags.for_host is not None:
        from envkit.cli.hosts_file import machine

        fields |= machine(flags.for_host, fields, facts)
    # The output is a conda command, so the build has to be on a conda channel.
    implied = flags.form == "conda" and fields["source"] is None
    if implied:
        fields["source"] = "conda-forge"
    try:
        resolution, request = resolution_of(flags.definition, fields, facts, note)
    except Unresolvable as conflict:
        if flags.as_json:
            print_json(conflict.conflict.to_json() | {"message": conflict.message, "facts": facts.identity()})
        if implied:
            raise _as_typed(conflict) from None
        raise
    advice = _advice(request, facts) if flags.advise else ()
    if flags.as_json:
        print_json(_document(resolution, facts, advice if flags.advise else None))
        return
    if flags.form:
        text = install.text_of(resolution, flags.form)
        for warning in resolution.warnings:
            tell(f"warning: {warning}")
        click.echo(text, nl=False)
        return
    _show(resolution, whole=flags.verbose, more=_stated(request))
    if flags.verbose:
        _show_sources(resolution, facts)
    click.echo(f"\ninstall: {install.command(resolution)}")
    _mention(install.unnamed_companions(resolution))
    if flags.advise:
        _show_advice(advice)
    if not (request.gpus or request.driver or request.cpu):
        _mention_driver()


def _mention(absent: tuple[str, ...]) -> None:
    """Note the companions that the line leaves out."""
    if absent:
        names, adding = " and ".join(absent), " ".join(f"--with {name}" for name in absent)
        note(f"{names} {'is' if len(absent) == 1 else 'are'} not in that line; to add: {adding}")


def _stated(request: Request) -> tuple[str, ...]:
    """Return the fields of `_UNDERSTOOD` that the short table shows."""
    from envkit.resolve.wanted import DEFAULT_PLATFORM

    stated = (bool(request.gpus), request.platform != DEFAULT_PLATFORM, request.os is not None)
    return tuple(field for field, is_stated in zip(_UNDERSTOOD, stated, strict=True) if is_stated)


def _as_typed(conflict: ConflictError) -> ConflictError:
    """Return a conflict that names `--format conda`, as typed, in place of the source that it implies."""

    def typed(text: str) -> str:
        for own, other in _STANDS_FOR:
            text = text.replace(own, other)
        return text

    details = tuple(map(typed, conflict.details))
    return ConflictError(typed(conflict.message), hint=conflict.hint and typed(conflict.hint), details=details)


def _mention_driver() -> None:
    from envkit.ground.host import has_nvidia_driver

    if has_nvidia_driver():
        tell("note: this machine has an NVIDIA driver; --here resolves for it")


def _document(resolution: Resolution, facts: Facts, advice: tuple[Suggestion, ...] | None) -> dict[str, Any]:
    """Return the document of `--json`: the resolution with its download size, support and, if asked for, advice."""
    extra: dict[str, Any] = {
        "download": resolution.download and resolution.download.to_json(),
        "support": resolution.support and resolution.support.to_json(),
    }
    if advice is not None:
        extra["advice"] = [suggestion.to_json() for suggestion in advice]
    return resolution.to_json() | extra | {"facts": facts.identity()}


def _advice(request: Request, facts: Facts) -> tuple[Suggestion, ...]:
    """Return the changes of driver or GPUs that allow a newer torch or CUDA."""
    from envkit.resolve.index import index
    from envkit.resolve.suggest import unlocks

    if not (request.driver or request.gpus):
        raise UsageError("--advise needs a driver or a GPU", hint="--here, or --gpu A100 --driver 550.54.15")
    return unlocks(request, index(facts))


def _show_advice(advice: tuple[Suggestion, ...]) -> None:
    click.echo("")
    if advice:
        show_table(("change", "gives"), [(suggestion.change, suggestion.gives) for suggestion in advice])
    else:
        click.echo("no newer driver allows a newer torch or CUDA, and no GPU prevents one")


def _show(resolution: Resolution, *, whole: bool, more: tuple[str, ...] = ()) -> None:
    fields = (*_BOTH, *(_CONDA if resolution.channels else _WHEEL), *_REST) if whole else (*_SHORT, *more)
    show_table(
        ("field", "value", "why"),
        [
            *((field, _value(resolution, field), resolution.reasons[field]) for field in fields),
            *_download(resolution, whole=whole),
            *(_support(resolution) if whole else ()),
        ],
    )
    for warning in resolution.warnings:
        show(f"warning: {warning}")


def _download(resolution: Resolution, *, whole: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the row with the download size; an unknown size is shown only with `-v`."""
    from envkit.ground.sizes import shown_size

    download = resolution.download
    if download is not None and (whole or download.total is not None):
        yield "download", "-" if download.total is None else shown_size(download.total), download.why


def _support(resolution: Resolution) -> Iterator[tuple[str, str, str]]:
    """Yield the row about support, for `-v` only: it changes from day to day, while the image does not."""
    support = resolution.support
    if support is not None:
        yield "support", support.level or "-", f"{support.why} (on {support.day})"


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

    refs = (*resolution.sources, *(resolution.support.sources if resolution.support else ()))
    rows = [(ref, describe(source[1], ref)) for ref in dict.fromkeys(refs) if (source := find(facts.sources, ref))]
    click.echo("")
    show_table(("source", "where"), rows)
