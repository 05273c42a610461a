"""The checks of math, loaders and mixed precision, run for real with this interpreter's torch."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.catalog import catalog, judges
from envkit.checks.model import Verdict
from envkit.verify.judge import Judged, judge
from envkit.verify.payload import parse_document, payload_archive
from tests.support.payloads import module, observer, ruled

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")

NONCE = "0123456789abcdef"
CHECKS = ("C05", "C06", "C12", "C14", "C17")
ENTRIES = tuple(entry for entry in catalog() if entry.id in CHECKS)


@pytest.fixture
def ctx() -> Any:
    return import_module("envkit.smoke.context").Ctx({"nonce": NONCE})


@pytest.fixture(autouse=True)
def _settings_stay() -> Iterator[None]:
    before = settings()
    yield
    assert settings() == before


def settings() -> tuple[Any, ...]:
    compat = import_module("envkit.smoke.compat")
    backends = torch.backends
    return (
        compat.fp32_settings(torch),
        backends.mkldnn.enabled,
        backends.cudnn.enabled,
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )


def observe(ctx: Any, module: str) -> dict[str, dict[str, Any]]:
    check = import_module(f"envkit.checks.{module}.observe")
    return {item["id"]: item for item in check.run(ctx)}


def verdict(item: dict[str, Any]) -> Judged:
    (judged,) = judge({"env": {}, "checks": [item]}, {}, (), judges())
    return judged


def run_archive(tmp_path: Path, only: str, **environment: str) -> tuple[dict[str, Any], str]:
    archive, spec = tmp_path / "payload.pyz", tmp_path / "spec.json"
    archive.write_bytes(payload_archive())
    spec.write_text(json.dumps({"nonce": NONCE, "loader": {"num_workers": 2}}))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(archive), "--spec", str(spec), "--only", only],
        capture_output=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr.decode()
    return parse_document(done.stdout, NONCE), done.stderr.decode()


def test_the_archive_runs_every_check_without_a_warning(tmp_path: Path) -> None:
    document, stderr = run_archive(tmp_path, ",".join(CHECKS))
    judged = judge(document, {}, ENTRIES, judges())
    assert {item.id.partition(".")[0] for item in judged} == set(CHECKS)
    bad = [(item.id, item.finding.message) for item in judged if item.finding.verdict in (Verdict.FAIL, Verdict.ERROR)]
    assert bad == []
    assert "Warning" not in stderr
    assert "Traceback" not in stderr
    kinds = {item.id: item.finding.verdict for item in judged}
    assert kinds["C05.fp32"] is Verdict.PASS
    assert kinds["C12.order.nw2"] is Verdict.PASS
    assert kinds["C14.grad_scaler"] is Verdict.PASS
    (exception,) = (item for item in document["checks"] if item["id"] == "C12.exception")
    assert exception["observed"] == {"exception": "ValueError", "carries_text": True}


def test_an_environment_that_asks_for_tf32_is_reported(tmp_path: Path) -> None:
    document, _ = run_archive(tmp_path, "C05", TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")
    observed = {item["id"]: item["observed"] for item in document["checks"]}
    assert observed["C05.default"]["settings"]["matmul"] == "tf32"
    assert observed["C05.fp32"]["settings"]["matmul"] == "ieee"
    assert observed["C05.default"]["environment"] == {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}


def test_reduced_precision_behind_the_programs_back_fails(ctx: Any) -> None:
    c05 = import_module("envkit.checks.c05_gemm.observe")
    left, right, reference = c05._problem(torch, 512, 0)
    rounded = (left.bfloat16().double(), right.bfloat16().double(), reference)
    item = c05._fingerprint(ctx, "C05.fp32", {512: rounded}, torch.float32, "ieee")
    assert verdict(item).finding.reason_code == "PRECISION_OVERRIDDEN"


def test_a_product_that_misses_terms_fails(ctx: Any) -> None:
    c05 = import_module("envkit.checks.c05_gemm.observe")
    left, right, reference = c05._problem(torch, 512, 0)
    left[:, -8:] = 0
    item = c05._fingerprint(ctx, "C05.fp32", {512: (left, right, reference)}, torch.float32, "ieee")
    assert verdict(item).finding.reason_code == "WRONG_RESULT"


def test_tf32_rounding_lands_in_its_band() -> None:
    precision = import_module("envkit.smoke.precision")
    c05 = import_module("envkit.checks.c05_gemm.observe")
    left, right, reference = c05._problem(torch, 512, 0)
    product = precision.to_tf32(left.float()) @ precision.to_tf32(right.float())
    assert 2.5e-4 < precision.errors(product, reference)["rel_fro"] < 1e-3


def test_a_result_that_is_not_finite_is_counted() -> None:
    precision = import_module("envkit.smoke.precision")
    reference = torch.ones(4, 4, dtype=torch.float64)
    candidate = torch.ones(4, 4)
    candidate[1, 2] = float("nan")
    assert precision.errors(candidate, reference) == {"rel_fro": None, "rel_max": None, "nonfinite": 1}


def test_convolution_runs_with_and_without_its_library(ctx: Any) -> None:
    item = observe(ctx, "c06_conv")["C06.fp32"]
    layouts = {name.partition(".")[2] for name in item["observed"]["cases"]}
    assert layouts == {"library_on", "library_off"}
    assert "stride1.library_on" in item["observed"]["cases"]
    assert verdict(item).finding.verdict is Verdict.PASS
    assert item["observed"]["settings"]["conv"] == "ieee"


def test_the_fingerprint_convolution_leaves_no_fast_algorithm(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's Winograd and FFT kernels need stride 1, and are less exact by design."""
    conv2d, strides = torch.nn.functional.conv2d, []

    def noted(*args: Any, **options: Any) -> Any:
        strides.append((options["stride"], args[0].dtype is torch.float64))
        return conv2d(*args, **options)

    monkeypatch.setattr(torch.nn.functional, "conv2d", noted)
    ran = [item for item in observe(ctx, "c06_conv").values() if item["status"] == "ran"]
    low = [stride for stride, reference in strides if not reference]
    assert low.count(1) == len(ran)
    assert set(low) == {1, 2}


