"""What the context sets before a check touches the device."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

context: Any = import_module("envkit.smoke.context")


@pytest.mark.parametrize(("version", "order"), [("2.3.1+cu121", "PCI_BUS_ID"), ("2.4.0+cu124", None), ("2.9.0", None)])
def test_the_order_of_devices_is_that_of_cuda_where_torch_tells_uuids(
    version: str, order: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In PCI order cuda:0 may be an old display card, while users of torch get the fastest one."""
    torch = ModuleType("torch")
    torch.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(os, "environ", {})
    assert context.Ctx({}).torch is torch
    assert os.environ.get("CUDA_DEVICE_ORDER") == order
