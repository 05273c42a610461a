"""Which lock a build takes, and what it says about it."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.assemble.builders import EMBEDDED, builder_of
from envkit.cli import build
from envkit.cli.main import run
from envkit.cli.options import RequestOptions
from envkit.ground import settings
from envkit.ground.errors import IntegrityError, LockError
from envkit.ground.progress import Silent
from envkit.lock import base as bases
from envkit.lock.model import FILE, Lock, LockedBase
from envkit.lock.solve import NO_SOURCES, Options, Sources
from envkit.lock.store import digest_of, to_text, write_lock
from envkit.pipeline import locking, sources
from envkit.pipeline.locking import LockRequest, existing_lock, keep_lock, solve_lock
from envkit.pipeline.sources import SourceContext
from envkit.plan.model import BuildPlan
from tests.support.heard import Heard
from tests.support.locks import locked_conda, locked_wheels
from tests.support.plans import shipped_plan
from tests.unit.lock.samples import from_source, wheel

COMMAND = "envkit lock cpu -o envkit.lock"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in list(os.environ):
        if name.startswith("ENVKIT_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("update", "preferred"),
    [
        ((), {"fastsum": "1.2", "torch": "2.7.1+cu126"}),
        (("FastSum",), {"torch": "2.7.1+cu126"}),
    ],
)
def test_a_new_lock_prefers_the_sources_and_builders_of_the_old_one(
    update: tuple[str, ...], preferred: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(shipped_plan("cu126"), allow_source=("fastsum",))
    builder_plan = shipped_plan("cpu")
    builder = replace(from_source().builders[0], plan=builder_plan.digest)
    wheels = (wheel("torch", "2.7.1+cu126"), wheel("fastsum", "1.2+local"))
    old = replace(from_source(), wheels=wheels, builders=(builder,))
    seen: list[tuple[str, object]] = []

    def build_sources(context: SourceContext, *, preferred: Mapping[str, str], **_: object) -> Sources:
        seen.append(("sources", dict(preferred)))
        context.lock_builder(builder_plan, builder_of(EMBEDDED, Silent()), bases.NONE)
        return NO_SOURCES

    def lock_plan(plan: BuildPlan, _: object, options: Options, **__: object) -> Lock:
        seen.append((plan.digest, options.old))
        return old

    monkeypatch.setattr(sources, "build_sources", build_sources)
    monkeypatch.setattr(locking, "lock_plan", lock_plan)
    request = LockRequest(
        plan=plan, settings=settings.load({}, {}, Path("/nonexistent")), base="none", old=old, update=update
    )
    solve_lock(request, lambda _: bases.nothing(), Silent())
    assert seen == [("sources", preferred), (builder_plan.digest, builder), (plan.digest, old)]


def test_without_a_file_there_is_no_lock_to_take() -> None:
    notes = Heard()
    assert existing_lock(shipped_plan("cpu"), Path(FILE), "auto", COMMAND, notes, named=False) is None
    assert notes.notes == []


def test_the_lock_of_this_folder_is_taken_where_it_fits_and_said() -> None:
    plan, notes = shipped_plan("cpu"), Heard()
    write_lock(Path("envkit.lock"), locked_conda(plan))
    assert existing_lock(plan, Path(FILE), "auto", COMMAND, notes, named=False) == locked_conda(plan)
    assert notes.notes == ["lock: envkit.lock"]


def test_the_lock_of_this_folder_is_left_alone_where_it_does_not_fit() -> None:
    plan, notes = shipped_plan("cpu"), Heard()
    write_lock(Path("envkit.lock"), locked_conda(plan))
    other = replace(plan, conda=(*plan.conda, "scipy"))
    assert existing_lock(other, Path(FILE), "auto", COMMAND, notes, named=False) is None
    (note,) = notes.notes
    assert note.startswith(
        "lock: envkit.lock is stale: conda: nothing in the lock, scipy requested; solving a new one that keeps"
    )
    assert COMMAND in note
    assert existing_lock(plan, Path(FILE), "debian:trixie", COMMAND, notes, named=False) is None


def test_a_named_lock_that_does_not_fit_is_refused_with_every_difference() -> None:
    plan = shipped_plan("cpu")
    write_lock(Path("own.lock"), locked_conda(plan))
    with pytest.raises(LockError, match=r"own\.lock is stale: channels: nothing in the lock, own requested") as caught:
        existing_lock(
            replace(plan, conda=(*plan.conda, "scipy"), channels=("own", *plan.channels)),
            Path("own.lock"),
            "auto",
            COMMAND,
            Heard(),
            named=True,
        )
    assert caught.value.details == ("conda: nothing in the lock, scipy requested",)
    assert caught.value.hint == COMMAND


def test_a_base_that_is_not_the_locks_is_refused() -> None:
    plan = shipped_plan("cpu")
    lock = locked_conda(plan)
    write_lock(Path("own.lock"), lock)
    with pytest.raises(LockError, match=r"--base debian:trixie is not the base of the lock, docker\.io/library/deb"):
        existing_lock(plan, Path("own.lock"), "debian:trixie", COMMAND, Heard(), named=True)
    for same in ("auto", plan.base, f"{plan.base}@{lock.base.digest}"):
        assert existing_lock(plan, Path("own.lock"), same, COMMAND, Heard(), named=True) == lock
    write_lock(Path("own.lock"), replace(lock, base=LockedBase(kind="none", reference="none")))
    assert existing_lock(plan, Path("own.lock"), "debian:trixie", COMMAND, Heard(), named=True) is not None


def test_a_lock_here_that_is_damaged_is_told_and_not_passed_over() -> None:
    plan = shipped_plan("cpu")
    Path("envkit.lock").write_text(to_text(locked_conda(plan)).replace("1" * 64, ""))
    with pytest.raises(IntegrityError, match=r"envkit\.lock: conda\[0\] \(numpy\)\.sha256: missing"):
        existing_lock(plan, Path(FILE), "auto", COMMAND, Heard(), named=False)


@pytest.mark.parametrize(
    ("typed", "code", "message"),
    [
        (["cpu", "--locked", "absent.lock"], 4, "there is no lock at absent.lock"),
        (["cpu", "--locked", "other.lock"], 4, "other.lock is stale: "),
        (["cpu", "--locked", "broken.lock"], 2, "broken.lock is not JSON"),
        (["cpu", "--locked", "other.lock", "--no-lock"], 2, "--locked and --no-lock contradict each other"),
    ],
)
def test_a_build_stops_before_any_engine_is_asked(
    typed: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(Path("other.lock"), locked_wheels(shipped_plan("cu126", template="wheels")))
    Path("broken.lock").write_text("{")
    assert run(["build", "--engine", "docker", "--progress", "quiet", *typed]) == code
    told = capsys.readouterr().err
    assert f"error: {message}" in told
    assert "hint: " in told


def request(**typed: Any) -> RequestOptions:
    names = (
        "torch",
        "cuda",
        "cudnn",
        "python",
        "driver",
        "os",
        "platform",
        "source",
        "template",
        "facts_file",
        "max_size",
        "torchvision",
        "rocm",
    )
    empty: dict[str, Any] = dict.fromkeys(names) | {
        "gpu": (), "with_": (), "cpu": False, "here": False, "supported_only": False, "allow_forward_compat": False,
    }  # fmt: skip
    return RequestOptions(**empty | typed)


def test_the_hint_is_the_command_that_makes_the_lock() -> None:
    typed = request(cuda="12.6", gpu=("A100", "RTX 4090"), template="wheels")
    assert typed.lock_command(None, None, base="auto", engine=None) == (
        "envkit lock --cuda 12.6 --gpu A100 --gpu 'RTX 4090' --template wheels -o envkit.lock"
    )
    typed = request(cpu=True, facts_file="own.yaml")
    assert typed.lock_command("train.yaml", "x.lock", base="debian:12", engine="embedded") == (
        "envkit lock train.yaml --cpu --base debian:12 --engine embedded --facts own.yaml -o x.lock"
    )


def test_a_lock_is_kept_under_its_digest_or_the_build_goes_on(tmp_path: Path) -> None:
    lock, notes = locked_conda(shipped_plan("cpu")), Heard()
    keep_lock(tmp_path / "state", lock, notes)
    kept = tmp_path / "state" / "locks" / f"{digest_of(lock).removeprefix('sha256:')}.json"
    assert kept.read_text() == to_text(lock)
    (tmp_path / "file").write_text("")
    keep_lock(tmp_path / "file", lock, notes)
    assert notes.notes[0] == f"lock: saved as {kept}"
    assert notes.notes[1].startswith("the lock was not saved: ")


def test_the_cost_is_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    build._show_cost(locked_wheels(shipped_plan("cu126", template="wheels")), Silent())
    told = capsys.readouterr()
    assert told.out == ""
    assert "largest: einops 0.9.0, 2.0 kB" in told.err
    assert told.err.splitlines()[-1].split()[:2] == ["all", "6"]


def test_a_locked_context_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    plan = shipped_plan("cpu")
    write_lock(Path("own.lock"), locked_conda(plan))
    assert run(["render", "cpu", "--locked", "own.lock", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert "explicit.txt" in files
    assert "environment.yml" not in files
    assert digest_of(locked_conda(plan)) in files["Dockerfile"]
    assert run(["render", "cpu", "--locked", "own.lock", "--only", "environment"]) == 2
    assert "a locked build has no environment.yml" in capsys.readouterr().err
    assert run(["render", "cu126", "--locked", "own.lock"]) == 4
    assert "hint: envkit lock cu126 -o own.lock" in capsys.readouterr().err
