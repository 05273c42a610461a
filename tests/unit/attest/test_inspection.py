import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from envkit.attest import dsse
from envkit.attest.attached import Attachments, Attestation, Status, check_document
from envkit.attest.inspection import InspectedImage, Inspection, inspection
from envkit.attest.keys import PrivateKey, PublicKey
from envkit.attest.sbom import bill
from envkit.attest.statement import SBOM, VERIFY, statement_bytes
from envkit.attest.text import lines
from envkit.attest.verification import verification_of
from envkit.ground.errors import IntegrityError, NotVerifiedError, VerificationError
from envkit.ground.state import RECORDS
from envkit.verify.verified import recorded_here
from tests.support.attestations import key, record, resealed, subject
from tests.support.plans import facts
from tests.unit.attest.test_sbom import PACKAGES

NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return key(tmp_path_factory.mktemp("keys"))


def signed(kind: str, predicate: dict[str, Any], by: PrivateKey | None, *keys: PrivateKey) -> Attestation:
    """One attestation, as it is check_document where these keys are trusted."""
    payload = statement_bytes(subject(), kind, predicate)
    name = f"sha256:{hash((kind, str(predicate), id(by))) % 16**8:064x}"
    if by is None:
        return check_document(name, dsse.IN_TOTO, payload, subject(), [])
    return check_document(name, dsse.MEDIA_TYPE, dsse.seal(payload, by), subject(), [one.public for one in keys])


def inspected(rows: Iterable[Attestation] | None, others: tuple[tuple[str, str], ...] = ()) -> InspectedImage:
    image = subject()
    return InspectedImage(
        name="registry.example.com/team/train:1",
        digest=image.digest,
        id=image.id,
        config=image.config,
        labels=image.labels,
        layer_sizes=image.layer_sizes,
        attached=None if rows is None else Attachments(attestations=tuple(rows), others=others),
    )


def seen(*rows: Attestation, keys: tuple[PublicKey, ...] = ()) -> Inspection:
    return inspection(inspected(rows), [one.id for one in keys])


def test_a_verification_signed_by_the_key(team: PrivateKey) -> None:
    sbom = bill(subject(), PACKAGES, system=("debian", None))
    found = seen(signed(VERIFY, record(), team, team), signed(SBOM, sbom, team, team), keys=(team.public,))
    assert (found.verdict, found.refused, dict(found.packages or {})) == (
        "proved", (), {"conda": 1, "pypi": 2, "deb": 1},
    )  # fmt: skip
    assert found.coverage.never == ("8.0", "12.0")
    assert found.failure(require_verified=True) is None
    tree = found.to_json()
    assert (tree["schema"], tree["since"], tree["size_bytes"]) == (
        "envkit.inspect/1", "2026-01-01T00:00:00Z", 3_217_000_000,
    )  # fmt: skip
    assert tree["verifications"][0]["gpus"] == [{"name": "NVIDIA H200", "capability": "9.0", "driver": "580.95.05"}]
    assert tree["coverage"]["never"] == {"archs": ["8.0", "12.0"], "drivers": ["minor-compatible"]}


def test_a_foreign_key_and_no_signature_are_refused_and_prove_nothing(team: PrivateKey, stranger: PrivateKey) -> None:
    for row, why in (
        (signed(VERIFY, record(), stranger, team), f"is signed by another key: {stranger.public.id[:16]}"),
        (signed(VERIFY, record(), None), "is not signed"),
    ):
        found = seen(row, keys=(team.public,))
        assert (found.verdict, found.verifications, found.coverage.verified) == ("refused", (), ())
        failure = found.failure(require_verified=False)
        assert isinstance(failure, IntegrityError)
        assert why in failure.details[0]


def test_without_a_key_words_count_and_only_what_is_broken_is_refused(team: PrivateKey) -> None:
    found = seen(signed(VERIFY, record(), team), signed(VERIFY, record(tier="deep"), None))
    assert (found.verdict, len(found.verifications), found.failure(require_verified=False)) == ("proved", 2, None)
    broken = Attestation(digest=f"sha256:{'0' * 64}", status=Status.BROKEN, kind="unknown", why="other bytes")
    failure = seen(broken).failure(require_verified=False)
    assert isinstance(failure, IntegrityError)
    assert failure.details == ("unknown 000000000000 is broken: other bytes",)


