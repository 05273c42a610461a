import json

from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance

from envkit.attest.provenance import BUILD_TYPE, provenance
from envkit.image.spec import canonical
from envkit.lock.store import digest_of
from tests.support.attestations import subject
from tests.support.locks import locked_conda, locked_wheels
from tests.support.plans import shipped_plan


def test_it_names_the_plan_and_every_artifact_with_its_hash() -> None:
    plan = shipped_plan()
    lock = locked_conda(plan)
    message = json_format.ParseDict(provenance(subject(), plan, lock, collected="2026-11-20"), Provenance())
    definition = message.build_definition
    assert definition.build_type == BUILD_TYPE
    assert definition.external_parameters["planDigest"] == plan.digest
    assert json.loads(json_format.MessageToJson(definition.internal_parameters))["facts"] == {
        "sha256": plan.facts_digest,
        "collected": "2026-11-20",
    }
    rows = {one.name: one for one in definition.resolved_dependencies}
    assert rows["base"].uri == "docker://docker.io/library/debian:bookworm-slim"
    assert rows["base"].digest["sha256"] == "d" * 64
    assert rows["envkit.lock"].digest["sha256"] == digest_of(lock).removeprefix("sha256:")
    assert {one.name: one.sha256 for one in lock.conda}.items() <= {
        name: one.digest["sha256"] for name, one in rows.items()
    }.items()
    assert message.run_details.builder.version["envkit"] == "0.1.0"


def test_it_is_the_same_wherever_it_is_made() -> None:
    plan = shipped_plan(template="wheels")
    first, second = (provenance(subject(), plan, locked_wheels(plan)) for _ in range(2))
    assert canonical(first) == canonical(second)


def test_an_image_without_a_lock_says_so() -> None:
    tree = provenance(subject(), shipped_plan(), None)
    assert tree["buildDefinition"]["internalParameters"]["locked"] is False
    assert [one["name"] for one in tree["buildDefinition"]["resolvedDependencies"]] == ["facts", "base"]
