"""How an image was built, as an SLSA provenance predicate (v1): the plan and every artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from envkit.ground.naming import LABEL_PREFIX
from envkit.lock.store import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envkit.attest.subject import Subject
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan

BUILD_TYPE = "urn:envkit:build:1"
"""externalParameters.plan is a build plan (schema envkit.plan/1); internalParameters describe its inputs."""
BUILDER = "urn:envkit:builder"
_BASE_NAME, _BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"


def provenance(subject: Subject, plan: BuildPlan, lock: Lock | None, *, collected: str | None = None) -> dict[str, Any]:
    """Return the predicate. It contains no machine, run or time, so it does not depend on where the image was built.

    Args:
        subject: the image.
        plan: the plan of the image.
        lock: the lock of the image; None if it was built without one.
        collected: date of the facts that the plan was resolved from; None: unknown.
    """
    version = subject.labels.get(f"{LABEL_PREFIX}.version")
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"plan": plan.to_json(), "planDigest": plan.digest},
            "internalParameters": {
                "facts": {"sha256": plan.facts_digest, "collected": collected},
                "platform": plan.resolution.platform,
                "asOf": lock.as_of if lock is not None else None,
                "locked": lock is not None,
            },
            "resolvedDependencies": list(_dependencies(subject.labels, plan, lock)),
        },
        "runDetails": {"builder": {"id": BUILDER, "version": {"envkit": version} if version else {}}},
    }


def _dependencies(labels: Mapping[str, str], plan: BuildPlan, lock: Lock | None) -> Iterator[dict[str, Any]]:
    yield {"name": "facts", "digest": {"sha256": plan.facts_digest}, "mediaType": "application/json"}
    digest = labels.get(_BASE_DIGEST)
    # The label is free text, and an in-toto digest names its algorithm.
    if digest and digest.startswith("sha256:"):
        yield {
            "name": "base",
            "uri": f"docker://{labels.get(_BASE_NAME, plan.base)}",
            "digest": {"sha256": digest.removeprefix("sha256:")},
        }
    if lock is None:
        return
    lock_digest = digest_of(lock).removeprefix("sha256:")
    yield {"name": "envkit.lock", "digest": {"sha256": lock_digest}, "mediaType": "application/json"}
    for deb in lock.base.packages:
        if deb.sha256:
            name = f"{quote(deb.name, safe='')}@{quote(deb.version, safe='')}?arch={deb.arch}"
            yield {"name": deb.name, "uri": f"pkg:deb/debian/{name}", "digest": {"sha256": deb.sha256}}
    for conda in lock.conda:
        yield {"name": conda.name, "uri": conda.url, "digest": {"sha256": conda.sha256}}
    for wheel in lock.wheels:
        uri = {"uri": wheel.download} if wheel.download else {}
        yield {"name": wheel.name, **uri, "digest": {"sha256": wheel.sha256}}
    for source in lock.sources:
        commit = {"gitCommit": source.commit} if source.commit else {}
        yield {"name": f"{source.name} (source)", "uri": source.url, "digest": {"sha256": source.sha256, **commit}}
