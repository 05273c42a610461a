"""Findings about environment variables, whichever the place that sets them: this machine, an image, a file, a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from envkit.doctor.model import Evidence, Finding
from envkit.knowledge import variables

_SHOWN = 200  # characters of a value


def of_environment(
    environ: Mapping[str, str],
    *,
    gpu: bool,
    kinds: Collection[str] = variables.KINDS,
    where: str = "",
    line: int | None = None,
) -> Iterator[Finding]:
    """Yield a finding for each variable with a harmful value.

    `gpu` is whether a GPU is expected, `where` what sets the variables ("train: ") and `line` its line in a file.
    """
    for variable, value in variables.found(environ, gpu=gpu, kinds=kinds):
        yield Finding(
            id=variable.id,
            severity=variable.severity,
            title=f"{where}{variable.said(value)}",
            evidence=(Evidence(text=f"{variable.name}={value[:_SHOWN]}", line=line),),
            fix=(variable.fix,),
            sources=variable.sources,
        )
