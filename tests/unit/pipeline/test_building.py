"""Which engine builds, and what is refused before anything begins."""

from pathlib import Path

import pytest

from envkit.engines.model import BuildOptions
from envkit.ground import settings
from envkit.ground.errors import LockError, UsageError
from envkit.pipeline.building import BuildRequest, engine_name, require_lock
from tests.support.locks import lock_for
from tests.support.plans import plan_from, shipped_plan


@pytest.mark.parametrize(
    ("named", "options", "engine"),
    [
        ("auto", BuildOptions(), "auto"),
        ("docker", BuildOptions(), "docker"),
        ("auto", BuildOptions(output="oci:out"), "embedded"),
        ("auto", BuildOptions(offline=True), "embedded"),
        ("embedded", BuildOptions(offline=True), "embedded"),
    ],
)
def test_a_flag_may_choose_the_engine(tmp_path: Path, *, named: str, options: BuildOptions, engine: str) -> None:
    assert engine_name(settings.load({"engine": named}, {}, tmp_path), options) == engine


@pytest.mark.parametrize(
    ("options", "flag"), [(BuildOptions(output="oci:out"), "--output"), (BuildOptions(offline=True), "--offline")]
)
def test_other_engines_lack_it(tmp_path: Path, options: BuildOptions, flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag} needs the embedded engine, not podman") as caught:
        engine_name(settings.load({"engine": "podman"}, {}, tmp_path), options)
    assert caught.value.hint == "--engine embedded"


def test_packages_from_source_need_a_lock() -> None:
    plan = plan_from("allow_source: [fastsum]\n")
    request = BuildRequest(
        plan=plan,
        options=BuildOptions(),
        settings=settings.load({}, {}, Path("/nonexistent")),
        engine="docker",
        no_lock=True,
    )
    with pytest.raises(UsageError, match="packages that are built from source need a lock: fastsum"):
        require_lock(None, request)


def test_nothing_is_solved_offline() -> None:
    def request(*, offline: bool) -> BuildRequest:
        return BuildRequest(
            plan=shipped_plan("cu126"),
            options=BuildOptions(offline=offline),
            settings=settings.Settings({}),
            engine="auto",
            lock_command="envkit lock train.yaml",
        )

    require_lock(None, request(offline=False))
    require_lock(lock_for(shipped_plan("cu126")), request(offline=True))
    with pytest.raises(LockError) as caught:
        require_lock(None, request(offline=True))
    assert caught.value.message == "--offline needs a lock that fits this request"
    assert caught.value.hint == "envkit lock train.yaml"
