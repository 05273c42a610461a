"""What `envkit push` refuses before it asks any registry, and what its document holds."""

import json
from pathlib import Path

import pytest

from envkit.cli import push
from envkit.cli.declare import gather
from envkit.cli.main import run
from envkit.ground.errors import EngineError, EnvironmentProblem
from envkit.image.name import parse_reference
from envkit.pipeline.publish import PushResult, Sent, Tagging, Target, targets_of_names
from envkit.registry.push import Pushed
from envkit.run.source import Source
from envkit.verify.verified import VerifiedBy
from tests.support.file_images import entry, packed, write_layout

PLACE = "registry.example.com/team/train"
DIGEST = f"sha256:{'1' * 64}"
PUSHED = Pushed(reference=f"{PLACE}@{DIGEST}", digest=DIGEST, sent=5, mounted=3, present=2)
MOVED = Tagging(image=PUSHED.reference, tag=f"{PLACE}:1")
TAKEN = Tagging(
    image=PUSHED.reference, tag=f"{PLACE}:2", why_not="it is taken", error=EngineError("it is taken", hint="move it")
)


def source(name: str = "oci:layout") -> Source:
    def read(*_arguments: object) -> object:
        raise AssertionError

    return Source(name=name, ids=(DIGEST,), labels={}, read=read)  # type: ignore[arg-type]  # nobody reads it


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (["train:1"], "REF 'train:1' does not name a registry", "write HOST/NAME:TAG: registry.example.com/team/"),
        (["team/train:1"], "REF 'team/train:1' does not name a registry", "write HOST/NAME:TAG: "),
        ([f"{PLACE}/Train:1"], f"REF '{PLACE}/Train:1' is not a valid image name: ", "use HOST/NAME:TAG in lower case"),
        ([f"{PLACE}@{DIGEST}"], f"REF '{PLACE}@{DIGEST}' has a digest, but the digest", f"{PLACE}:TAG, or "),
        ([f"{PLACE}:1", "-t", "a b"], "-t 'a b': ", "use HOST/NAME:TAG in lower case"),
        (["--no-tag", f"{PLACE}:1"], f"--no-tag sets no tag, but '{PLACE}:1' has one", f"--no-tag {PLACE}"),
        (["--no-tag", PLACE, "-t", "1"], "--no-tag and --tag contradict each other", "give one of them"),
        (["--no-tag", PLACE, "--unverified"], "--no-tag and --unverified contradict", "give one of them"),
        ([f"{PLACE}:1", "--record", "a.json", "--unverified"], "--unverified and --record contradict", "give one"),
        (
            [f"{PLACE}:1", "--mount-from", "other.example.com/a"],
            "--mount-from 'other.example.com/a' is not a repository of registry.example.com",
            "use a name without a tag: --mount-from registry.example.com/team/base",
        ),
        ([f"{PLACE}:1"], "no image was built here yet", "envkit build, or name the image"),
    ],
)
def test_what_is_wrong_is_told_before_any_registry_is_asked(
    capsys: pytest.CaptureFixture[str], *, typed: list[str], message: str, hint: str
) -> None:
    assert run(["push", "--progress", "quiet", *typed]) == 2
    told = capsys.readouterr()
    assert f"error: {message}" in told.err
    assert f"hint: {hint}" in told.err
    assert told.out == ""


def test_an_image_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["push", f"{PLACE}:1", "--image", "oci:nowhere", "--progress", "quiet"]) == 8
    assert "error: there is no image 'oci:nowhere': nowhere has no index.json" in capsys.readouterr().err


def test_what_is_not_proved_is_not_pushed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = write_layout(tmp_path / "layout", [packed([(entry("a"), b"1")])])
    assert run(["push", f"{PLACE}:1", "--image", f"oci:{layout}", "--progress", "quiet"]) == 5
    told = capsys.readouterr()
    assert f"error: oci:{layout} is not verified: there is no record of sha256:" in told.err
    assert f" in {tmp_path}/XDG_STATE_HOME/envkit/records\n" in told.err
    assert f"hint: envkit verify oci:{layout}   # or --record FILE, or --unverified" in told.err


def test_where_it_goes() -> None:
    def target(*words: str) -> Target:
        return gather(push.PushFlags, push.command.make_context("push", list(words)).params).target()

    one = target(f"{PLACE}:1", "-t", "latest", "-t", "1")
    assert [str(name) for name in one.names] == [f"{PLACE}:1", f"{PLACE}:latest"]
    assert [str(name) for name in target(PLACE).names] == [f"{PLACE}:latest"]
    bare = target("--no-tag", PLACE)
    assert (bare.repository.place, bare.names) == (PLACE, ())


def test_names_are_gathered_by_repository() -> None:
    other = "registry.example.com/other"
    names = [parse_reference(text) for text in (f"{PLACE}:1", f"{other}:1", f"{PLACE}:2", f"{PLACE}:1")]
    found = targets_of_names(names)
    assert [(one.repository.place, [name.tag for name in one.names]) for one in found] == [
        (PLACE, ["1", "2"]),
        (other, ["1"]),
    ]


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    verified = VerifiedBy(
        path=Path("/state/records/1.json"), verdict="PASS", started="2026-01-01T00:00:00Z", machine="h:1"
    )
    sent = Sent(id=f"sha256:{'2' * 64}", pushed=PUSHED, tags=(MOVED,))
    assert push._publish(PushResult(source=source(), sent=sent, verified_by=verified), "-") == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "envkit.push/1",
        "image": "oci:layout",
        "id": f"sha256:{'2' * 64}",
        "reference": PUSHED.reference,
        "digest": DIGEST,
        "sent_bytes": 5,
        "mounted_bytes": 3,
        "present_bytes": 2,
        "tags": [{"tag": f"{PLACE}:1", "tagged": True, "why": None}],
        "proof": {
            "record": "/state/records/1.json",
            "verdict": "PASS",
            "started": "2026-01-01T00:00:00Z",
            "machine": "h:1",
        },
    }
    assert push.document(PushResult(source=source(), sent=sent, verified_by=None))["proof"] is None
    assert push._publish(PushResult(source=source(), sent=sent, verified_by=None), None) == 0
    assert capsys.readouterr().out == f"{PUSHED.reference}\n"


def test_a_tag_that_did_not_move_ends_the_command_after_its_document(tmp_path: Path) -> None:
    sent = Sent(id=DIGEST, pushed=PUSHED, tags=(TAKEN, MOVED))
    with pytest.raises(EngineError) as caught:
        push._publish(PushResult(source=source(), sent=sent, verified_by=None), str(tmp_path / "pushed.json"))
    assert caught.value.details == (f"{PLACE}:2 is unchanged; the image is in the registry as {PUSHED.reference}",)
    tags = json.loads((tmp_path / "pushed.json").read_bytes())["tags"]
    assert [row["tagged"] for row in tags] == [False, True]
    assert tags[0]["why"] == "it is taken"


def test_a_document_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sent = Sent(id=DIGEST, pushed=PUSHED, tags=())
    with pytest.raises(EnvironmentProblem) as caught:
        push._publish(PushResult(source=source(), sent=sent, verified_by=None), str(tmp_path / "file" / "x.json"))
    assert f"the image was pushed: {PUSHED.reference}" in caught.value.message


def test_what_was_not_sent_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    push.report_tags([Tagging(image=None, tag=f"{PLACE}:1", why_not="no record", hint="verify it")])
    assert capsys.readouterr().err == (
        f"not tagged: no record\n  {PLACE}:1 is unchanged; nothing was pushed\nhint: verify it\n"
    )
