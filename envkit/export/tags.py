"""Tags of images that are not verified yet: a candidate tag until verification on a GPU."""

from __future__ import annotations

from envkit.ground.errors import UsageError

CANDIDATE = "-candidate"
_LONGEST = 128


def candidate(name: str) -> str:
    """The tag of an image that is built and not yet verified on a GPU.

    Raises:
        UsageError: no registry takes a tag of that length.
    """
    if len(name) + len(CANDIDATE) > _LONGEST:
        raise UsageError(f"{name!r} is too long for a tag with the suffix {CANDIDATE}", hint="use a shorter name")
    return name + CANDIDATE