def test_answers_are_compared_in_strict_and_deterministic_arithmetic(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check = observer("c17_no_grad")
    forward, seen = check._forward, []

    def noted(*args: Any) -> Any:
        seen.append((torch.backends.cudnn.deterministic, module("compat").fp32_settings(torch)["conv"]))
        return forward(*args)

    monkeypatch.setattr(check, "_forward", noted)
    before = torch.backends.cudnn.deterministic
    found = check.run(ctx)
    assert set(seen) == {(True, "ieee")}
    assert torch.backends.cudnn.deterministic is before
    assert {item["observed"]["repeated_difference"] for item in found} == {0.0}


def test_a_forward_pass_that_does_not_repeat_itself_is_seen(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check = observer("c17_no_grad")
    calls: list[None] = []
    forward = check._forward

    def drifting(*args: Any) -> Any:
        calls.append(None)
        found = forward(*args)
        return {**found, "output": found["output"] * (1 + 1e-3 * len(calls))}

    monkeypatch.setattr(check, "_forward", drifting)
    item = next(iter(check.run(ctx)))
    assert item["observed"]["repeated_difference"] > 1e-4
    assert ruled(item).reason_code == "CONV_NOT_REPEATABLE"


def test_nothing_saved_without_gradients(ctx: Any) -> None:
    for item in observe(ctx, "c17_no_grad").values():
        assert item["controls"][0]["held"]
        assert verdict(item).finding.verdict is Verdict.PASS


def test_faults_of_batches_are_told_apart() -> None:
    loaders = import_module("envkit.smoke.loaders")
    good = list(loaders.batches(torch, loaders.Numbered(8), batch_size=4, num_workers=0))
    assert loaders.faults(good, 8) == {"received": 8, "missing": 0, "out_of_place": 0, "damaged": 0}
    assert loaders.faults(good[:1], 8)["missing"] == 4
    assert loaders.faults(good[::-1], 8)["out_of_place"] == 8
    good[0][1][0, 0], good[0][1][0, 1] = good[0][1][0, 1].clone(), good[0][1][0, 0].clone()
    assert loaders.faults(good, 8)["damaged"] == 1


def test_autocast_that_does_nothing_fails(ctx: Any) -> None:
    c14 = import_module("envkit.checks.c14_amp.observe")
    compat = import_module("envkit.smoke.compat")
    item = c14._dtypes(ctx, "bf16", torch.bfloat16)
    item["observed"]["table"] = c14._table(ctx, compat.autocast(torch, "cpu", torch.bfloat16, enabled=False))
    assert verdict(item).finding.reason_code == "AMP_INERT"


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_a_gradient_without_a_layer_fails(ctx: Any, name: str) -> None:
    amp = import_module("envkit.smoke.amp")
    c14 = import_module("envkit.checks.c14_amp.observe")
    row, missing_layer = c14._one_seed(ctx, name, "bf16", 0)
    item = import_module("envkit.smoke.observation").ran(
        f"C14.error.{name}.bf16",
        "cpu",
        {"network": name, "precision": "bf16", **amp.worst([row])},
        [{"name": "planted", "held": True, "detail": ""}],
    )
    assert verdict(item).finding.verdict is Verdict.PASS
    item["observed"]["grad_rel_l2"] = missing_layer
    assert verdict(item).finding.reason_code == "AMP_ERROR"


_SMALL_MOUNT = """
import gc, importlib, torch
from envkit.smoke import context, hostfacts
gc.disable()  # what frees memory when it likes must not decide
before = hostfacts.shared_memory("/dev/shm")["free_bytes"]
check = importlib.import_module("envkit.checks.c13_shm.observe")
loader = {"num_workers": 2, "prefetch_factor": 4, "batch_bytes": 10_000_000}
(item,) = check.run(context.Ctx({"nonce": "0", "loader": loader}))
lost = before - hostfacts.shared_memory("/dev/shm")["free_bytes"]
print(item["observed"]["outcome"], lost // loader["batch_bytes"])  # in batches: queues leave a few pages
"""


def test_a_loader_without_room_leaves_the_mount_to_later_checks() -> None:
    script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    argv = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", _SMALL_MOUNT]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if "unshare failed" in done.stderr:
        pytest.skip(f"mount namespaces cannot be used here: {done.stderr.strip()}")
    assert done.stdout == "no_space 0\n", done.stderr


_KILLED = """
import importlib, os, signal, torch
from envkit.smoke import context
check = importlib.import_module("envkit.checks.c13_shm.observe")
main = os.getpid()

def die(self, index):
    assert os.getpid() != main
    os.kill(os.getpid(), signal.SIGBUS)

check.Batches.__getitem__ = die
loader = {"num_workers": 4, "prefetch_factor": 2, "batch_bytes": 4096}
(item,) = check.run(context.Ctx({"nonce": "0", "loader": loader}))
print(item["observed"]["outcome"])
"""


_SWALLOWED = """
from torch.utils.data._utils import signal_handling
signal_handling._set_SIGCHLD_handler = lambda: None
import importlib
importlib.import_module("envkit.checks.c13_shm.observe").LOADER_TIMEOUT_S = 1
"""


def test_workers_that_died_are_one_outcome_where_their_signal_was_caught_elsewhere() -> None:
    """torch raises in its handler of SIGCHLD; an import within torch that was running then catches everything."""
    done = subprocess.run([sys.executable, "-c", _SWALLOWED + _KILLED], check=False, capture_output=True, text=True)
    assert done.stdout == "bus_error\n", done.stderr


def test_a_worker_that_died_does_not_end_the_shutdown() -> None:
    class Iterator:
        asked = 0

        def _shutdown_workers(self) -> None:
            self.asked += 1
            raise RuntimeError(
                "DataLoader worker (pid 7) is killed by signal: Bus error."
            )  # as torch's SIGCHLD handler

    iterator = Iterator()
    import_module("envkit.smoke.loaders").stop(iterator)
    assert iterator.asked == 1


_LOCKED = """
import torch
from envkit.smoke import loaders
from torch.utils.data import dataloader

def taken(self, *_):
    self._index_queues[0]._notempty.acquire()
    raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error.")

setattr(dataloader._MultiProcessingDataLoaderIter, WHERE, taken)
try:
    next(loaders.batches(torch, loaders.Numbered(8), num_workers=2))
except RuntimeError:
    loaders.stop_all()
print("ended")
"""


@pytest.mark.parametrize("where", ["_next_data", "_try_put_index"])  # while batches come, and while it is made
def test_a_signal_within_a_queues_lock_does_not_block_the_shutdown(where: str) -> None:
    script = f"WHERE = {where!r}\n{_LOCKED}"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n", done.stderr


def test_workers_that_die_one_after_the_other_are_one_outcome() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], check=False, capture_output=True, text=True)
    assert done.stdout == "bus_error\n", done.stderr
