"""What becomes of the tags of a build: they are set after verification, and a tag that is not says why."""

from dataclasses import replace
from pathlib import Path

import pytest

from envkit.cli.push import report_tags
from envkit.engines.model import BuildOptions
from envkit.ground.errors import EngineError, UsageError
from envkit.ground.settings import Settings, load
from envkit.image.name import image_name
from envkit.pipeline.pushing import PushAfterBuild, Tagging, tag_explained, tag_pushed
from envkit.verify.record import Record
from tests.support.flags import build_flags
from tests.support.heard import Heard
from tests.support.plans import shipped_plan
from tests.unit.cli.test_build import BUILT, DIGEST

NAME = "registry.example.com/team/train:1"
PUSHED = replace(BUILT, engine="embedded", digest=DIGEST, pushed=f"registry.example.com/team/train@{DIGEST}")
OPTIONS = BuildOptions(output=f"registry:{NAME}")
UNVERIFIED = "to tag it without verification, run again with --no-verify"
THERE = f"{NAME} is unchanged; the image is in the registry as {PUSHED.pushed}"


def record(code: int, verdict: str) -> Record:
    return Record({"summary": {"verdict": verdict, "exit_code": code}})


def test_what_went_nowhere_has_no_tag() -> None:
    assert tag_pushed(BUILT, BuildOptions(), None, Heard()) is None


@pytest.mark.parametrize(
    ("code", "verdict", "hint"),
    [
        (
            5,
            "INCONCLUSIVE",
            f"if only a GPU is missing, run again with --allow-cpu; {UNVERIFIED}",
        ),
        (6, "FAIL", f"envkit verify shows why; {UNVERIFIED}"),
    ],
)
def test_what_is_not_verified_is_not_tagged(
    capsys: pytest.CaptureFixture[str], *, code: int, verdict: str, hint: str
) -> None:
    heard = Heard()
    made = tag_pushed(PUSHED, OPTIONS, record(code, verdict), heard)
    assert made is not None
    why = f"the image is not verified: {verdict}, exit code {code}"
    assert made.to_json() == {"reference": PUSHED.pushed, "tag": NAME, "tagged": False, "why": why}
    assert not heard.notes
    report_tags([made])
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"not tagged: {why}\n  {THERE}\nhint: {hint}\n"


def test_a_tag_that_moved_needs_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    made = Tagging(image=str(PUSHED.pushed), tag=NAME)
    report_tags([made])
    assert made.to_json()["tagged"] is True
    assert capsys.readouterr().err == ""


def test_a_registry_that_refuses_the_tag_ends_the_command_with_its_error() -> None:
    error = EngineError("it refuses", hint="docker login", details=("more",))
    with pytest.raises(EngineError) as caught:
        report_tags([Tagging(image=str(PUSHED.pushed), tag=NAME, why_not="it refuses", error=error)])
    assert caught.value.details == ("more", THERE)


def test_an_error_that_ends_the_verification_says_what_it_means_for_the_tag() -> None:
    for built, details in ((PUSHED, (THERE,)), (BUILT, ())):
        with pytest.raises(EngineError) as caught, tag_explained(built, OPTIONS):
            raise EngineError("the runner is gone")
        assert caught.value.details == details


ONE, TWO = "registry.example.com/team/train:1", "registry.example.com/team/train:latest"
FIRST = Tagging(image="registry.example.com/team/train@sha256:1", tag=ONE)


def asked(*tags: str, more: tuple[str, ...] = (), on: bool = True) -> PushAfterBuild:
    words = [word for tag in tags for word in ("-t", tag)]
    return build_flags(*words, *(["--push"] if on else []), *more).push_after(Settings({}))


def test_without_the_flag_nothing_goes_anywhere() -> None:
    push, options = asked("train:1", on=False), BuildOptions(output="oci:out")
    assert push.begin("docker", options, shipped_plan("cu126"), Heard()) is options
    assert push.end(image_name("sha256:1"), "docker", None, None, Heard()) == ()
    assert push.end(image_name("sha256:1"), "embedded", None, FIRST, Heard()) == (FIRST,)


@pytest.mark.parametrize(
    ("tags", "output", "message", "hint"),
    [
        ((), None, "--push needs a tag to push to", "envkit build -t registry.example.com/team/train:1.0 --push"),
        (("train:1",), None, "-t 'train:1' does not name a registry", "write HOST/NAME:TAG: registry.example.com/"),
        ((ONE, "team/train:1"), None, "-t 'team/train:1' does not name a registry", "write HOST/NAME:TAG: "),
        ((ONE,), "oci:out", "--push and --output contradict each other", "give one of them"),
    ],
)
def test_what_cannot_be_pushed_to(*, tags: tuple[str, ...], output: str | None, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked(*tags, more=("--output", output) if output else ())
    assert caught.value.message.startswith(message)
    assert (caught.value.hint or "").startswith(hint)


def test_the_embedded_engine_pushes_to_the_first_name_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    push = replace(asked(ONE, TWO, more=("--replace-tag", "--mount-from", "team/base")), settings=settings())
    options = push.begin("embedded", BuildOptions(tags=(ONE, TWO)), shipped_plan("cu126"), Heard())
    assert (options.output, options.replace_tag, options.mount_from) == (f"registry:{ONE}", True, ("team/base",))


def settings() -> Settings:
    return load({}, {}, Path("/nonexistent"))


def test_what_is_not_verified_stays_here() -> None:
    found = asked(ONE, TWO).end(image_name("sha256:1"), "docker", record(6, "FAIL"), None, Heard())
    assert [(one.tag, one.image, one.why_not) for one in found] == [
        (name, None, "the image is not verified: FAIL, exit code 6") for name in (ONE, TWO)
    ]


def test_what_kept_the_first_name_keeps_the_others() -> None:
    kept = replace(FIRST, why_not="it is taken", hint="move it")
    found = asked(ONE, TWO).end(image_name("oci:out"), "embedded", None, kept, Heard())
    assert found == (kept, replace(kept, tag=TWO))


def test_an_image_that_cannot_be_read_leaves_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    push = replace(asked(ONE), settings=settings())
    (found,) = push.end(image_name("oci:nowhere"), "embedded", None, None, Heard())
    assert found.error is not None
    assert (found.tag, found.image) == (ONE, None)
    assert str(found.why_not).startswith("there is no image 'oci:nowhere'")
