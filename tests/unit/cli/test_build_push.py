"""`envkit build --push`: which names it takes, and what becomes of them when something is amiss."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.build.model import BuildOptions
from envkit.cli.build_push import Push, wish
from envkit.cli.tagging import Tagging
from envkit.ground.errors import UsageError
from envkit.ground.settings import Settings, load
from tests.support.heard import Heard
from tests.support.plans import shipped_plan
from tests.unit.cli.test_tagging import record

ONE, TWO = "registry.example.com/team/train:1", "registry.example.com/team/train:latest"
FIRST = Tagging(image="registry.example.com/team/train@sha256:1", tag=ONE)


def asked(*tags: str, output: str | None = None, on: bool = True, **changes: Any) -> Push:
    typed = {"push": on, "tags": tags, "replace_tag": False, "mount_from": ()} | changes
    return wish(typed, BuildOptions(tags=tags, output=output), Settings({}))


def test_without_the_flag_nothing_goes_anywhere() -> None:
    push, options = asked("train:1", on=False, replace_tag=True), BuildOptions(output="oci:out")
    assert push.begin("docker", options, shipped_plan("cu126"), Heard()) is options
    assert push.end("sha256:1", "docker", None, None, Heard()) == ()
    assert push.end("sha256:1", "embedded", None, FIRST, Heard()) == (FIRST,)


@pytest.mark.parametrize(
    ("tags", "output", "message", "hint"),
    [
        ((), None, "--push needs a name to push to", "envkit build -t registry.example.com/team/train:1.0 --push"),
        (("train:1",), None, "-t 'train:1' names no registry", "write HOST/NAME:TAG: registry.example.com/"),
        ((ONE, "team/train:1"), None, "-t 'team/train:1' names no registry", "write HOST/NAME:TAG: "),
        ((ONE,), "oci:out", "--push and --output contradict each other", "give one of them"),
    ],
)
def test_what_cannot_be_pushed_to(*, tags: tuple[str, ...], output: str | None, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked(*tags, output=output)
    assert caught.value.message.startswith(message)
    assert (caught.value.hint or "").startswith(hint)


def test_the_embedded_engine_pushes_to_the_first_name_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    push = replace(asked(ONE, TWO, replace_tag=True, mount_from=("team/base",)), resolved=settings())
    options = push.begin("embedded", BuildOptions(tags=(ONE, TWO)), shipped_plan("cu126"), Heard())
    assert (options.output, options.replace_tag, options.mount_from) == (f"registry:{ONE}", True, ("team/base",))


def settings() -> Settings:
    return load({}, {}, Path("/nonexistent"))


def test_what_is_not_proved_stays_here() -> None:
    found = asked(ONE, TWO).end("sha256:1", "docker", record(6, "FAIL"), None, Heard())
    assert [(one.tag, one.image, one.why_not) for one in found] == [
        (name, None, "the image is not proved: FAIL, exit code 6") for name in (ONE, TWO)
    ]


def test_what_kept_the_first_name_keeps_the_others() -> None:
    kept = replace(FIRST, why_not="it is taken", hint="move it")
    found = asked(ONE, TWO).end("oci:out", "embedded", None, kept, Heard())
    assert found == (kept, replace(kept, tag=TWO))


def test_an_image_that_cannot_be_read_leaves_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    push = replace(asked(ONE), resolved=settings())
    (found,) = push.end("oci:nowhere", "embedded", None, None, Heard())
    assert found.error is not None
    assert (found.tag, found.image) == (ONE, None)
    assert str(found.why_not).startswith("nowhere is not an OCI image layout")
