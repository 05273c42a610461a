"""Images of files and registries, loaded into an engine where bubblewrap cannot be used.

Podman's storage has an image of a file for as long as a session or a verification takes, if that says when it ends.
Docker's keeps it: this process becomes Docker's client, so nothing of envkit runs after a session.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from typing import TYPE_CHECKING, Any

from envkit.engine.failures import Place, translate
from envkit.ground import identity, store
from envkit.ground.errors import EnvkitError, UsageError
from envkit.ground.paths import cache_dir
from envkit.ground.process import ask
from envkit.image.reference import ARCHIVE, FileReference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.reference import Reference

_LOAD_S = 1800.0  # gigabytes into its storage
_ASK_S = 120.0  # with many images its storage is slow
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")
_OWN = "localhost/envkit-session/"
_ENDS = (f"{identity.PREFIX}.host", f"{identity.PREFIX}.boot", f"{identity.PREFIX}.pid", f"{identity.PREFIX}.started")


def hand_over(
    reference: FileReference,
    engine: str,
    reporter: Reporter,
    *,
    client: str | None = None,
    until: contextlib.ExitStack | None = None,
) -> str:
    """Load an image into docker's or podman's storage; returns its name or id there.

    Args:
        reference: the file or folder.
        engine: docker or podman.
        reporter: hears where the image is, if it stays there.
        client: the engine's program, if it has another name.
        until: podman removes the image when this closes; None: it stays.

    Raises:
        EngineError: the engine refuses it.
        EnvironmentProblem: the engine's client is missing or does not answer.
        UsageError: this engine cannot read such a reference.
    """
    program = client or engine
    if engine == "podman" and until is not None:
        return _lend(program, reference, until)
    reporter.note(f"{reference} is loaded into {engine}, and stays there")
    if engine == "podman":
        argv = [program, "pull", "--quiet", str(reference)]
    elif reference.kind == ARCHIVE:
        argv = [program, "load", "--quiet", "--input", str(reference.path)]
    else:
        raise UsageError(
            f"docker cannot read {reference}", hint="apt-get install bubblewrap, or save it as docker-archive:FILE"
        )
    out = _ask(argv, f"loading {reference}", engine)
    names = _LOADED.findall(out)
    return str(names[-1]) if names else out.split()[-1]


def _lend(program: str, reference: FileReference, until: contextlib.ExitStack) -> str:
    """Load an image into podman's storage until `until` closes, and return its id there.

    It gets a name of this session only. Taking the last name from an image removes it, so sessions that have the same
    image at once do not remove it from each other, and one that the user has by a name stays.
    """
    folder = cache_dir() / "podman"
    folder.mkdir(parents=True, exist_ok=True)
    # Podman names what it pulls after the path, and takes that name from another image. Without the lock a second
    # session would count the name that the first one has not yet taken back as the user's.
    with store.locked(folder):
        before = _swept(program)
        ident = _ask([program, "pull", "--quiet", str(reference)], f"loading {reference}", "podman").split()[-1]
        owners = {name: owner for owner, names in before.items() for name in names}
        new = [name for name in _names_of(program, ident) if owners.get(name) != ident]
        own = f"{_OWN}{secrets.token_hex(4)}:{'_'.join(map(identity.current().labels().__getitem__, _ENDS))}"
        if before.get(ident) != ():  # the user's own image without a name would go with the name of this session
            _ask([program, "tag", ident, own], f"naming {reference}", "podman")
            until.callback(_remove, program, own)
        for name in new:
            owner = owners.get(name)
            words = ["untag", ident, name] if owner is None else ["tag", owner, name]
            _ask([program, *words], f"naming {reference}", "podman")
    return ident


def _remove(program: str, name: str) -> None:
    """Take a session's name from its image. A later session does it if this one cannot."""
    with contextlib.suppress(EnvkitError):
        _ask([program, "rmi", name], f"removing {name}", "podman")


def _swept(program: str) -> Mapping[str, Sequence[str]]:
    """Remove the images of sessions that were killed; return the others by their id, with their names."""
    # One listing for both: Podman adds up sizes first, which takes seconds with a hundred images.
    rows: Any = json.loads(_ask([program, "images", "--all", "--format", "json"], "podman images", "podman") or "[]")
    images = {row["Id"]: tuple(row.get("Names") or ()) for row in rows or ()}
    left = {name for names in images.values() for name in names if _is_abandoned(name)}
    for name in left:
        _remove(program, name)
    return {
        ident: tuple(name for name in names if name not in left)
        for ident, names in images.items()
        if not names or not left.issuperset(names)
    }


def _is_abandoned(name: str) -> bool:
    """Whether a name is that of a session that was killed."""
    said = name.rpartition(":")[2].rsplit("_", len(_ENDS) - 1)
    return name.startswith(_OWN) and len(said) == len(_ENDS) and identity.abandoned(dict(zip(_ENDS, said, strict=True)))


def _names_of(program: str, ident: str) -> Sequence[str]:
    """Return the names of one image."""
    rows: Any = json.loads(_ask([program, "image", "inspect", ident], "podman image inspect", "podman"))
    return tuple(rows[0].get("RepoTags") or ())


def _ask(argv: Sequence[str], doing: str, engine: str) -> str:
    answer = ask(argv, patience_s=_LOAD_S if argv[1] in ("pull", "load") else _ASK_S)
    if answer.code:
        raise translate(answer.err.strip() or f"exit code {answer.code}", doing, Place(engine=engine))
    return answer.out


def pull(reference: Reference, engine: str, reporter: Reporter, *, client: str | None = None) -> str:
    """Have docker or podman pull an image of a registry; returns its name there.

    Raises:
        EngineError: the engine or the registry refuses.
        EnvironmentProblem: the engine's client is missing or does not answer.
    """
    reporter.note(f"{reference} is pulled into {engine}, and stays there")
    # Engines take a tag or a digest, and the digest says more.
    name = f"{reference.place}@{reference.digest}" if reference.digest else str(reference)
    _ask([client or engine, "pull", "--quiet", name], f"pulling {name}", engine)
    return name
