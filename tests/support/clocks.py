"""Bounds on real time that a busy machine does not break."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def before(seconds: float) -> Iterator[None]:
    """Fail where the body takes as long as what it must not wait for: a sleep, or a server that is silent so long."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds
