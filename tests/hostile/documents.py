"""Sound documents that rows of `cases` change in one place."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from envkit.lock.store import to_text
from tests.support.locks import locked_conda, locked_wheels
from tests.support.plans import shipped_plan


def conda_lock() -> Any:
    """A lock of the shipped image `cpu`."""
    return json.loads(to_text(locked_conda(shipped_plan("cpu"))))


def wheel_lock() -> Any:
    """A lock of the shipped image `cu126` from wheels."""
    return json.loads(to_text(locked_wheels(shipped_plan("cu126", template="wheels"))))


def torchless_lock() -> Any:
    """`conda_lock` without its row of torch, with the seal that fits what is left."""
    lock = locked_conda(shipped_plan("cpu"))
    rows = tuple(one for one in lock.conda if one.name != "pytorch")
    return json.loads(to_text(replace(lock, conda=rows)))


DOCUMENTS: dict[str, Callable[[], Any]] = {
    "conda_lock": conda_lock,
    "torchless_lock": torchless_lock,
    "wheel_lock": wheel_lock,
}
