"""Broken worlds in real containers: every break is seen, and called by its name.

The image is the CPU image of the world's conda channel. A break is a flag of `docker run`, a layer on top, or a plan
that promises something else.
"""

import base64
import io
import json
import os
import secrets
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from envkit.engine.process import ask
from envkit.plan.definition import load
from envkit.plan.model import BuildPlan
from envkit.plan.planner import plan_of
from envkit.progress import Reporter, Silent
from envkit.resolve.model import Driver
from envkit.run.docker import DockerRunner
from envkit.run.model import RunLimits, RunResult
from envkit.verify.driver import Options, verify_image
from tests.support.plans import facts
from tests.world.world import up

pytestmark = [pytest.mark.engine, pytest.mark.slow]
DEFINITION = 'schema: envkit.image/1\ntitle: CPU\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
TORCH = "/opt/env/lib/python3.11/site-packages/torch/__init__.py"
_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Image:
    """The sound image in Docker, and its plan."""

    name: str
    plan: BuildPlan
    layer: Callable[..., str]  # instructions -> the id of an image with one more layer


@dataclass(slots=True)
class Flagged:
    """Docker's runner, with flags of `docker run` that no limit of envkit's would set."""

    flags: Sequence[str]
    name: str = "docker"

    def probe(self) -> str | None:
        """As Docker's runner."""
        return DockerRunner().probe()

    def inspect(self, image: str) -> Mapping[str, Any]:
        """As Docker's runner."""
        return DockerRunner().inspect(image)

    def run(
        self,
        image: str,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,
        entrypoint: bool = False,
    ) -> RunResult:
        """The run with the flags; what goes through the entry point has Docker's own."""
        if entrypoint:
            return DockerRunner().run(
                image, argv, files, gpus=gpus, limits=limits, reporter=reporter, entrypoint=entrypoint
            )
        name = f"envkit-control-{secrets.token_hex(4)}"
        create = ["docker", "create", "--name", name, "--network", "none", *self.flags, "--entrypoint", argv[0]]
        _docker(*create[1:], image, *argv[1:])
        try:
            subprocess.run(["docker", "cp", "-", f"{name}:/"], input=_tar(files), check=True, capture_output=True)
            began = time.monotonic()
            done = subprocess.run(
                ["docker", "start", "--attach", name], capture_output=True, timeout=_LIMIT_S, check=False
            )
            return RunResult(
                exit_code=done.returncode,
                stdout=done.stdout,
                stderr=done.stderr,
                duration_s=time.monotonic() - began,
                oom_killed=False,
                image_id=image,
            )
        finally:
            _docker("rm", "--force", name)


