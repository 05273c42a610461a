"""C21 with NVIDIA DALI, as far as a package with its interface shows it: Pillow does the work of its pipeline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.model import Verdict
from tests.support.payloads import context, observe, observer, said

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")
pytest.importorskip("PIL", reason="JPEG is decoded with Pillow: pip install pillow")
pytest.importorskip("numpy", reason="DALI takes and gives NumPy arrays: pip install numpy")

PIPELINE = """
import io
import numpy
from PIL import Image

class Images(list):
    def at(self, index):
        return self[index]
    def as_cpu(self):
        return self

class Pipeline:
    current = None
    def __init__(self, *, batch_size, num_threads, device_id, exec_pipelined, exec_async):
        assert num_threads == 1
        self.size, self.device, self.built = batch_size, device_id, False
    def __enter__(self):
        Pipeline.current = self
    def __exit__(self, *_):
        Pipeline.current = None
    def set_outputs(self, output):
        self.decode = output
    def build(self):
        self.built = True
    def feed_input(self, name, arrays):
        assert self.built and name == "packed" and len(arrays) == self.size
        self.arrays = arrays
    def run(self):
        return (Images(self.decode(array) for array in self.arrays),)
"""
FUNCTIONS = """
import io
import numpy
from PIL import Image
from types import SimpleNamespace
from .pipeline import Pipeline

def external_source(*, name):
    return name

def image(source, *, device, output_type, jpeg_fancy_upsampling):
    assert source == "packed" and output_type == "RGB" and jpeg_fancy_upsampling
    assert (device == "mixed") == (Pipeline.current.device is not None)
    return lambda packed: numpy.array(Image.open(io.BytesIO(packed.tobytes())).convert("RGB")) WRONG

decoders = SimpleNamespace(image=image)
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: str = "") -> None:
    package = folder / "nvidia" / "dali"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "pipeline.py").write_text(PIPELINE)
    (package / "fn.py").write_text(FUNCTIONS.replace("WRONG", wrong))
    (package / "types.py").write_text("RGB = 'RGB'\n")
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)


def test_dali_is_timed_beside_the_other_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "dali" in observe("c21_jpeg")["C21.small"]["observed"]["absent"]
    install(tmp_path, monkeypatch)
    item = observe("c21_jpeg")["C21.small"]
    observed = item["observed"]
    assert observed["decode_ms"]["dali"] > 0
    assert (observed["largest_difference"]["dali"], observed["broken"]) == (0, {})
    assert "dali" not in observed["absent"]
    assert "dali_gpu" not in observed["decode_ms"]


def test_a_batch_on_the_gpu_is_reported_per_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    check, ctx = observer("c21_jpeg"), context()
    monkeypatch.setattr(type(ctx), "has_cuda", True)
    monkeypatch.setattr(check, "GPU_BATCH", 4)
    observed = observe("c21_jpeg", ctx)["C21.small"]["observed"]
    assert observed["batches"] == {"dali": 1, "dali_gpu": 4}
    # Pillow does both, so a picture of a batch takes as long as one alone, and a batch four times that.
    assert 0.4 < observed["decode_ms"]["dali_gpu"] / observed["decode_ms"]["dali"] < 2.5


def test_pixels_of_dali_that_differ_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "// 8 * 8")
    item = observe("c21_jpeg")["C21.small"]
    # The clock has no part in this, and a busy machine fails its control.
    item["controls"] = [entry for entry in item["controls"] if entry["name"] != "two_pictures_take_longer"]
    assert said(item) == (Verdict.FAIL, "DECODERS_DISAGREE")
