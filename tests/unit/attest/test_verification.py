import math
from typing import Any

import pytest

from envkit.attest.verification import exercised, require_record_of, verification_of
from envkit.ground.errors import IntegrityError
from tests.support.attestations import CONFIG_DIGEST, MANIFEST_DIGEST, record, resealed, subject


def test_a_record_in_short() -> None:
    found = verification_of(record())
    assert (found.verdict, found.started, found.tier, found.suite) == ("PASS", "2026-01-01T00:00:00Z", "standard", "1")
    assert [(one.name, one.capability, one.driver) for one in found.cards] == [("NVIDIA H200", "9.0", "580.95.05")]
    assert found.holds
    assert exercised(found) == found.cards


@pytest.mark.parametrize(("verdict", "gpu"), [("FAIL", "exercised"), ("NOT_VERIFIED", "absent"), ("PASS", "absent")])
def test_a_run_that_did_not_hold_proves_no_gpu(verdict: str, gpu: str) -> None:
    tree = record()
    tree["summary"] |= {"verdict": verdict, "gpu": gpu}
    found = verification_of(tree)
    assert not found.holds
    assert exercised(found) == ()


@pytest.mark.parametrize(
    "named",
    [
        {"id": CONFIG_DIGEST, "image": "train:1"},
        {"id": MANIFEST_DIGEST, "image": "train:1"},
        {"id": None, "image": f"registry.example.com/team/train@{MANIFEST_DIGEST}"},
        {"id": CONFIG_DIGEST, "image": f"registry.example.com/team/train@{MANIFEST_DIGEST}"},
    ],
)
def test_a_record_names_its_image_by_either_digest(named: dict[str, Any]) -> None:
    tree = record()
    tree["subject"] |= named
    require_record_of(resealed(tree), subject(), "r.json")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"id": f"sha256:{'c' * 64}", "image": "train:1"}, f"another image: sha256:{'c' * 64}"),
        ({"id": None, "image": "train:1"}, "another image: train:1, without a digest"),
        ({"id": CONFIG_DIGEST, "image": f"a/b@sha256:{'c' * 64}"}, "another image"),
        ({"id": CONFIG_DIGEST, "image": "host", "plan": f"sha256:{'1' * 64}"}, "judged with the plan"),
    ],
)
def test_a_record_of_another_image(named: dict[str, Any], said: str) -> None:
    tree = record()
    tree["subject"] |= named
    with pytest.raises(IntegrityError, match=f"r.json: .*{said}"):
        require_record_of(resealed(tree), subject(plan=f"sha256:{'2' * 64}"), "r.json")


def test_a_broken_seal() -> None:
    tree = record()
    tree["summary"]["verdict"] = "WARN"
    with pytest.raises(IntegrityError, match=r"r\.json: the record was changed after it was written"):
        require_record_of(tree, subject(), "r.json")
    with pytest.raises(IntegrityError, match="changed after it was written"):
        require_record_of({**record(), "schema": "envkit.verify/2"}, subject(), "r.json")


def test_a_record_without_a_seal_and_without_a_canonical_form_is_refused() -> None:
    tree = record()
    del tree["sha256"]
    tree["run"]["duration_s"] = math.nan
    with pytest.raises(IntegrityError, match="changed after it was written"):
        require_record_of(tree, subject(), "r.json")


def test_a_record_that_is_not_whole() -> None:
    tree = record()
    del tree["judge"]["envkit"]
    with pytest.raises(IntegrityError, match="the record is incomplete: 'envkit'"):
        verification_of(tree)
