"""Load images from files and registries into an engine, for machines where bubblewrap does not work.

An image that Podman loads from a file is removed when the session or verification ends, if the caller says when that
is. Docker keeps the image: this process becomes Docker's client, so nothing can remove it after the session.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envkit.engines.failures import EngineInfo, translate
from envkit.ground import identity, store
from envkit.ground.cache import PODMAN
from envkit.ground.errors import EnvkitError, UsageError
from envkit.ground.paths import cache_dir, scratch
from envkit.ground.process import ask
from envkit.image.name import InArchive, InEngine, InLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.name import Reference

_LOAD_S = 1800.0  # gigabytes, copied into the engine's storage
_ASK_S = 120.0  # Podman's storage is slow when it has many images
# "Loaded image: docker.io/library/app:1", or for an image without a name "Loaded image ID: sha256:..."
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")
# Podman makes an image's name of a folder's path, and refuses one that is no name (capital letters, spaces, `-_`).
# Source: distribution/reference, the grammar of path components; a name has at most 255 characters with its domain.
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PLAIN_PATH = re.compile(rf"(?=.{{1,240}}$)/?{_COMPONENT}(?:/{_COMPONENT})*")
_OWN = "localhost/envkit-session/"  # localhost is Podman's registry of local names
# The labels that identify a process. Their values are the tag of a session's own name.
_LABELS = (f"{identity.PREFIX}.host", f"{identity.PREFIX}.boot", f"{identity.PREFIX}.pid", f"{identity.PREFIX}.started")


def hand_over(
    reference: InLayout | InArchive,
    engine: str,
    reporter: Reporter,
    *,
    client: str | None = None,
    until: contextlib.ExitStack | None = None,
) -> InEngine:
    """Load an image into docker's or podman's storage and return its name or ID there.

    Args:
        reference: the file or folder.
        engine: 'docker' or 'podman'.
        reporter: receives a note if the image stays in the storage.
        client: the engine's program, if it has another name.
        until: podman removes the image when this closes; None: it stays.

    Raises:
        EngineError: the engine refuses it.
        EnvironmentProblem: the engine's client is missing or does not answer.
        UsageError: this engine cannot read such a reference.
    """
    program = client or engine
    if engine == "podman" and until is not None:
        return InEngine(name=_lend(program, reference, until))
    reporter.note(f"loading {reference} into {engine}, where it stays")
    if engine == "podman":
        return InEngine(name=_pulled(program, reference))
    if isinstance(reference, InLayout):
        raise UsageError(
            f"docker cannot read {reference}", hint="apt-get install bubblewrap, or save it as docker-archive:FILE"
        )
    argv = [program, "load", "--quiet", "--input", str(reference.path)]
    out = _ask(argv, f"loading {reference}", engine)
    names = _LOADED.findall(out)
    return InEngine(name=str(names[-1]) if names else out.split()[-1])


def _lend(program: str, reference: InLayout | InArchive, until: contextlib.ExitStack) -> str:
    """Load an image into podman's storage until `until` closes, and return its ID there.

    The image gets a name that only this session uses. Removing the last name of an image removes the image, so it stays
    while another session uses it, or if it has a name of the user's.
    """
    folder = PODMAN.at(cache_dir())
    folder.mkdir(parents=True, exist_ok=True)
    # Podman names a pulled image after its path and takes that name from any other image. The name is removed or given
    # back below. Without the lock, a second session could see it before that and take it for the user's.
    with store.locked(folder):
        before = _swept(program)
        ident = _pulled(program, reference)
        owners = {name: owner for owner, names in before.items() for name in names}
        new = [name for name in _names_of(program, ident) if owners.get(name) != ident]
        own = f"{_OWN}{secrets.token_hex(4)}:{'_'.join(map(identity.current().labels().__getitem__, _LABELS))}"
        if before.get(ident) != ():  # a user's image without a name would be removed with this session's name
            _ask([program, "tag", ident, own], f"naming {reference}", "podman")
            until.callback(_remove, program, own)
        for name in new:
            owner = owners.get(name)
            words = ["untag", ident, name] if owner is None else ["tag", owner, name]
            _ask([program, *words], f"naming {reference}", "podman")
    return ident


def _pulled(program: str, reference: InLayout | InArchive) -> str:
    """Load an image into podman's storage and return its ID there."""
    with _plainly_named(reference) as named:
        return _ask([program, "pull", "--quiet", str(named)], f"loading {reference}", "podman").split()[-1]


@contextmanager
def _plainly_named(reference: InLayout | InArchive) -> Iterator[InLayout | InArchive]:
    """Yield the reference, or one to the same folder by another path if Podman cannot make a name of its own."""
    if not isinstance(reference, InLayout) or _PLAIN_PATH.fullmatch(str(reference.path)):
        yield reference
        return
    with scratch() as folder:
        (folder / "image").symlink_to(reference.path.absolute(), target_is_directory=True)
        yield replace(reference, path=folder / "image")


def _remove(program: str, name: str) -> None:
    """Remove a session's name, and with the last one the image. If that fails, a later session does it."""
    with contextlib.suppress(EnvkitError):
        _ask([program, "rmi", name], f"removing {name}", "podman")


def _swept(program: str) -> Mapping[str, Sequence[str]]:
    """Remove the images of sessions that were killed; return the names of the others by image ID."""
    # One listing for both: Podman computes sizes for each, which takes seconds with a hundred images.
    rows: Any = json.loads(_ask([program, "images", "--all", "--format", "json"], "podman images", "podman") or "[]")
    images = {row["Id"]: tuple(row.get("Names") or ()) for row in rows or ()}
    abandoned = {name for names in images.values() for name in names if _is_abandoned(name)}
    for name in abandoned:
        _remove(program, name)
    return {
        ident: tuple(name for name in names if name not in abandoned)
        for ident, names in images.items()
        if not names or not abandoned.issuperset(names)
    }


def _is_abandoned(name: str) -> bool:
    """Return whether a name belongs to a session that was killed."""
    # From the right, because the first value, the host's name, may contain underscores.
    values = name.rpartition(":")[2].rsplit("_", len(_LABELS) - 1)
    if not name.startswith(_OWN) or len(values) != len(_LABELS):
        return False
    return identity.abandoned(dict(zip(_LABELS, values, strict=True)))


def _names_of(program: str, ident: str) -> Sequence[str]:
    """Return the names of one image."""
    rows: Any = json.loads(_ask([program, "image", "inspect", ident], "podman image inspect", "podman"))
    return tuple(rows[0].get("RepoTags") or ())


def _ask(argv: Sequence[str], doing: str, engine: str) -> str:
    answer = ask(argv, patience_s=_LOAD_S if argv[1] in ("pull", "load") else _ASK_S)
    if answer.code:
        raise translate(answer.err.strip() or f"exit code {answer.code}", doing, EngineInfo(engine=engine))
    return answer.out


def pull(reference: Reference, engine: str, reporter: Reporter, *, client: str | None = None) -> InEngine:
    """Pull an image from a registry with docker or podman and return its name there.

    Raises:
        EngineError: the engine or the registry refuses.
        EnvironmentProblem: the engine's client is missing or does not answer.
    """
    reporter.note(f"pulling {reference} into {engine}, where it stays")
    # By digest if there is one, because it is more specific than the tag.
    name = f"{reference.place}@{reference.digest}" if reference.digest else str(reference)
    _ask([client or engine, "pull", "--quiet", name], f"pulling {name}", engine)
    return InEngine(name=name)
