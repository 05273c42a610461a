"""An image, keys and records for tests of attestations. No registry has any of them."""

import copy
import json
from pathlib import Path
from typing import Any

from envkit.attest.keys import PrivateKey, new_pair, read_private
from envkit.attest.subject import PLAN_LABEL, Subject
from envkit.image import spec
from envkit.image.name import parse_reference
from envkit.verify.record import seal
from tests.support.records import gpu_record

MANIFEST_DIGEST, CONFIG_DIGEST = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
LABELS = {
    "envkit.torch": "2.7.1",
    "envkit.cuda": "12.6",
    "envkit.cudnn": "9.5.1",
    "envkit.python": "3.12",
    "envkit.version": "0.1.0",
    "envkit.gpu.archs": "8.0 9.0 12.0",
    "envkit.driver.native": "560.28.03",
    "envkit.driver.minimum": "525.60.13",
    "org.opencontainers.image.base.name": "docker.io/library/debian:bookworm-slim",
    "org.opencontainers.image.base.digest": f"sha256:{'d' * 64}",
}


def subject(created: str = spec.CREATED, **labels: str) -> Subject:
    """Return an image in a registry. The keyword arguments are labels below envkit's prefix."""
    reference = parse_reference(f"registry.example.com/team/train@{MANIFEST_DIGEST}")
    own = LABELS | {f"envkit.{name}": text for name, text in labels.items()}
    return Subject(
        reference=reference,
        descriptor=spec.Descriptor(media_type=spec.MANIFEST, digest=MANIFEST_DIGEST, size=700),
        id=CONFIG_DIGEST,
        config={"created": created, "config": {"Labels": own}},
        layer_sizes=(3_000_000_000, 217_000_000),
    )


def record(verdict: str = "PASS", *, of: Subject | None = None, **changed: Any) -> dict[str, Any]:
    """Return a sealed record of a run of `of` on one H200; `changed` replaces members of `run`."""
    image = of or subject()
    tree = copy.deepcopy(gpu_record())
    tree["subject"] |= {"image": str(image.reference), "id": image.id, "plan": image.labels.get(PLAN_LABEL)}
    tree["summary"] |= {"verdict": verdict, "gpu": "exercised"}
    tree["run"] |= changed
    return resealed(tree)


def resealed(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the record with a valid seal."""
    sealed: dict[str, Any] = json.loads(json.dumps({**tree, "sha256": seal(tree)}))
    return sealed


def key(folder: Path, name: str = "team.key") -> PrivateKey:
    """Return a new private key."""
    new_pair(folder / name, None)
    return read_private(folder / name, None)
