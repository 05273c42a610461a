"""Whom a run through proot is on this machine."""

import os
from pathlib import Path

import pytest

from envkit.ground.errors import EnvironmentProblem
from envkit.image.name import image_name
from envkit.run.proot import ProotRunner
from envkit.run.rootless import owners, proot
from envkit.run.rootless.layered_tree import LayeredTree
from envkit.run.rootless.owners import MOST_ID, host_id
from envkit.run.rootless.sandbox import Inside
from envkit.run.rootless.user import User
from envkit.run.session import Mount, Session

SHIFT = 2**31
ROOT, OTHER = (User(uid=one, gid=one, home="/") for one in (0, 1000))


def outside(monkeypatch: pytest.MonkeyPatch, user: User, *, euid: int = 0, guarded: bool, shift: int) -> int | None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setattr(proot, "host_shift", lambda: shift)
    found = proot.outside_of(user, guarded=guarded)
    assert found.uid == found.gid
    return found.uid


@pytest.mark.parametrize(("user", "shift", "uid"), [
    (ROOT, SHIFT, SHIFT), (OTHER, SHIFT, SHIFT + 1000), (ROOT, 0, 65534), (OTHER, 0, 1000),
])  # fmt: skip
def test_root_becomes_the_shifted_user_of_the_image(
    monkeypatch: pytest.MonkeyPatch, user: User, shift: int, uid: int
) -> None:
    assert outside(monkeypatch, user, guarded=True, shift=shift) == uid


@pytest.mark.parametrize("user", [ROOT, OTHER])
def test_a_run_that_landlock_does_not_guard_owns_no_file_of_the_cached_layers(
    monkeypatch: pytest.MonkeyPatch, user: User
) -> None:
    uid = outside(monkeypatch, user, guarded=False, shift=SHIFT)
    assert uid is not None
    assert 0 < uid < host_id(0, SHIFT) < host_id(MOST_ID, SHIFT)  # the IDs of what layers hold
    assert outside(monkeypatch, user, guarded=False, shift=0) == 65534


@pytest.mark.parametrize("shift", [0, SHIFT])
@pytest.mark.parametrize("guarded", [True, False])
def test_in_an_image_of_the_callers_own_a_session_of_root_stays_root(
    monkeypatch: pytest.MonkeyPatch, shift: int, guarded: bool
) -> None:
    """Only so does what it writes into a mounted folder belong to the caller."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(proot, "host_shift", lambda: shift)
    for user in (ROOT, OTHER):
        found = proot.outside_of(user, guarded=guarded, known=True)
        assert (found.uid, found.gid) == (user.uid, user.gid)


def test_a_folder_that_the_session_cannot_enter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root has no capabilities in a session: proot said `Permission denied` and no word more."""
    monkeypatch.setattr(proot, "outside_of", lambda *_, **__: proot.Outside(uid=4711, gid=4711))
    closed, below = tmp_path / "closed", tmp_path / "closed" / "data"
    below.mkdir(parents=True)
    for above in below.parents[:-1]:
        if above.owner() == Path().owner():
            above.chmod(above.stat().st_mode | 0o001)
    closed.chmod(0o700)
    mounts = (Mount(source=below, target="/data", read_only=False),)
    run = Inside(files={}, user=ROOT, env={}, workdir="", gpus=None, mounts=mounts)
    with pytest.raises(EnvironmentProblem, match=f"user 4711 cannot enter {closed}, which belongs to user") as caught:
        proot.prepare(tmp_path, LayeredTree(layers=()), run, proot.Own(shm=tmp_path, known=True))
    assert str(caught.value.hint).endswith(f"chmod o+x {closed}")
    with pytest.raises(EnvironmentProblem) as caught:
        proot.prepare(tmp_path, LayeredTree(layers=()), run, proot.Own(shm=tmp_path, known=False))
    assert str(caught.value.hint).startswith("run envkit as a user other than root")


