"""The flags that say what is wanted, shared by every verb that resolves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from envkit.facts.model import Facts

AUTO = "auto"
FLAGS = ("torch", "cuda", "cudnn", "python", "driver", "gpu", "os", "platform", "source", "cpu")

F = TypeVar("F", bound=Callable[..., Any])


def _no_amd(context: click.Context, option: click.Parameter, value: str | None) -> None:
    del context, option
    if value is not None:
        from envkit.ground.errors import UsageError
        from envkit.resolve.wanted import NO_AMD, NO_AMD_HINT

        raise UsageError(f"--rocm: {NO_AMD}", hint=NO_AMD_HINT)


_OPTIONS = (
    click.option("--torch", metavar="VERSION", help="torch: exact (2.7.1), a prefix (2.7.*) or '>=2.6,<2.8'."),
    click.option("--cuda", metavar="VERSION", help="CUDA runtime: 11.8, cu118, 12.* or '>=12.1,<13'."),
    click.option("--cudnn", metavar="VERSION", help="cuDNN: 9.10, 9.* or '>=9.5'."),
    click.option("--python", metavar="VERSION", help="Python: 3.11, or '>=3.10,<3.13'."),
    click.option(
        "--driver",
        metavar="VERSION",
        help="NVIDIA driver of the machine that will run the image; auto reads this host.",
    ),
    click.option(
        "--gpu",
        metavar="NAME",
        multiple=True,
        help='GPU of that machine: A100, "RTX 4090", sm_86; repeatable; auto reads this host.',
    ),
    click.option("--os", metavar="NAME", help="OS of the image: debian12, ubuntu22.04, rockylinux9, ... [debian12]"),
    click.option("--platform", metavar="NAME", help="linux-64 or linux-aarch64. [linux-64]"),
    click.option("--source", metavar="NAME", help="auto, pytorch, pypi, conda-forge or conda-pytorch. [auto]"),
    click.option("--cpu", is_flag=True, help="A build without CUDA."),
    click.option("--rocm", is_flag=False, flag_value="", expose_value=False, hidden=True, callback=_no_amd),
    click.option("--facts", "facts_file", metavar="FILE", help="YAML file with your own rows laid over the facts."),
)


def request_options(command: F) -> F:
    """Add the flags of a request and `--facts` to a command; they arrive as keywords named in FLAGS."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given(typed: Mapping[str, Any]) -> dict[str, str | Sequence[str] | bool | None]:
    """The request's fields among a command's keywords, with `auto` replaced by what this host is.

    Raises:
        EnvironmentProblem: `auto` was asked for and this host has no NVIDIA driver or GPU.
    """
    fields = {name: typed.get(name) for name in FLAGS}
    gpus: tuple[str, ...] = fields["gpu"] or ()
    if fields["driver"] == AUTO or AUTO in gpus:
        from envkit.ground import host

        here = host.read()
        if fields["driver"] == AUTO:
            fields["driver"] = here.need_driver()
        if AUTO in gpus:
            found = here.need_gpus()
            gpus = tuple(word for typed_gpu in gpus for word in (found if typed_gpu == AUTO else (typed_gpu,)))
    fields["gpu"] = tuple(dict.fromkeys(gpus))
    return fields


def template_kind(name: str | None) -> str | None:
    """How a template installs, which is all that the resolver asks of it: `miniconda` or `wheels`.

    Raises:
        UsageError: no template has such a name.
    """
    if name is None:
        return None
    from envkit.ground.errors import UsageError
    from envkit.plan.definition import check_template, kind_of

    why = check_template(name)
    if why:
        raise UsageError(f"--template: {name!r:.80} {why}", hint="--template miniconda, or --template wheels")
    return kind_of(name)


def load_facts(facts_file: str | None) -> Facts:
    """The facts, with the rows of `--facts`, ENVKIT_FACTS or the settings file laid over them.

    Raises:
        UsageError: the settings or the rows are at fault.
    """
    from envkit.cli import configured
    from envkit.facts.load import load

    path = configured.load({"facts": facts_file}).get("facts")
    return load(Path(path) if path else None)
