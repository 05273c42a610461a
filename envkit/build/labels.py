"""Labels that an engine adds to those of the plan: envkit's version, the base image, the time where one is given."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from envkit import __version__
from envkit.build.model import BaseImage
from envkit.ground.errors import UsageError
from envkit.image.spec import LABEL_PREFIX
from envkit.lock.store import digest_of
from envkit.plan.labels import plan_labels
from envkit.plan.names import label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan

_OCI = "org.opencontainers.image"


def image_labels(
    plan: BuildPlan,
    base: BaseImage,
    extra: Sequence[tuple[str, str]],
    environ: Mapping[str, str],
    lock: Lock | None = None,
) -> dict[str, str]:
    """Return all labels of an image, sorted. Nothing in them names a machine, a run or a moment.

    `org.opencontainers.image.created` is set from SOURCE_DATE_EPOCH alone, so that equal inputs give equal images.

    Raises:
        UsageError: SOURCE_DATE_EPOCH is not a number of seconds.
    """
    own = {
        f"{LABEL_PREFIX}.version": __version__,
        f"{_OCI}.base.name": base.name,
        f"{_OCI}.base.digest": base.digest,
        f"{LABEL_PREFIX}.lock": digest_of(lock) if lock else None,
        f"{_OCI}.created": _created(environ.get("SOURCE_DATE_EPOCH")),
    }
    labels = plan_labels(plan) | {key: value for key, value in own.items() if value}
    return dict(sorted((labels | dict(plan.labels) | dict(extra)).items()))


def parse_label(text: str) -> tuple[str, str]:
    """`KEY=VALUE` as typed after --label.

    Raises:
        UsageError: no `=`, a key that is not one or is reserved, or a value with control characters.
    """
    key, sign, value = text.partition("=")
    fault = label(key, value) if sign else "is not KEY=VALUE"
    if fault:
        raise UsageError(f"--label {text!r:.200} {fault}", hint="--label com.example.team=vision")
    return key, value


def _created(epoch: str | None) -> str | None:
    if not epoch:
        return None
    try:
        moment = dt.datetime.fromtimestamp(int(epoch), dt.UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {epoch!r:.80}, not a number of seconds",
            hint="export SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)",
        ) from error
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
