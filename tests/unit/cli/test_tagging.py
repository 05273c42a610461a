"""What a build says of a tag that did not move."""

from dataclasses import replace

import pytest

from envkit.build.model import BuildOptions
from envkit.cli import tagging
from envkit.cli.tagging import Tagging
from envkit.ground.errors import EngineError
from envkit.verify.record import Record
from tests.support.heard import Heard
from tests.unit.cli.test_build import BUILT, DIGEST

NAME = "registry.example.com/team/train:1"
PUSHED = replace(BUILT, engine="embedded", digest=DIGEST, pushed=f"registry.example.com/team/train@{DIGEST}")
OPTIONS = BuildOptions(output=f"registry:{NAME}")
UNPROVED = "the same command with --no-verify tags it without a proof"
THERE = f"{NAME} is untouched; the image is in the registry as {PUSHED.pushed}"


def record(code: int, verdict: str) -> Record:
    return Record({"summary": {"verdict": verdict, "exit_code": code}})


def test_what_went_nowhere_has_no_tag() -> None:
    assert tagging.settle(BUILT, BuildOptions(), None, Heard()) is None
    tagging.tell(None)


@pytest.mark.parametrize(
    ("code", "verdict", "hint"),
    [
        (
            5,
            "INCONCLUSIVE",
            f"the same command with --allow-cpu tags it where only a GPU was missing; {UNPROVED}",
        ),
        (6, "FAIL", f"envkit verify tells more; {UNPROVED}"),
    ],
)
def test_what_is_not_proved_is_not_tagged(
    capsys: pytest.CaptureFixture[str], *, code: int, verdict: str, hint: str
) -> None:
    heard = Heard()
    made = tagging.settle(PUSHED, OPTIONS, record(code, verdict), heard)
    assert made is not None
    why = f"the image is not proved: {verdict}, exit code {code}"
    assert made.to_json() == {"reference": PUSHED.pushed, "tag": NAME, "tagged": False, "why": why}
    assert not heard.notes
    tagging.tell(made)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"not tagged: {why}\n  {THERE}\nhint: {hint}\n"


def test_a_tag_that_moved_needs_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    made = Tagging(image=str(PUSHED.pushed), tag=NAME)
    tagging.tell(made)
    assert made.to_json()["tagged"] is True
    assert capsys.readouterr().err == ""


def test_a_registry_that_refuses_the_tag_ends_the_command_with_its_error() -> None:
    error = EngineError("it refuses", hint="docker login", details=("more",))
    with pytest.raises(EngineError) as caught:
        tagging.tell(Tagging(image=str(PUSHED.pushed), tag=NAME, why_not="it refuses", error=error))
    assert caught.value.details == ("more", THERE)


def test_an_error_that_ends_the_proof_says_what_it_means_for_the_tag() -> None:
    for built, details in ((PUSHED, (THERE,)), (BUILT, ())):
        with pytest.raises(EngineError) as caught, tagging.told(built, OPTIONS):
            raise EngineError("the runner is gone")
        assert caught.value.details == details
