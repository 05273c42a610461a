"""Find the record that verifies an image: a record of this image, by its ID, with exit code 0."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EnvkitError, NotVerifiedError, VerificationError
from envkit.ground.state import RECORDS, records_of
from envkit.verify.again import read_record, require_consistent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBy:
    """A record that lets an image be tagged."""

    path: Path
    verdict: str
    started: str  # RFC 3339, UTC
    machine: str | None  # fingerprint of the hardware that verified it


def verified_by_file(name: str, ids: Sequence[str], path: Path) -> VerifiedBy:
    """Return the record in a file, if it verifies an image.

    Args:
        name: of the image, for messages.
        ids: the names by which a record may know it, 'sha256:...', the usual one first.
        path: the record.

    Raises:
        NotVerifiedError: it is of another image, or this image is not verified by it.
        IntegrityError: it was changed after it was written, or contradicts itself.
        UsageError: there is no record in it.
    """
    tree = read_record(path)
    judged = tree["subject"].get("id")
    if judged not in ids:
        raise NotVerifiedError(
            f"{path} is of another image: {_short(judged)}, not {_short(ids[0])}", hint=f"envkit verify {name}"
        )
    return _accepted(name, tree, path)


def verified_by_newest(name: str, ids: Sequence[str], state: Path) -> VerifiedBy:
    """Return the newest record below the state folder that verifies an image.

    A verification without a verdict (no GPU here) leaves an older record valid; a failed one does not.

    Raises:
        NotVerifiedError: there is none, or the image failed after it was verified.
    """
    damaged: list[str] = []
    refused: NotVerifiedError | None = None
    for path in records_of(state, ids):
        try:
            return _accepted(name, read_record(path), path)
        except NotVerifiedError as error:
            refused = refused or error
            if _failed(path):
                break
        except EnvkitError as error:
            damaged.append(error.message)
    if refused is not None:
        raise refused
    raise NotVerifiedError(
        f"{name} is not verified: no record in {state / RECORDS} is of {_short(ids[0])}",
        hint=f"envkit verify {name}   # or --record FILE, or --unverified to tag it anyway",
        details=tuple(damaged),
    )


def _accepted(name: str, tree: Mapping[str, Any], path: Path) -> VerifiedBy:
    verdict, code = str(tree["summary"].get("verdict")), tree["summary"].get("exit_code")
    if code != 0 or isinstance(code, bool):
        only_gpu = code == NotVerifiedError.exit_code
        raise NotVerifiedError(
            f"{name} is not verified: {verdict}, exit code {code}, says {path}",
            hint=f"envkit verify {name}"
            + (" --allow-cpu   # where only a GPU was missing" if only_gpu else "")
            + ("; " if only_gpu else "   # ")
            + "--unverified tags it anyway",
        )
    require_consistent(tree, str(path))
    prints = tree["env"].get("fingerprint") or {}
    return VerifiedBy(path=path, verdict=verdict, started=str(tree["run"].get("started")), machine=prints.get("hw"))


def _failed(path: Path) -> bool:
    summary = _tree(path).get("summary")
    return isinstance(summary, dict) and summary.get("exit_code") == VerificationError.exit_code


def _tree(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _short(digest: object) -> str:
    return str(digest)[:19]
