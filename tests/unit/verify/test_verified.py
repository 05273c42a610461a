"""Which record lets an image be tagged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import IntegrityError, NotVerifiedError, UsageError
from envkit.verify.record import seal
from envkit.verify.verified import verified_by_file, verified_by_newest
from tests.support.records import cpu_record, gpu_record, passed_record

IMAGE, OTHER = f"sha256:{'c' * 64}", f"sha256:{'d' * 64}"
NONE = "   # or --record FILE, or --unverified to tag it anyway"


def record(place: Path, name: str, code: int, *, verdict: str = "PASS", ident: str | None = IMAGE) -> Path:
    """A sealed record in the state folder; one with the code 0 is true, the others say what they are told to."""
    tree = cpu_record() if code else passed_record(warn=verdict == "WARN")
    tree["subject"]["id"] = ident
    tree["summary"] |= {"verdict": verdict, "exit_code": code}
    tree["sha256"] = seal(tree)
    path = place / "records" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(tree))
    return path


def refused(place: Path) -> NotVerifiedError:
    with pytest.raises(NotVerifiedError) as caught:
        verified_by_newest("train:1", (IMAGE,), place)
    assert caught.value.exit_code == 5
    return caught.value


def change(path: Path, **fields: Any) -> None:
    tree = json.loads(path.read_bytes())
    path.write_text(json.dumps(tree | fields))


def test_the_newest_record_of_this_image_proves_it(tmp_path: Path) -> None:
    record(tmp_path, "20260101T000000Z-1.json", 0)
    newest = record(tmp_path, "20260102T000000Z-1.json", 0, verdict="WARN")
    record(tmp_path, "20260103T000000Z-1.json", 6, verdict="FAIL", ident=OTHER)
    record(tmp_path, "20260104T000000Z-1.json", 6, verdict="FAIL", ident=None)
    found = verified_by_newest("train:1", (f"sha256:{'0' * 64}", IMAGE), tmp_path)
    assert (found.path, found.verdict, found.started) == (newest, "WARN", "2026-01-01T00:00:00Z")
    assert found.machine is not None
    assert found.machine.startswith("h:")


def test_no_record_at_all(tmp_path: Path) -> None:
    record(tmp_path, "20260101T000000Z-1.json", 0, ident=OTHER)
    (tmp_path / "records" / "20260102T000000Z-1.json").write_text("{")
    (tmp_path / "records" / "20260103T000000Z-1.json").write_text("[]")
    error = refused(tmp_path)
    assert error.message == f"train:1 is not verified: there is no record of {IMAGE[:19]} in {tmp_path}/records"
    assert error.hint == f"envkit verify train:1{NONE}"


def test_a_run_without_a_verdict_leaves_the_record_before_it(tmp_path: Path) -> None:
    first = record(tmp_path, "20260101T000000Z-1.json", 0)
    record(tmp_path, "20260102T000000Z-1.json", 5, verdict="NOT_VERIFIED")
    assert verified_by_newest("train:1", (IMAGE,), tmp_path).path == first


def test_a_failure_ends_what_was_verified_before_it(tmp_path: Path) -> None:
    record(tmp_path, "20260101T000000Z-1.json", 0)
    failed = record(tmp_path, "20260102T000000Z-1.json", 6, verdict="FAIL")
    record(tmp_path, "20260103T000000Z-1.json", 9, verdict="ERROR")
    error = refused(tmp_path)
    assert error.message.startswith("train:1 is not verified: ERROR, exit code 9 in ")
    failed.unlink()
    assert verified_by_newest("train:1", (IMAGE,), tmp_path).verdict == "PASS"


@pytest.mark.parametrize(
    ("code", "verdict", "hint"),
    [
        (
            5,
            "NOT_VERIFIED",
            "envkit verify train:1 --allow-cpu   # if only a GPU was missing; --unverified tags it anyway",
        ),
        (6, "FAIL", "envkit verify train:1   # --unverified tags it anyway"),
    ],
)
def test_a_record_that_proves_nothing(tmp_path: Path, *, code: int, verdict: str, hint: str) -> None:
    path = record(tmp_path, "20260101T000000Z-1.json", code, verdict=verdict)
    error = refused(tmp_path)
    assert error.message == f"train:1 is not verified: {verdict}, exit code {code} in {path}"
    assert error.hint == hint


def test_a_record_that_was_changed_verifies_nothing(tmp_path: Path) -> None:
    path = record(tmp_path, "20260101T000000Z-1.json", 6, verdict="FAIL")
    tree = json.loads(path.read_bytes())
    change(path, summary=tree["summary"] | {"verdict": "PASS", "exit_code": 0})
    error = refused(tmp_path)
    assert error.details[0].startswith(f"{path}: the record was changed after it was written")
    with pytest.raises(IntegrityError, match="the record was changed after it was written"):
        verified_by_file("train:1", (IMAGE,), path)


def test_a_record_that_is_named(tmp_path: Path) -> None:
    path = record(tmp_path, "mine.json", 0)
    assert verified_by_file("train:1", (OTHER, IMAGE), path).path == path
    with pytest.raises(NotVerifiedError) as caught:
        verified_by_file("train:1", (OTHER,), path)
    assert caught.value.message == f"{path} is a record of another image: {IMAGE[:19]}, not {OTHER[:19]}"
    assert caught.value.hint == "envkit verify train:1"
    with pytest.raises(NotVerifiedError, match="not verified: FAIL, exit code 6"):
        verified_by_file("train:1", (IMAGE,), record(tmp_path, "mine.json", 6, verdict="FAIL"))
    with pytest.raises(UsageError, match="no such file"):
        verified_by_file("train:1", (IMAGE,), tmp_path / "absent.json")


def rules(tree: dict[str, Any]) -> None:
    tree["judge"]["rules_sha256"] = "0" * 64


@pytest.mark.requirement("R54")
@pytest.mark.parametrize("also", [lambda _: None, rules], ids=["the verdict", "the verdict and the rules' digest"])
def test_a_record_that_contradicts_itself_verifies_nothing(
    tmp_path: Path, also: Callable[[dict[str, Any]], None]
) -> None:
    """Its seal is a plain hash: an editor of the verdict can compute it again."""
    tree = gpu_record()
    assert tree["summary"]["verdict"] == "FAIL"
    tree["subject"]["id"] = IMAGE
    tree["summary"] |= {"verdict": "PASS", "exit_code": 0}
    also(tree)
    tree["sha256"] = seal(tree)
    path = tmp_path / "records" / "20260101T000000Z-1.json"
    path.parent.mkdir()
    path.write_text(json.dumps(tree))
    with pytest.raises(IntegrityError) as caught:
        verified_by_file("train:1", (IMAGE,), path)
    assert caught.value.exit_code == 10
    assert str(path) in caught.value.message
    assert any("PASS" in line and "FAIL" in line for line in (caught.value.message, *caught.value.details))
    assert any(str(path) in line for line in refused(tmp_path).details)