@pytest.mark.parametrize("landlock", [0, 2, 3])
def test_data_of_a_session_are_read_only_or_said_not_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landlock: int
) -> None:
    monkeypatch.setattr(proot, "landlock_version", lambda: landlock)
    monkeypatch.setattr(proot, "_OWN_FILES", str(tmp_path / "tmp"))
    for name in ("work/data", "data", "tmp/data"):
        (tmp_path / name).mkdir(parents=True)
    mounts = [Mount(source=tmp_path / "work", target="/w", read_only=False)]
    mounts += [
        Mount(source=tmp_path / name, target=f"/{name}", read_only=True) for name in ("work/data", "data", "tmp/data")
    ]
    session = Session(image=image_name("a"), argv=("true",), mounts=tuple(mounts), known=True)
    found = {one.target for one in ProotRunner().unprotected(session)}
    # Below a folder that is mounted for writing, it can be written there.
    assert found == {"/work/data", "/tmp/data"} | (set() if landlock == 3 else {"/data"})


@pytest.mark.parametrize(
    ("euid", "shift", "landlock", "known", "copies"),
    [
        (1000, 0, 3, True, False), (1000, 0, 0, True, True), (0, SHIFT, 0, True, False), (0, 0, 0, True, True),
        (0, SHIFT, 3, False, False),
    ],
)  # fmt: skip
def test_what_a_session_lacks_is_said_only_where_it_is_true(
    *, euid: int, shift: int, landlock: int, known: bool, copies: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setattr(owners, "host_shift", lambda: shift)
    monkeypatch.setattr(proot, "landlock_version", lambda: landlock)
    monkeypatch.setattr(ProotRunner, "_base", lambda _: tmp_path)
    monkeypatch.setattr(proot, "_OWN_FILES", "/nowhere")
    said = ProotRunner().shortfalls(Session(image=image_name("a"), argv=("true",), known=known, shm_mb=1 << 40))
    assert said[0] == "weak isolation: network and processes of this machine"
    assert ("its root is a copy that it can change" in said) is copies
    assert ("files of another user, because the image was not built here" in said) is (not known)
    assert said[-1] == "shared memory on disk"  # no machine has 1 EiB


def test_shared_memory_is_the_machines_where_there_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proot, "_SHARED_MEMORY", str(tmp_path))
    assert proot.shared_memory(1) == tmp_path
    assert proot.shared_memory(1 << 40) is None
    monkeypatch.setattr(proot, "_SHARED_MEMORY", str(tmp_path / "missing"))
    assert proot.shared_memory(1) is None


def test_another_user_than_root_stays_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outside(monkeypatch, ROOT, euid=1000, guarded=False, shift=0) is None


def test_a_folder_that_proot_cannot_be_told_is_refused(tmp_path: Path) -> None:
    """Its /tmp was then the image's own, which cannot be written."""
    folder = tmp_path / "a:b"
    folder.mkdir()
    with pytest.raises(EnvironmentProblem, match="proot cannot use a path with a colon"):
        proot.prepare(folder, LayeredTree(layers=()), Inside(files={}, user=ROOT, env={}, workdir="", gpus=None))


@pytest.mark.parametrize(
    ("landlock", "folder", "why"),
    [
        (0, "/srv", "this kernel has no Landlock for it"),
        (2, "/srv", "this kernel has no Landlock for it"),  # a run can empty files
        (3, "/tmp/data", "every run may write below /tmp"),
        (3, "/dev/shm", "every run may write below /dev/shm"),
    ],
)
def test_data_are_refused_where_nothing_keeps_a_run_from_writing_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landlock: int, folder: str, why: str
) -> None:
    monkeypatch.setattr(proot, "landlock_version", lambda: landlock)
    run = Inside(files={}, user=ROOT, env={}, workdir="", gpus=None, data=Path(folder))
    with pytest.raises(EnvironmentProblem, match=f"proot cannot make {folder} read-only: {why}") as caught:
        proot.prepare(tmp_path, LayeredTree(layers=()), run)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("use another runner (--runner bubblewrap, docker or podman)")


def test_landlock_guards_what_no_run_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/tmp and /dev/shm are every run's; before its third version, Landlock lets a run empty any file it owns."""
    monkeypatch.setattr(proot, "_OF_ALL_RUNS", (str(tmp_path / "shared"),))
    (tmp_path / "shared/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("shared/deep")
    for version, name, guarded in (
        (3, "own", True), (2, "own", False), (0, "own", False), (7, "shared", False), (7, "link", False),
        (7, "shared/deep/new", False),
    ):  # fmt: skip
        monkeypatch.setattr(proot, "landlock_version", lambda found=version: found)
        assert proot.is_guarded(tmp_path / name) is guarded, (version, name)