def test_other_statements_by_other_keys_are_no_fault(team: PrivateKey, stranger: PrivateKey) -> None:
    note = signed("https://example.com/note/v1", {"a": 1}, stranger, team)
    assert seen(note, signed(VERIFY, record(), team, team), keys=(team.public,)).refused == ()


def test_a_failure_is_not_outweighed_by_another_machine(team: PrivateKey) -> None:
    other = record("FAIL")
    other["env"]["gpu"][0] |= {"name": "Tesla T4", "cc": "7.5"}
    rows = [signed(VERIFY, record(), team, team), signed(VERIFY, resealed(other), team, team)]
    found = seen(*rows, keys=(team.public,))
    assert found.verdict == "failed"
    assert isinstance(found.failure(require_verified=True), VerificationError)
    assert found.failure(require_verified=False) is None


def test_the_last_word_of_a_machine_counts(team: PrivateKey) -> None:
    early, late = record("FAIL"), record("PASS", started="2026-02-01T00:00:00Z")
    found = seen(*(signed(VERIFY, one, team, team) for one in (late, early)), keys=(team.public,))
    assert [one.verification.verdict for one in found.evidence] == ["FAIL", "PASS"]
    assert found.verdict == "proved"
    again = record("FAIL", started="2026-03-01T00:00:00Z")
    rows = [signed(VERIFY, one, team, team) for one in (early, late, again)]
    assert seen(*rows, keys=(team.public,)).verdict == "failed"


def test_nothing_attached(team: PrivateKey) -> None:
    assert seen().failure(require_verified=False) is None
    failure = seen(keys=(team.public,)).failure(require_verified=False)
    assert isinstance(failure, NotVerifiedError)
    assert "no document is attached" in failure.message
    note = signed("https://example.com/note/v1", {"a": 1}, None, team)
    failure = seen(note, keys=(team.public,)).failure(require_verified=False)
    assert isinstance(failure, NotVerifiedError)
    assert failure.message.endswith(": none of 1 attached document is signed by a given key")
    sbom = signed(SBOM, bill(subject(), (), system=("debian", None)), team, team)
    failure = seen(sbom, keys=(team.public,)).failure(require_verified=True)
    assert isinstance(failure, NotVerifiedError)
    assert "was not verified on any machine" in failure.message


def test_the_text_tells_it_to_a_person(team: PrivateKey) -> None:
    rows = [
        signed(VERIFY, record(), team, team),
        signed(SBOM, bill(subject(), PACKAGES, system=("debian", None)), team, team),
    ]
    others = ((f"sha256:{'7' * 64}", "application/vnd.example.signature"),)
    text = "\n".join(lines(inspection(inspected(rows, others), [team.public.id]), facts().gpus, NOW))
    assert text.startswith(
        "registry.example.com/team/train:1\n"
        "  torch 2.7.1, CUDA 12.6, cuDNN 9.5.1, Python 3.12 on docker.io/library/debian:bookworm-slim\n"
        "  needs driver 525.60.13 or newer (560.28.03 or newer for all features) and a GPU of sm_80 sm_90 sm_120\n"
        "  3.22 GB in 2 layers; creation date not recorded (reproducible build); envkit 0.1.0\n"
        "  4 packages: 1 conda, 2 Python, 1 Debian (by the attached SBOM)\n"
    )
    assert (
        "verified since 2026-01-01 on 1 kind of machine\n"
        "  PASS  NVIDIA H200 (sm_90, driver 580.95.05)  suite 1, standard  2026-01-01  signed by the key\n"
    ) in text
    assert "never verified\n  on sm_80  (A100" in text
    assert "  with a driver 525.60.13 to below 560.28.03  (minor-version compatibility)\n" in text
    assert "  other       sha256:777777777777  application/vnd.example.signature, not checked\n" in text


