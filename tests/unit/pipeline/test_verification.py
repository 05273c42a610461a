"""Every caller verifies with the same runner, the same authorities and the same trust in timings."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import envkit
from envkit.cli.main import run
from envkit.engines.model import BaseImage, BuiltImage
from envkit.fleet import build_task
from envkit.ground.errors import UsageError
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.pipeline.machine import name_and_engine, settings_here
from envkit.pipeline.verification import VerifyRequest, subject_of
from envkit.verify.driver import Options
from envkit.verify.selftest import NAME, SCHEMA
from tests.support.plans import shipped_plan
from tests.unit.fleet.samples import task

BUILT = BuiltImage(
    id="sha256:" + "1" * 64, tags=(), engine="embedded", size=None, base=BaseImage(
        reference="debian", digest="sha256:" + "0" * 64, origin="registry", name="debian"
    ), plan_digest="sha256:" + "0" * 64, labels=(), duration_s=1.0, log_file=None,
)  # fmt: skip


def request(**changes: Any) -> VerifyRequest:
    return replace(VerifyRequest(image=image_name("train:1"), plan=shipped_plan(), engine="docker"), **changes)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(("flag", "wanted"), [(None, "podman"), ("docker", "docker")])
def test_the_setting_chooses_the_runner_and_the_flag_wins(
    flag: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVKIT_RUNNER", "podman")
    subject = subject_of(request(), settings_here(flag), Silent())
    assert (subject.runner.name, subject.image.typed) == (wanted, "train:1")


def test_the_engine_that_built_it_decides_where_nothing_is_set() -> None:
    assert subject_of(request(engine="podman"), settings_here(None), Silent()).runner.name == "podman"


def test_what_the_self_test_found_reaches_every_verification(tmp_path: Path) -> None:
    (tmp_path / "state/envkit").mkdir(parents=True)
    known = {"schema": SCHEMA, "machines": {"h:bad": {"trusted": False}, "h:good": {"trusted": True}}}
    (tmp_path / "state/envkit" / NAME).write_text(json.dumps(known))
    options = Options(allow_cpu=True, only=("C05",))
    subject = subject_of(request(options=options), settings_here(None), Silent())
    assert subject.options.distrusted == {"h:bad"}
    assert (subject.options.allow_cpu, subject.options.only) == (True, ("C05",))


def test_the_memory_of_a_run_is_the_flag_then_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(flag: str | None) -> int | None:
        here = settings_here(None, flag)
        return subject_of(request(), here, Silent()).options.memory_mb

    assert memory(None) is None
    monkeypatch.setenv("ENVKIT_RUN_MEMORY", "2GiB")
    assert (memory(None), memory("512MiB")) == (2048, 512)
    for text, words in (("much", "--memory: 'much' is not a size"), ("9kB", "'9kB' is below 1 MiB")):
        with pytest.raises(UsageError, match=re.escape(words)):
            memory(text)


def test_a_bundle_that_cannot_be_read_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", "absent.pem")
    with pytest.raises(UsageError, match=r"ca_bundle: absent\.pem: No such file"):
        subject_of(request(), settings_here(None), Silent())


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        (None, (BUILT.id, "embedded")),
        ("oci:/images/train", ("oci:/images/train", "embedded")),
        ("sha256:" + "2" * 64, ("sha256:" + "2" * 64, "docker")),  # it was loaded into Docker
    ],
)
def test_where_a_built_image_is(place: str | None, wanted: tuple[str, str]) -> None:
    name, engine = name_and_engine(replace(BUILT, place=place))
    assert (name.typed, engine) == wanted


def test_a_build_is_refused_for_a_runner_without_images(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVKIT_RUNNER", "host")
    assert run(["build", "--engine", "embedded"]) == 2
    told = capsys.readouterr()
    assert " ".join(told.err.split()) == (
        "error: runner 'host' (ENVKIT_RUNNER) verifies a Python of this machine, not an image "
        "hint: ENVKIT_RUNNER=auto envkit build, or envkit build --no-verify"
    )
    found = build_task.build(replace(task("train"), verify=True))
    assert (found.status, found.exit_code) == ("failed", 2)
    assert found.error is not None
    assert "verifies a Python of this machine, not an image" in found.error


def test_nobody_else_chooses_a_runner_for_an_image() -> None:
    """Two callers that each chose one drifted apart: one of them ignored the setting and the bundle."""
    folder = Path(envkit.__file__).parent
    found = [path for path in folder.rglob("*.py") if re.search(r"\bchoose_for\b", path.read_text(encoding="utf-8"))]
    assert {str(path.relative_to(folder)) for path in found} == {"run/runners.py", "pipeline/machine.py"}
