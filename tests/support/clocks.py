"""Limits on elapsed time that hold on a busy machine as well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def before(seconds: float) -> Iterator[None]:
    """Fail if the block takes as long as something that it must not wait for, such as a server that does not answer."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds
