"""Find the record that verifies an image: a record of its image ID with exit code 0."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EnvkitError, NotVerifiedError, VerificationError
from envkit.ground.state import RECORDS, records_of
from envkit.verify.again import read_record, require_consistent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBy:
    """A record that allows an image to be tagged."""

    path: Path
    verdict: str
    started: str  # RFC 3339, UTC
    machine: str | None  # fingerprint of the hardware that verified it


def verified_by_file(name: str, ids: Sequence[str], path: Path) -> VerifiedBy:
    """Return the record in a file, if it verifies an image.

    Args:
        name: of the image, for messages.
        ids: the IDs that a record may have for it, 'sha256:...', the usual one first.
        path: the record.

    Raises:
        NotVerifiedError: the record is of another image, or does not verify this one.
        IntegrityError: the record was changed after it was written, or contradicts itself.
        UsageError: the file is not a record.
    """
    tree = read_record(path)
    judged = tree["subject"].get("id")
    if judged not in ids:
        raise NotVerifiedError(
            f"{path} is a record of another image: {_short(judged)}, not {_short(ids[0])}",
            hint=f"envkit verify {name}",
        )
    return _accepted(name, tree, path)


def recorded_here(ids: Collection[str], state: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records below the state folder of an image with one of these IDs, newest first.

    Damaged records, and those that were changed after they were written, are skipped.
    """
    for path in records_of(state, ids):
        with contextlib.suppress(EnvkitError):
            yield read_record(path)


def verified_by_newest(name: str, ids: Sequence[str], state: Path) -> VerifiedBy:
    """Return the newest record below the state folder that verifies an image.

    After a verification without a clear verdict (such as without a GPU) an older record stays valid; after a failed one
    it does not.

    Raises:
        NotVerifiedError: there is no such record, or the image failed after it was verified.
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
        # A damaged record decides nothing; an older one may still verify the image.
        except EnvkitError as error:
            damaged.append(error.message)
    if refused is not None:
        raise refused
    raise NotVerifiedError(
        f"{name} is not verified: there is no record of {_short(ids[0])} in {state / RECORDS}",
        hint=f"envkit verify {name}   # or --record FILE, or --unverified to tag it anyway",
        details=tuple(damaged),
    )


def _accepted(name: str, tree: Mapping[str, Any], path: Path) -> VerifiedBy:
    verdict, code = str(tree["summary"].get("verdict")), tree["summary"].get("exit_code")
    # In Python, False is equal to 0, but `false` in a record is no exit code.
    if code != 0 or isinstance(code, bool):
        only_gpu = code == NotVerifiedError.exit_code
        raise NotVerifiedError(
            f"{name} is not verified: {verdict}, exit code {code} in {path}",
            hint=f"envkit verify {name}"
            + (" --allow-cpu   # if only a GPU was missing" if only_gpu else "")
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
    return str(digest)[:19]  # sha256: and twelve digits
