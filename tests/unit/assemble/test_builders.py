"""Which builder is meant by a name."""

import pytest

from envkit.assemble.builders import NAMES, builder_of, choose
from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.builder import EngineBuilder
from envkit.ground.errors import UsageError
from envkit.ground.progress import Silent
from tests.support.heard import Heard


def test_an_engine_that_is_named_need_not_answer_to_be_locked_for() -> None:
    for name in NAMES:
        builder = builder_of(name, Silent(), docker_cli="no-such-client")
        assert builder.name == name
        assert isinstance(builder, EmbeddedBuilder if name == "embedded" else EngineBuilder)


def test_what_is_no_engine_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError, match="--engine: unknown engine 'kaniko'") as caught:
        builder_of("kaniko", Silent())
    assert caught.value.hint == "--engine auto, docker, buildkit, podman, embedded"


def test_engines_that_ask_the_same_daemon_give_the_same_reason_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "nonsense://somewhere")
    monkeypatch.setenv("PATH", "/no/such/folder")
    heard = Heard()
    assert choose("auto", heard).name == "embedded"
    (told,) = heard.notes
    assert told.count("nonsense://somewhere") == 1
    assert "podman is not installed" in told
