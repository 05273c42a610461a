"""What today's torch really says when it fails is what the knowledge base looks for."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from envkit.doctor.logs import diagnose_log

pytest.importorskip("torch", reason="failures of torch are made with torch: pip install '.[bench]'")
pytestmark = pytest.mark.long
# The old name of GradScaler says as well that there is no CUDA.
_MORE = {"amp-deprecated": {"autocast-inert"}}


def test_torch_still_uses_the_words_that_are_known() -> None:
    script = Path(__file__).with_name("provoke.py")
    done = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, timeout=300
    )
    said = done.stderr.decode()
    parts = re.split(r"^### (\S+)\n", said, flags=re.MULTILINE)[1:]
    logs = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(logs) >= 15, said
    wrong = {}
    for name, log in logs.items():
        found = {one.id for one in diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), name).findings}
        if found - _MORE.get(name, set()) != {name}:
            wrong[name] = (found, log[-600:])
    assert not wrong