def _docker(*arguments: str) -> str:
    answer = ask(["docker", *arguments], patience_s=_LIMIT_S)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image as it should be; images made on top of it are removed with it."""
    found = up(("docker", "registry", "base", "channel"))
    found.require("docker", "registry", "base", "channel")
    folder = tmp_path_factory.mktemp("controls")
    name, made = f"localhost/envkit-test/{secrets.token_hex(4)}", []

    def layer(*instructions: str) -> str:
        tag = f"{name}:{secrets.token_hex(4)}"
        text = "\n".join([f"FROM {name}:sound", "USER 0", *instructions, "USER 1000:1000", ""])
        answer = ask(["docker", "build", "--quiet", "--tag", tag, "-"], patience_s=_LIMIT_S, stdin=text.encode())
        assert answer.code == 0, answer.err
        made.append(tag)
        return tag

    with pytest.MonkeyPatch.context() as patch:
        for variable, value in found.env().items():
            patch.setenv(variable, value)
        file = folder / "image.yaml"
        file.write_text(DEFINITION)
        plan = plan_of(load(str(file)), {}, facts())
        (folder / "plan.json").write_bytes(plan.canonical())
        lock = [sys.executable, "-m", "envkit", "lock", str(file), "-o", str(folder / "envkit.lock")]
        subprocess.run(lock, check=True, capture_output=True)
        asked = {"folder": str(folder), "plan": str(folder / "plan.json"), "lock": str(folder / "envkit.lock")}
        subprocess.run(
            [sys.executable, "-m", "tests.engines.embedded_build"],
            input=json.dumps({**asked, "output": f"docker-daemon:{name}:sound"}),
            env=dict(os.environ),
            check=True,
            text=True,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield Image(f"{name}:sound", plan, layer)
        finally:
            subprocess.run(["docker", "rmi", "--force", *made, f"{name}:sound"], check=False, capture_output=True)


def _findings(
    image: str, plan: BuildPlan, *only: str, flags: Sequence[str] = (), tier: str = "quick"
) -> dict[str, tuple[str, str | None]]:
    """Verdict and reason code of every check by its id."""
    checks = _checks(image, plan, *only, flags=flags, tier=tier)
    return {name: (one["verdict"], one["reason_code"]) for name, one in checks.items()}


def _checks(
    image: str, plan: BuildPlan, *only: str, flags: Sequence[str] = (), tier: str = "quick"
) -> dict[str, dict[str, Any]]:
    """Every check of the record by its id."""
    options = Options(tier=tier, only=tuple(one for text in only for one in text.split(",")), allow_cpu=True)
    record = verify_image(image, plan, Flagged(tuple(flags)), Silent(), options)
    return {one["id"]: one for one in record.tree["checks"]}


def test_the_sound_image_has_nothing_of_all_that(sound: Image) -> None:
    found = _findings(sound.name, sound.plan, flags=("--shm-size=1g",))
    assert {verdict for verdict, _ in found.values()} <= {"PASS", "SKIP", "INCONCLUSIVE"}, found


def test_a_small_dev_shm_and_half_a_cpu(sound: Image) -> None:
    found = _findings(sound.name, sound.plan, "C00,C08,C13", flags=("--shm-size=64k", "--cpus=0.5"))
    assert found["C13.shm"] == ("FAIL", "SHM_TOO_SMALL")
    assert found["C00.shm"][0] in ("WARN", "FAIL")
    assert found["C08.throttling"] in (("WARN", "QUOTA_TOO_SMALL"), ("FAIL", "CPU_THROTTLED"))


def test_settings_that_slow_down_or_change_results(sound: Image) -> None:
    flags = ("--shm-size=1g", "--env=TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1")
    image = sound.layer(f"RUN echo 'set_num_threads(64)' >> {TORCH}")
    found = _findings(image, sound.plan, "C00,C08", flags=flags)
    assert found["C08.threads"] == ("WARN", "TOO_MANY_THREADS")
    assert found["C00.env"] == ("WARN", "BAD_CUDA_ENV")


def test_a_library_from_two_places_and_a_second_openmp(sound: Image) -> None:
    copies = "/opt/env/lib/libcudnn.so.9 /opt/other/libcudnn.so.9 /opt/other/libiomp5.so"
    image = sound.layer(
        f"RUN mkdir /opt/other && for to in {copies}; do cp -L /lib/x86_64-linux-gnu/libz.so.1 $to; done",
        f"ENV LD_PRELOAD={copies.replace(' ', ':')} LD_LIBRARY_PATH=/opt/other",
    )
    found = _findings(image, sound.plan, "C02,C08", flags=("--shm-size=1g",))
    assert found["C02.libraries"] == ("FAIL", "LIBRARY_LOADED_TWICE")
    assert found["C08.openmp"] == ("WARN", "TWO_OPENMP_RUNTIMES")
    assert found["S03"] == ("WARN", "ENV_SHADOWS")


def test_a_cpu_build_where_cuda_was_promised(sound: Image) -> None:
    driver = Driver(native="560.28", minimum="525.60.13", mode=None, given=None)
    promised = replace(sound.plan.resolution, cuda="12.6", cudnn="9.5.1", local_version="cu126", driver=driver)
    found = _findings(sound.name, replace(sound.plan, resolution=promised), "C01,C02", flags=("--shm-size=1g",))
    assert found["C01.cuda"] == ("FAIL", "CPU_BUILD_INSTALLED")
    assert found["C02.libraries"] == ("FAIL", "NO_CUDA_LIBRARY")
    assert found["C01.cudnn"][0] == "FAIL"
    assert found["S00"] == ("FAIL", "PLAN_MISMATCH")


def test_a_torchvision_of_another_torch(sound: Image) -> None:
    site = "/opt/env/lib/python3.11/site-packages"
    image = sound.layer(
        f"RUN mkdir {site}/torchvision {site}/torchvision-0.1.dist-info"
        f" && echo '__version__ = \"0.1\"' > {site}/torchvision/__init__.py"
        f" && printf 'Metadata-Version: 2.1\\nName: torchvision\\nVersion: 0.1\\n'"
        f" > {site}/torchvision-0.1.dist-info/METADATA"
    )
    plan = replace(sound.plan, resolution=replace(sound.plan.resolution, torchvision="0.28.0"))
    assert _findings(image, plan, "C01", flags=("--shm-size=1g",))["C01.torchvision"] == ("FAIL", "TORCHVISION_BROKEN")
    absent = _findings(sound.name, plan, "C01", flags=("--shm-size=1g",))
    assert absent["C01.torchvision"] == ("FAIL", "TORCHVISION_MISSING")


def test_root_another_entry_point_and_a_foreign_label(sound: Image) -> None:
    image = sound.layer('ENTRYPOINT ["/bin/false", "/usr/share/envkit/entry.sh"]')
    found = _findings(image, sound.plan, "C00", flags=("--shm-size=1g",))
    assert found["S05"] == ("FAIL", "ENTRYPOINT_BROKEN")
    labelled = _findings(
        sound.layer("LABEL io.github.envkit.plan=sha256:" + 64 * "0"), sound.plan, "C00", flags=("--shm-size=1g",)
    )
    assert labelled["S00"] == ("FAIL", "PLAN_MISMATCH")


def test_an_image_without_a_compiler_is_told_where_one_was_wanted(sound: Image) -> None:
    for wanted, verdict in (("optional", "WARN"), ("required", "FAIL")):
        plan = replace(sound.plan, smoke=replace(sound.plan.smoke, compile=wanted))
        found = _findings(sound.name, plan, "C18", flags=("--shm-size=1g",), tier="standard")
        assert found["C18.inductor"] == (verdict, "NO_COMPILER"), found


# Appended to torch itself: what it says of itself stays, what it does changes.
BREAKS: dict[str, tuple[str, dict[str, tuple[str, str | None]]]] = {
    "precision": (
        """
        exact = Tensor.__matmul__
        def product(a, b):
            return exact(a, b) if a.dtype != float32 else exact(a.bfloat16(), b.bfloat16()).float()
        Tensor.__matmul__ = product
        """,
        {"C05.fp32": ("FAIL", "PRECISION_OVERRIDDEN")},
    ),
    "convolution": (
        """
        exact = nn.functional.conv2d
        def convolved(images, weights, **options):
            return exact(images, weights, **options) * (1.001 if images.dtype == float32 else 1)
        nn.functional.conv2d = convolved
        """,
        {"C06.fp32": ("FAIL", "PRECISION_OVERRIDDEN"), "C05.fp32": ("PASS", None)},
    ),
    "unsteady": (
        """
        exact = Tensor.__matmul__
        def product(a, b):
            return exact(a, b) if a.dtype != float32 else exact(a, b) * (1 + 1e-3 * rand(1))
        Tensor.__matmul__ = product
        """,
        {"C07.gemm.fp32": ("FAIL", "NONDETERMINISTIC_GEMM")},
    ),
    "samples": (
        """
        import torch.utils.data
        torch.utils.data.SequentialSampler.__iter__ = lambda self: iter([0] * len(self.data_source))
        """,
        {"C12.order.nw0": ("FAIL", "SAMPLES_WRONG"), "C12.order.nw2": ("FAIL", "SAMPLES_WRONG")},
    ),
    "autocast": (
        """
        autocast.__enter__ = autocast.__exit__ = lambda self, *rest: None
        """,
        {"C14.dtypes.bf16": ("FAIL", "AMP_INERT"), "C16.batch512": ("PASS", None)},
    ),
    "gradients": (
        """
        inference_mode.__enter__ = inference_mode.__exit__ = lambda self, *rest: None
        """,
        {"C17.no_grad": ("PASS", None), "C17.inference_mode": ("FAIL", "TENSORS_SAVED")},
    ),
    "truncated": (
        """
        whole = load
        def load(*arguments, **options):
            state = whole(*arguments, **options)
            state["model"] = {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in state["model"].items()}
            return state
        """,
        {"C19.state": ("FAIL", "STATE_CHANGED"), "C19.activations": ("PASS", None)},
    ),
    "collectives": (
        """
        import torch.distributed
        torch.distributed.all_reduce = lambda *arguments, **options: None
        """,
        {"C20.allreduce.gloo": ("FAIL", "COLLECTIVE_WRONG")},
    ),
    "numpy": (
        """
        def from_numpy(array):
            raise RuntimeError("Numpy is not available")
        tensor = from_numpy
        """,
        {"C01.numpy": ("FAIL", "NUMPY_ABI")},
    ),
}


def _appended(sound: Image, code: str) -> str:
    packed = base64.b64encode(textwrap.dedent(code).encode()).decode()
    return sound.layer(f"RUN echo {packed} | base64 -d >> {TORCH}")


@pytest.mark.parametrize("name", BREAKS)
def test_a_torch_that_does_something_else(sound: Image, name: str) -> None:
    code, expected = BREAKS[name]
    image = _appended(sound, code)
    checks = ",".join(sorted({check.partition(".")[0] for check in expected}))
    found = _findings(image, sound.plan, checks, flags=("--shm-size=1g",))
    assert {check: found.get(check) for check in expected} == expected, found


def test_a_loader_that_starves_the_training(sound: Image) -> None:
    slow = """
    import time, torch.utils.data._utils.fetch as fetching
    fetch = fetching._MapDatasetFetcher.fetch
    fetching._MapDatasetFetcher.fetch = lambda self, batch: (time.sleep(0.3), fetch(self, batch))[1]
    """
    found = _checks(_appended(sound, slow), sound.plan, "C23", flags=("--shm-size=1g",))["C23.training"]
    # On a CPU, which the loader shares, it is named and advised and no warning; a busy machine makes it inconclusive.
    assert found["verdict"] in ("PASS", "INCONCLUSIVE"), found
    assert found["derived"]["bottleneck"] == "data"
    assert found["derived"]["starved_share"] > 0.5


def test_a_slower_torch_is_no_equal(sound: Image) -> None:
    slow = """
    linear = nn.functional.linear
    nn.functional.linear = lambda *rest: [linear(*rest) for _ in range(6)][-1]
    """
    argv = [sys.executable, "-m", "envkit", "compare", sound.name, _appended(sound, slow), "--runner", "docker"]
    done = subprocess.run(
        [*argv, "--only", "C14", "--launches", "5", "--json", "-"], check=False, capture_output=True, text=True
    )
    assert done.returncode in (5, 7), done.stderr  # inconclusive where the machine is busy, never "no slower"
    verdicts = {one["change"] for one in json.loads(done.stdout)["metrics"]}
    assert "IMPROVEMENT" not in verdicts
    assert done.returncode == 5 or "REGRESSION" in verdicts


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(Path(tmp_path_factory.mktemp("state"))))
        yield
