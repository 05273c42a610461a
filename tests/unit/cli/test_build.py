"""What `envkit build` refuses before it asks any engine, and what its report holds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.cli import build, build_flags
from envkit.cli.main import run
from envkit.engines.model import BaseImage, BuiltImage
from envkit.ground.paths import state_dir
from envkit.pipeline.building import BuildResult
from envkit.verify.record import Record
from tests.support.flags import build_flags as flags_of
from tests.support.plans import shipped_plan
from tests.support.records import cpu_record

DIGEST = "sha256:" + "0" * 64
BUILT = BuiltImage(
    id="sha256:" + "1" * 64,
    tags=("train:1",),
    engine="docker",
    size=1_500_000_000,
    base=BaseImage(reference=f"debian@{DIGEST}", digest=DIGEST, origin="registry", name="docker.io/library/debian:12"),
    plan_digest=DIGEST,
    labels=(("a", "b"),),
    duration_s=1.23456,
    log_file=Path("/var/log/x.log"),
)


PLAN = shipped_plan("cpu")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--engine", "kaniko"], "--engine 'kaniko' is not one of auto, docker, buildkit, podman, embedded"),
        (["--output", "registry:train"], "--output 'registry:train' has no registry"),
        (["--engine", "docker", "--output", "oci:x"], "--output needs the embedded engine, not docker"),
        (["--tag", "Train"], "--tag 'Train' is not an image's name"),
        (["--label", "team"], "--label 'team' is not KEY=VALUE"),
        (["--label", "envkit.plan=x"], "--label 'envkit.plan=x' has a reserved prefix"),
        (["--secret", "token"], "--secret must be ID=FILE"),
        (["--secret", "token=absent"], "--secret token: absent is not a file"),
        (["--secret", "a,b=absent"], "--secret must be ID=FILE"),
        (["--plan", "plan.json"], "plan.json: no such file or directory"),
        (["default", "--plan", "plan.json"], "--plan cannot be combined with a definition or its flags"),
        (["--cuda", "12.6", "--plan", "plan.json"], "--plan cannot be combined with a definition or its flags"),
    ],
)
def test_what_is_wrong_is_told_before_any_engine_is_asked(
    typed: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", *typed]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {message}"), "before the plan is shown, too"
    assert "hint: " in told.err
    assert told.out == ""


def test_nothing_that_fits_ends_with_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "--torch", "1.12.1", "--cuda", "12.1"]) == 3
    assert "error: " in capsys.readouterr().err


@pytest.mark.requirement("R59")
@pytest.mark.parametrize("flag", ["--json", "-o"])
@pytest.mark.parametrize(
    ("typed", "code", "message"),
    [
        (["--torch", "1.12.1", "--cuda", "12.1"], 3, "no build matches"),
        (["--plan", "plan.json"], 2, "plan.json: no such file or directory"),
        (["--offline", "--no-cache"], 2, "--offline and --no-cache contradict each other"),
        (["--locked", "absent.lock", "--engine", "embedded"], 4, "absent.lock"),
    ],
)
def test_a_build_that_fails_writes_its_document(
    *, typed: list[str], code: int, message: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["--json"] if flag == "--json" else ["-o", "built.json"]
    assert run(["build", *typed, *wanted]) == code
    told = capsys.readouterr()
    tree = json.loads(told.out if flag == "--json" else (tmp_path / "built.json").read_text())
    assert (tree["schema"], tree["failure"]["exit_code"]) == ("envkit.build/1", code)
    assert message in tree["failure"]["message"]
    assert f"error: {tree['failure']['message']}" in told.err
    assert tree["failure"]["hint"]


def test_the_resolved_row_comes_first_with_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    plan = shipped_plan("cu126")
    build._show(plan)
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert lines[0] == f"{plan.title} (plan {plan.digest[:19]})"
    assert any(line.split()[:2] == ["cuda", "12.6"] and plan.resolution.reasons["cuda"] in line for line in lines)


def test_a_secret_is_a_name_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("x")
    assert build_flags._secret("my-netrc=netrc") == ("my-netrc", tmp_path / "netrc")


def test_the_report_is_data() -> None:
    plan = shipped_plan("cpu")
    tree = json.loads(json.dumps(build.document(BuildResult(image=BUILT, plan=PLAN, record=None))))
    assert tree["schema"] == "envkit.build/1"
    assert (tree["image"], tree["tags"], tree["duration_s"]) == (BUILT.id, ["train:1"], 1.235)
    assert tree["base"] == {
        "name": "docker.io/library/debian:12",
        "reference": f"debian@{DIGEST}",
        "digest": DIGEST,
        "origin": "registry",
    }
    assert tree["resolution"] == json.loads(json.dumps(plan.resolution.to_json()))
    assert tree["verification"] is None
    assert tree["lock"] is None
    assert build.document(BuildResult(image=replace(BUILT, lock=DIGEST), plan=PLAN, record=None))["lock"] == DIGEST


def test_without_verification_the_id_is_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = BuildResult(image=BUILT, plan=PLAN, record=None)
    assert build._publish(result, None, ()) == 0
    assert capsys.readouterr().out == f"{BUILT.id}\n"
    assert build._publish(result, "-", ()) == 0
    assert json.loads(capsys.readouterr().out)["image"] == BUILT.id
    assert build._publish(result, str(tmp_path / "built.json"), ()) == 0
    assert json.loads((tmp_path / "built.json").read_text())["image"] == BUILT.id


def test_a_record_is_kept_whatever_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record(cpu_record())
    for number, file in enumerate((None, "-", str(tmp_path / "built.json"))):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / str(number)))
        result = BuildResult(image=BUILT, plan=PLAN, record=record)
        assert build._publish(result, file, ()) == record.exit_code
        assert [path.read_bytes() for path in (state_dir() / "records").iterdir()] == [record.to_bytes()]
    assert capsys.readouterr().out


def test_a_network_that_is_none_is_refused_before_anything_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "--network", "bridge"]) == 2
    assert capsys.readouterr().err.startswith("error: --network 'bridge' is not one of auto, default, host, none\n")


def test_a_build_takes_the_labels_of_the_settings_and_those_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVKIT_IMAGE_REVISION", "1f2e")
    flags = flags_of("--label", "com.example.team=x")
    assert dict(flags.options(flags.settings()).labels) == {
        "org.opencontainers.image.revision": "1f2e",
        "com.example.team": "x",
    }
