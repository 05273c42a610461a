"""A loader's worker frees nothing of CUDA that the payload made: the real driver ends a process that does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.standin import write_site

pytest.importorskip("torch")

# A measurement that raised leaves its events in a cycle of the exception and its frames, until the next collection.
_CODE = """
import gc, torch
from envkit.smoke import loaders

class Collecting(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        gc.collect()
        return index

def measure():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    raise ValueError(event)

gc.disable()
try:
    measure()
except ValueError as error:
    error.itself = error
print([int(batch) for batch in {iterator}])
"""
ITERATORS = (
    "loaders.batches(torch, Collecting(), num_workers=1)",
    "loaders.iterate(loaders.loader(torch, Collecting(), num_workers=1))",
)


@pytest.mark.parametrize("iterator", ITERATORS)
def test_garbage_of_the_payload_is_not_freed_in_a_worker(tmp_path: Path, iterator: str) -> None:
    write_site(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _CODE.replace("{iterator}", iterator)],
        capture_output=True, text=True, check=False, env=dict(os.environ) | {"PYTHONPATH": str(tmp_path)}, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2, 3]\n"), done.stderr
