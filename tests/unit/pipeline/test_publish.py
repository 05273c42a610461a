"""What becomes of the tags of a build: they are set after verification, and a tag that is not says why."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from envkit.assemble.engine import EmbeddedBuilder
from envkit.cli.push import report_tags
from envkit.engines.builder import EngineBuilder
from envkit.engines.model import BuildOptions, Engine
from envkit.ground.errors import EngineError, UsageError
from envkit.ground.settings import Settings, load
from envkit.image.name import Reference
from envkit.image.spec import sha256
from envkit.pipeline.publish import Publication, Push, Sent, Tagging, tag_explained, with_hash
from envkit.registry.push import Pushed
from envkit.registry.registry import Manifest, Registry
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
    assert asked(on=False).end(BUILT, BuildOptions(), None, Heard()) == ()


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
    (made,) = asked(on=False).end(PUSHED, OPTIONS, record(code, verdict), heard)
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


def asked(*tags: str, more: tuple[str, ...] = (), on: bool = True) -> Push:
    words = [word for tag in tags for word in ("-t", tag)]
    return build_flags(*words, *(["--push"] if on else []), *more).push_after(Settings({}))


def test_without_the_flag_nothing_goes_anywhere() -> None:
    push, options = asked("train:1", on=False), BuildOptions(output="oci:out")
    assert push.begin("docker", options, shipped_plan("cu126"), Heard()) is options


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
    found = asked(ONE, TWO).end(BUILT, BuildOptions(), record(6, "FAIL"), Heard())
    assert [(one.tag, one.image, one.why_not) for one in found] == [
        (name, None, "the image is not verified: FAIL, exit code 6") for name in (ONE, TWO)
    ]


def test_what_kept_the_first_name_keeps_the_others() -> None:
    found = asked(ONE, TWO).end(PUSHED, OPTIONS, record(6, "FAIL"), Heard())
    why = "the image is not verified: FAIL, exit code 6"
    assert [(one.tag, one.image, one.why_not) for one in found] == [(name, PUSHED.pushed, why) for name in (ONE, TWO)]


def test_an_image_that_cannot_be_read_leaves_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    push = replace(asked(ONE), settings=settings())
    (found,) = push.end(replace(BUILT, engine="embedded", place="oci:nowhere"), BuildOptions(), None, Heard())
    assert found.error is not None
    assert (found.tag, found.image) == (ONE, None)
    assert str(found.why_not).startswith("there is no image 'oci:nowhere'")


class Tags:
    """A registry in memory; `set` has the tags in the order in which they were set."""

    def __init__(self, **held: str) -> None:
        self.held = {tag: manifest(text) for tag, text in held.items()} | {IMAGE: manifest("image")}
        self.set: list[str] = []

    def manifest(self, reference: Reference) -> Manifest | None:
        return self.held.get(reference.tag_or_digest)

    def put_manifest(self, reference: Reference, data: bytes, media_type: str) -> None:
        self.held[reference.tag_or_digest] = Manifest(data=data, media_type=media_type, digest=sha256(data))
        self.set.append(str(reference.tag))

    def persist(self, do: Callable[[], None], *, tries: int) -> None:
        assert tries > 1
        do()


def manifest(text: str) -> Manifest:
    return Manifest(data=text.encode(), media_type="json", digest=sha256(text.encode()))


REPOSITORY = NAME.rpartition(":")[0]
IMAGE = manifest("image").digest
SENT = replace(PUSHED, digest=IMAGE, pushed=f"{REPOSITORY}@{IMAGE}")


@pytest.fixture
def tags(monkeypatch: pytest.MonkeyPatch) -> Tags:
    tags = Tags(taken="other")
    monkeypatch.setattr(Registry, "of", lambda *_: tags)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    return tags


def output(tag: str, **more: Any) -> BuildOptions:
    return BuildOptions(tags=("envkit/cpu:a",), output=f"registry:{REPOSITORY}:{tag}", **more)


def test_the_tag_of_an_output_moves_after_a_verification_that_passed(tags: Tags) -> None:
    push, heard = asked(on=False), Heard()
    for verdict in (record(6, "FAIL"), record(5, "NOT_VERIFIED")):
        push.end(SENT, output("1"), verdict, heard)
    assert (tags.set, heard.notes) == ([], [])
    (found,) = push.end(SENT, output("1"), record(0, "PASS"), heard)
    assert (found.why_not, tags.set, heard.notes) == (None, ["1"], [f"tagged {NAME}: {SENT.pushed}"])


def test_a_tag_of_another_image_stays_unless_it_may_be_replaced(tags: Tags) -> None:
    push = asked(on=False)
    (kept,) = push.end(SENT, output("taken"), None, Heard())
    assert kept.why_not == f"{REPOSITORY}:taken already points to another image ({manifest('other').digest})"
    assert (str(kept.hint).partition(" ")[0], tags.set) == ("--replace-tag", [])
    (moved,) = push.end(SENT, output("taken", replace_tag=True), None, Heard())
    assert (moved.why_not, tags.set) == (None, ["taken"])


@pytest.mark.parametrize("is_sent", [False, True], ids=["engine", "embedded"])
def test_tags_that_were_set_before_a_failure_are_told_as_set(
    tags: Tags, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_sent: bool
) -> None:
    def send(*_: object, **__: object) -> Iterator[Sent]:
        pushed = Pushed(reference=str(SENT.pushed), digest=IMAGE, sent=0, mounted=0, present=1)
        yield Sent(id=BUILT.id, pushed=pushed, tags=(Tagging(image="again", tag=ONE), Tagging(image="new", tag=TWO)))
        raise EngineError("the registry refuses", hint="docker login")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("envkit.pipeline.publish.find_source", lambda *_, **__: None)
    monkeypatch.setattr(Push, "send", send)
    push = replace(asked(ONE, TWO, "registry.example.com/other:1"), settings=settings())
    built, options = (SENT, output("1")) if is_sent else (BUILT, BuildOptions())
    one, two, other = push.end(built, options, None, Heard())
    # What the build itself pushed is told once, as its own tag was set.
    assert (one.tag, one.image, tags.set) == ((ONE, SENT.pushed, ["1"]) if is_sent else (ONE, "again", []))
    assert [(tag.tag, tag.image, tag.why_not, tag.hint) for tag in (two, other)] == [
        (TWO, "new", None, None),
        ("registry.example.com/other:1", None, "the registry refuses", "docker login"),
    ]


class Named:
    """The part of an engine that gives names."""

    name = "docker"

    def __init__(self) -> None:
        self.named: list[tuple[str, str]] = []

    def tag(self, image: str, reference: str) -> None:
        self.named.append((image, reference))


def published(options: BuildOptions, folder: Path, engine: Named | None = None) -> Publication:
    builder: Any = EmbeddedBuilder(state=folder, cache=folder / "cache")
    if engine is not None:
        builder = EngineBuilder(cast("Engine", engine), state=folder)
    return Publication(builder, options, own_tag="012", state=folder)


def test_the_hash_tag_of_a_fleet_is_set_last(tags: Tags, tmp_path: Path) -> None:
    assert published(output("1"), tmp_path).end(SENT, Heard()) is SENT
    assert tags.set == ["1", "012"]
    with pytest.raises(EngineError, match="already points to another image"):
        published(output("taken"), tmp_path).end(SENT, Heard())
    assert tags.set == ["1", "012"], "a later run would take an image that has no tag for one that has"


def test_an_image_that_is_there_gets_the_tag_that_it_lacks(tags: Tags, tmp_path: Path) -> None:
    for tag in ("1", "1", "012"):
        published(output(tag), tmp_path).again(f"{REPOSITORY}@{IMAGE}", IMAGE)
    assert tags.set == ["1"]
    with pytest.raises(EngineError, match="already points to another image"):
        published(output("taken"), tmp_path).again(f"{REPOSITORY}@{IMAGE}", IMAGE)


def test_an_engine_names_the_hash_after_the_verification(tmp_path: Path) -> None:
    engine, options = Named(), BuildOptions(tags=("envkit/cpu:a", "b"))
    publication = published(options, tmp_path, engine)
    assert publication.begin() is options
    assert not engine.named
    assert publication.end(BUILT, Heard()) is BUILT
    assert engine.named == [(BUILT.id, "envkit/cpu:012")]
    publication.again("sha256:2", None)
    assert engine.named[1:] == [("sha256:2", "envkit/cpu:a"), ("sha256:2", "b")]


def test_a_layout_is_marked_until_its_verification_has_passed(tmp_path: Path) -> None:
    builder = EmbeddedBuilder(state=tmp_path, cache=tmp_path / "cache")
    for output, mark in (
        (f"oci:{tmp_path}/out/a", tmp_path / "out" / "a.unproved"),
        (None, tmp_path / "images" / "envkit_cpu_a.unproved"),
        (f"docker-archive:{tmp_path}/a.tar", None),
    ):
        options = BuildOptions(tags=("envkit/cpu:a",), output=output)
        publication = Publication(builder, options, own_tag="012", state=tmp_path)
        assert not publication.is_marked
        assert publication.begin().tags == ("envkit/cpu:a", "envkit/cpu:012")
        assert publication.is_marked == (mark is not None and mark.is_file())
        assert publication.is_marked == (mark is not None)
        unasked = Publication(builder, options, own_tag="012", state=tmp_path, verify=False)
        assert not unasked.is_marked
        unasked.end(BUILT, Heard())
        assert publication.is_marked == (mark is not None)
        publication.end(BUILT, Heard())
        assert not publication.is_marked


def test_names_in_an_engine() -> None:
    assert with_hash((), "0" * 12) == ()
    assert with_hash(("envkit/cpu:a", "b"), "012") == ("envkit/cpu:a", "b", "envkit/cpu:012")
    assert with_hash(("registry.example.com:5000/cpu",), "012")[1] == "registry.example.com:5000/cpu:012"
    assert with_hash(("cpu:1",), "012")[1] == "cpu:012"
