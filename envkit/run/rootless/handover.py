"""Images of files and registries, handed to an engine where bubblewrap cannot be used: its storage keeps them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envkit.engine.failures import Place, translate
from envkit.ground.errors import UsageError
from envkit.ground.process import ask
from envkit.image.reference import ARCHIVE, FileReference

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.image.reference import Reference

_LOAD_S = 1800.0
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")


def hand_over(reference: FileReference, engine: str, reporter: Reporter, *, client: str | None = None) -> str:
    """Load an image into docker's or podman's storage; returns its name or id there.

    Raises:
        EngineError: the engine refuses it.
        EnvironmentProblem: the engine's client is missing or does not answer.
        UsageError: this engine cannot read such a reference.
    """
    reporter.note(f"{reference} is loaded into {engine}, and stays there")
    program = client or engine
    if engine == "podman":
        argv = [program, "pull", "--quiet", str(reference)]
    elif reference.kind == ARCHIVE:
        argv = [program, "load", "--quiet", "--input", str(reference.path)]
    else:
        raise UsageError(
            f"docker cannot read {reference}", hint="apt-get install bubblewrap, or save it as docker-archive:FILE"
        )
    answer = ask(argv, patience_s=_LOAD_S)
    if answer.code:
        raise translate(answer.err.strip() or f"exit code {answer.code}", f"loading {reference}", Place(engine=engine))
    found = _LOADED.findall(answer.out)
    return str(found[-1]) if found else answer.out.split()[-1]


def pull(reference: Reference, engine: str, reporter: Reporter, *, client: str | None = None) -> str:
    """Have docker or podman pull an image of a registry; returns its name there.

    Raises:
        EngineError: the engine or the registry refuses.
        EnvironmentProblem: the engine's client is missing or does not answer.
    """
    reporter.note(f"{reference} is pulled into {engine}, and stays there")
    # Engines take a tag or a digest, and the digest says more.
    name = f"{reference.place}@{reference.digest}" if reference.digest else str(reference)
    answer = ask([client or engine, "pull", "--quiet", name], patience_s=_LOAD_S)
    if answer.code:
        raise translate(answer.err.strip() or f"exit code {answer.code}", f"pulling {name}", Place(engine=engine))
    return name
