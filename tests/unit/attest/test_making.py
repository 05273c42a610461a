from dataclasses import replace
from pathlib import Path

import pytest

from envkit.attest.making import Sources, _lock, _plan
from envkit.ground.errors import IntegrityError, LockError, UsageError
from envkit.image.packages import ScanResult
from envkit.lock.store import digest_of, store_lock, to_text
from envkit.plan.store import store_plan
from tests.support.attestations import subject
from tests.support.locks import locked_conda
from tests.support.plans import shipped_plan

PLAN = shipped_plan()
LOCK = locked_conda(PLAN)
IMAGE = subject(plan=PLAN.digest, lock=digest_of(LOCK))
NOTHING = Sources(records=())


def test_plan_and_lock_come_from_the_image(tmp_path: Path) -> None:
    found = ScanResult(plan=PLAN.canonical(), lock=to_text(LOCK).encode())
    assert _plan(IMAGE, NOTHING, found).digest == PLAN.digest
    assert _lock(IMAGE, NOTHING, found) == LOCK
    assert _plan(IMAGE, replace(NOTHING, state=tmp_path), found).digest == PLAN.digest


def test_or_from_what_this_machine_kept(tmp_path: Path) -> None:
    store_plan(tmp_path, PLAN)
    store_lock(tmp_path, LOCK)
    kept = replace(NOTHING, state=tmp_path)
    assert _plan(IMAGE, kept, ScanResult()).digest == PLAN.digest
    assert _lock(IMAGE, kept, ScanResult()) == LOCK


def test_or_from_flags_which_have_to_be_the_images() -> None:
    assert _plan(IMAGE, replace(NOTHING, plan=PLAN), ScanResult()) is PLAN
    assert _lock(IMAGE, replace(NOTHING, lock=LOCK), ScanResult()) is LOCK
    with pytest.raises(IntegrityError, match=f"but the image was built from {PLAN.digest}"):
        _plan(IMAGE, replace(NOTHING, plan=shipped_plan("cpu")), ScanResult())
    with pytest.raises(IntegrityError, match=f"but the image was built from {digest_of(LOCK)}"):
        _lock(IMAGE, replace(NOTHING, lock=replace(LOCK, python="3.9")), ScanResult())


def test_where_nobody_has_them_the_flag_is_named(tmp_path: Path) -> None:
    kept = replace(NOTHING, state=tmp_path)
    with pytest.raises(UsageError, match="is neither in the image nor on this machine") as caught:
        _plan(IMAGE, kept, ScanResult())
    assert "--plan plan.json" in (caught.value.hint or "")
    with pytest.raises(LockError, match="is neither in the image nor on this machine") as missing:
        _lock(IMAGE, kept, ScanResult())
    assert "--lock envkit.lock" in (missing.value.hint or "")


def test_an_image_of_somebody_else() -> None:
    with pytest.raises(UsageError, match="has no plan label"):
        _plan(subject(), replace(NOTHING, plan=PLAN), ScanResult())
    assert _lock(subject(), NOTHING, ScanResult()) is None
    with pytest.raises(IntegrityError, match="the image has no lock label"):
        _lock(subject(), replace(NOTHING, lock=LOCK), ScanResult())


@pytest.mark.parametrize("label", ["../outside", "../../locks/outside"])
def test_a_label_that_is_no_digest_opens_no_other_file(label: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for path in (state / "outside.json", tmp_path / "locks" / "outside.json"):
        path.parent.mkdir()
        path.write_text(to_text(LOCK))
    (state / "locks").mkdir()
    with pytest.raises(LockError):
        _lock(subject(lock=label), replace(NOTHING, state=state), ScanResult())