@pytest.mark.requirement("R60")
def test_a_record_that_nobody_signed_does_not_read_as_a_verification(team: PrivateKey) -> None:
    unsigned, by_somebody = signed(VERIFY, record(), None), signed(VERIFY, record(), team)
    for row, words in (
        (
            unsigned,
            "UNSIGNED: records without a signature say PASS since 2026-01-01 on 1 kind of machine; anyone who may",
        ),
        (
            by_somebody,
            (
                "SIGNATURES NOT CHECKED: records say PASS since 2026-01-01 on 1 kind of machine; check them "
                "with --key FILE"
            ),
        ),
    ):
        found = seen(row)
        assert (found.verdict, found.to_json()["verdict_signed"]) == ("proved", False)
        text = "\n".join(lines(found, (), NOW))
        assert words in text
        assert "proved since" not in text
    sure = seen(signed(VERIFY, record(), team, team), keys=(team.public,))
    assert (sure.verdict, sure.to_json()["verdict_signed"]) == ("proved", True)
    assert seen().to_json()["verdict_signed"] is False


def test_the_text_of_a_folder_and_of_broken_and_unchecked_things(team: PrivateKey) -> None:
    text = "\n".join(lines(inspection(inspected(None), []), (), NOW))
    assert "not verified on this machine\n" in text
    assert "GPUs and drivers not verified on this machine\n  on sm_80\n  on sm_90\n  on sm_120\n" in text
    assert (
        "needs driver 525.60.13 or newer (560.28.03 or newer for all features) and a GPU of sm_80 sm_90 sm_120" in text
    )
    broken = Attestation(digest=f"sha256:{'0' * 64}", status=Status.BROKEN, kind="unknown", why="a\x1b[2Jb")
    text = "\n".join(lines(seen(broken, signed(VERIFY, record(), team)), (), NOW))
    assert "REFUSED: attached documents cannot be trusted" in text
    assert "BROKEN: ab" in text
    assert "signatures were not checked; use --key PUB" in text
    assert "not verified: no record is attached" in "\n".join(lines(seen(), (), NOW))


def test_what_this_machine_verified_is_said_before_a_push(team: PrivateKey, tmp_path: Path) -> None:
    """Right after a verification, `inspect` said that it is unknown."""
    (tmp_path / RECORDS).mkdir()
    own = record()
    for number, tree in enumerate((own, {**own, "seal": "sha256:" + "0" * 64}, {**own, "run": {}})):
        (tmp_path / RECORDS / f"{number}.json").write_text(json.dumps(tree))
    here = tuple(map(verification_of, recorded_here({own["subject"]["id"]}, tmp_path)))
    assert [run.verdict for run in here] == [own["summary"]["verdict"]]  # not the one that was changed since
    found = inspection(inspected(None), [], here)
    text = "\n".join(lines(found, (), NOW))
    assert f"on this machine\n  {own['summary']['verdict']}  " in text
    assert f"{own['run']['started'][:16].replace('T', ' ')}  by {own['run']['runner']}\n" in text
    assert "not verified on this machine\n  on sm_90" not in text
    assert (found.verdict, found.to_json()["verified_here"][0]["runner"]) == ("not proved", own["run"]["runner"])
    # With a key, only what it signed counts.
    assert inspection(inspected(()), [team.public.id], here).coverage.verified == ()
    assert not list(recorded_here({"sha256:" + "9" * 64}, tmp_path))


@pytest.mark.parametrize(
    ("created", "told"), [("2026-11-01T10:00:00Z", ", 18 days ago"), ("yesterday", "created yesterday")]
)
def test_the_age(created: str, told: str) -> None:
    old = inspected(())
    image = InspectedImage(
        **{name: getattr(old, name) for name in InspectedImage.__dataclass_fields__} | {"config": {"created": created}}
    )
    assert told in "\n".join(lines(inspection(image, []), (), NOW))


def test_several_gpus_of_one_machine_are_counted(team: PrivateKey) -> None:
    tree = record()
    tree["env"]["gpu"] *= 8
    text = "\n".join(lines(seen(signed(VERIFY, resealed(tree), team)), (), NOW))
    assert "  PASS  8 x NVIDIA H200 (sm_90, driver 580.95.05)  suite 1" in text
