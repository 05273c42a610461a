"""Labels of an image beyond the plan's: envkit's version, the base image, the lock, the date, source and license."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from envkit import __version__
from envkit.engines.model import BaseImage
from envkit.ground.clock import source_date
from envkit.ground.errors import UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.image.name import parse_reference
from envkit.lock.store import digest_of
from envkit.plan.labels import plan_labels
from envkit.plan.names import label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.settings import Settings, Value
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan

_OCI = "org.opencontainers.image"
_SETTINGS = ("source", "revision", "licenses")  # image_source, image_revision, image_licenses


def image_labels(
    plan: BuildPlan,
    base: BaseImage,
    extra: Sequence[tuple[str, str]],
    environ: Mapping[str, str],
    lock: Lock | None = None,
) -> dict[str, str]:
    """Return all labels of an image, sorted. None of them depends on the machine, the run or the time.

    `org.opencontainers.image.created` is set only from SOURCE_DATE_EPOCH, so that equal inputs give equal images. The
    base is named only if it has an image reference, which a base of Debian packages or an empty base does not have.

    Raises:
        UsageError: SOURCE_DATE_EPOCH is not a number of seconds.
    """
    own = {
        f"{LABEL_PREFIX}.version": __version__,
        f"{LABEL_PREFIX}.base": lock.base.reference if lock and lock.base.kind == "bootstrap" else None,
        f"{_OCI}.base.name": _reference(base),
        f"{_OCI}.base.digest": base.digest,
        f"{LABEL_PREFIX}.lock": digest_of(lock) if lock else None,
        f"{_OCI}.created": _created(environ),
    }
    labels = plan_labels(plan) | dict(plan.labels) | own
    return dict(sorted((key, value) for key, value in (labels | dict(extra)).items() if value is not None))


def labels_asked(settings: Settings, typed: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the labels of the settings `image_*` and of `--label`, which override those of a definition.

    Raises:
        UsageError: a setting or a label is invalid.
    """
    labels = {}
    for name in _SETTINGS:
        value = settings.values[f"image_{name}"]
        if value.text:
            fault = label(f"{_OCI}.{name}", value.text)
            if fault:
                raise UsageError(f"image_{name} ({value.origin}): {value.text!r:.200} {fault}", hint="envkit config")
            labels[f"{_OCI}.{name}"] = _licenses(value) if name == "licenses" else value.text
    return tuple((labels | dict(map(parse_label, typed))).items())


def _licenses(value: Value) -> str:
    """Return an SPDX license expression in canonical form: `Apache-2.0` for `apache-2.0`."""
    try:
        return str(canonicalize_license_expression(str(value.text)))
    except InvalidLicenseExpression as error:
        raise UsageError(
            f"image_licenses ({value.origin}): {value.text!r:.100} is not an SPDX license expression",
            hint="write it as Apache-2.0, 'MIT AND BSD-3-Clause' or LicenseRef-NAME",
        ) from error


def _reference(base: BaseImage) -> str | None:
    """Return the base as an image reference with its registry; a local image without a digest stays as typed."""
    if base.origin not in ("registry", "local"):
        return None
    try:
        reference = parse_reference(base.name)
    except UsageError:  # the ID of a local image
        return None
    if base.digest is None:
        return base.name
    # The digest is a label of its own; only a name without a tag keeps it.
    return str(reference if reference.tag is None else replace(reference, digest=None))


def parse_label(text: str) -> tuple[str, str]:
    """Parse a `--label KEY=VALUE`.

    Raises:
        UsageError: there is no `=`, the key is invalid or reserved, or the value has control characters.
    """
    key, sign, value = text.partition("=")
    fault = label(key, value) if sign else "is not KEY=VALUE"
    if fault:
        raise UsageError(f"--label {text!r:.200} {fault}", hint="--label com.example.team=vision")
    return key, value


def _created(environ: Mapping[str, str]) -> str | None:
    date = source_date(environ)
    return None if date is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", date)
