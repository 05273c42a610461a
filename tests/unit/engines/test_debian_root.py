"""The name under which a root of Debian packages is kept, and when its writing ends."""

import io
import threading
from dataclasses import replace

import pytest

from envkit.engines.debian_root import _Stoppable, layer_key
from envkit.ground.process import StoppedError
from tests.support.locks import debian_base


def test_the_key_follows_the_packages_and_nothing_else() -> None:
    base = debian_base("bash", "tini")
    key = layer_key(base)
    assert key == layer_key(replace(base, reference="other"))
    assert key != layer_key(debian_base("bash"))
    assert key != layer_key(replace(base, suite="trixie"))


def test_the_key_follows_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    key = layer_key(debian_base("bash"))
    monkeypatch.setattr("envkit.engines.debian_root.zlib.ZLIB_RUNTIME_VERSION", "0.1")
    assert key != layer_key(debian_base("bash"))


@pytest.mark.parametrize("which", [0, 1])
def test_a_sink_takes_nothing_once_the_work_is_over(which: int) -> None:
    into, events = io.BytesIO(), (threading.Event(), threading.Event())
    sink = _Stoppable(into, (*events, None))
    sink.write(b"one")
    events[which].set()
    with pytest.raises(StoppedError):
        sink.write(b"two")
    assert into.getvalue() == b"one"
