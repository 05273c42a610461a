"""The driver and GPUs of recorded machines, through a real library, a real program and real files."""

import json
import os
import shlex
import shutil
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envkit import api
from envkit.cli import main
from envkit.facts.load import load
from envkit.ground import nvidia, strictyaml
from envkit.ground.errors import EnvironmentProblem
from envkit.pipeline import installing
from tests.support.standin import build_driver

RECORDINGS = Path(__file__).with_name("recordings")
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.yaml"))
LIBRARY = "libnvidia-ml.so.1"
WINDOWS = "usr/lib/wsl/lib"
READ = nvidia.read
PATIENCE_S = 60.0  # a busy machine is slow to start a process; a test of the limit has a shorter one

Put = Callable[..., Path]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    return build_driver(compiler, tmp_path_factory.mktemp("driver"))


@pytest.fixture
def put(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Set a recording up as this machine; returns the folder that stands for /."""

    def put(recording: dict[str, Any], *, nvml: bool = True, smi: bool = True) -> Path:
        root, libraries, programs = (tmp_path / name for name in ("root", "lib", "bin"))
        for folder in (root, libraries, programs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for name, text in recording["files"].items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        place = root / WINDOWS if recording.get("windows") else libraries
        place.mkdir(parents=True, exist_ok=True)
        # Without NVML, the loader finds no library here, and one of this machine would be the wrong one.
        (place / LIBRARY).symlink_to(driver if nvml else tmp_path / "missing")
        for name in [name for name in os.environ if name.startswith("STANDIN_")]:
            monkeypatch.delenv(name)
        for name, value in recording["nvml"].items():
            monkeypatch.setenv(name, str(value))
        if smi:
            (programs / "nvidia-smi").write_text(_script(recording["smi"]))
            (programs / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setattr(nvidia, "read", partial(READ, root, patience_s=PATIENCE_S))
        return root

    return put


def _script(answers: dict[str, dict[str, Any]]) -> str:
    cases = [
        f"--query-gpu={fields}) printf %s {shlex.quote(answer['text'])}; exit {answer.get('code', 0)};;"
        for fields, answer in answers.items()
    ]
    return "\n".join(["#!/bin/sh", 'case "$1" in', *cases, "esac", "exit 2", ""])


def recorded(name: str) -> dict[str, Any]:
    tree = strictyaml.read_file(RECORDINGS / f"{name}.yaml")
    assert isinstance(tree, dict)
    return tree


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.run(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_kind_of_machine_is_recorded() -> None:
    assert NAMES == ["data_center", "desktop", "mig", "no_driver", "version_mismatch", "vgpu", "wsl2"]


@pytest.mark.parametrize("source", ["nvml", "smi", "proc"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_machine_answers(name: str, source: str, put: Put) -> None:
    recording = recorded(name)
    put(recording, nvml=source == "nvml", smi=source != "proc")
    found, expected = nvidia.read(), recording["found"][source]
    assert (str(found), list(found.notes)) == (expected["text"], expected.get("notes", []))


@pytest.mark.parametrize("name", NAMES)
def test_here_is_what_was_found(name: str, put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recorded(name)
    put(recording)
    notes = recording["found"]["nvml"].get("notes", [])
    typed = run(capsys, "resolve", "--gpu", "auto", "--driver", "auto", "--json")
    code, out, err = run(capsys, "resolve", "--here", "--json")
    assert (code, out, err) == typed
    if "error" in recording:
        hint = "use --driver with the version of the machine that will run the image, such as --driver 550.54.15"
        assert (code, out) == (9, "")
        assert err == "\n".join(
            [f"error: {recording['error']}", *(f"  {note}" for note in notes), "", f"hint: {hint}\n"]
        )
        return
    assert err == "".join(f"note: {note}\n" for note in notes)
    gpus = [word for gpu in recording["gpus"] for word in ("--gpu", gpu)]
    named = run(capsys, "resolve", *gpus, "--driver", recording["driver"], "--json")
    assert (code, out) == named[:2]
    assert [word for word in (*recording["gpus"], recording["driver"]) if word not in out] == []


def test_verbose_says_what_was_found(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    put(recorded("desktop"))
    _, _, err = run(capsys, "resolve", "--here", "-v")
    assert err.splitlines()[0] == f"note: this machine: {recorded('desktop')['found']['nvml']['text']}"
    assert run(capsys, "resolve", "--here")[2] == ""


def test_commands_to_try_name_what_was_found(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    put(recorded("mig"))
    code, _, err = run(capsys, "resolve", "--here", "--torch", "2.12")
    tried = [line for line in err.splitlines() if line.lstrip().startswith(("try:", "hint:"))]
    assert (code, len(tried) > 1, "auto" in err) == (3, True, False)
    assert all("--gpu A100-SXM4-40GB --driver " in line for line in tried)
    words = shlex.split(tried[-1].partition("envkit ")[2])
    assert run(capsys, *words)[0] == 0


def test_forward_compatibility_is_for_the_product_that_was_found(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("resolve", "--here", "--allow-forward-compat", "--cuda", "13.0", "--json")
    put(recorded("data_center"))
    code, out, _ = run(capsys, *wanted)
    assert (code, json.loads(out)["driver"]["mode"]) == (0, "forward-compatible")
    assert run(capsys, *(word for word in wanted if word != "--allow-forward-compat"))[0] == 3
    for name, why in (
        ("desktop", "GeForce RTX 4090 (sm_89) is not in NVIDIA's list of them"),
        ("vgpu", "such as A100, not sm_80"),
        ("wsl2", "such as A100, not sm_86"),
    ):
        put(recorded(name))
        code, _, err = run(capsys, *wanted)
        assert (code, why in err) == (3, True), err


def test_install_and_notebooks_ask_in_the_same_way(put: Put, tmp_path: Path) -> None:
    put(recorded("version_mismatch"))
    nothing = dict.fromkeys(("python", "platform", "os", "gpu", "driver", "cpu"))
    environment = installing.Environment(folder=tmp_path / "venv", version=None)
    notes: list[str] = []
    found = installing.resolution_here(nothing, environment, load(), notes.append)
    assert (found.gpus, notes) == (("8.6",), recorded("version_mismatch")["found"]["nvml"]["notes"])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert api.resolve(here=True).gpus == ("8.6",)
    assert [str(one.message) for one in warned] == notes
    put(recorded("no_driver"))
    with pytest.raises(EnvironmentProblem) as caught:
        installing.resolution_here(nothing, environment, load(), notes.append)
    assert caught.value.details == tuple(recorded("no_driver")["found"]["nvml"]["notes"])


# Libraries in trouble. nvidia-smi answers for the first GPU of the recording where it can.


@pytest.mark.parametrize(
    ("refused", "fault"),
    [
        ("nvmlInit_v2=4", "Insufficient Permissions (error 4)"),
        ("nvmlInit_v2=12", "Unknown Error (error 12)"),
        ("nvmlInit_v2=crash", "libnvidia-ml.so.1 crashed (signal 4)"),
        ("nvmlDeviceGetCount_v2=999", "Unknown Error (error 999)"),
    ],
)
def test_a_library_that_refuses_or_crashes(refused: str, fault: str, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put(recorded("vgpu"))
    monkeypatch.setenv("STANDIN_REFUSED", refused)
    found = nvidia.read()
    assert str(found) == recorded("vgpu")["found"]["smi"]["text"]
    assert found.notes == (f"NVML: {fault}; using nvidia-smi instead; run envkit doctor to find the cause",)


def test_a_count_that_no_machine_has(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put(recorded("vgpu"))
    monkeypatch.setenv("STANDIN_COUNT", "2147483647")
    assert nvidia.read().notes[0].startswith("NVML: it counts 2147483647 GPUs; using nvidia-smi instead")


def test_a_library_that_prints_is_read_all_the_same(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put(recorded("vgpu"))
    monkeypatch.setenv("STANDIN_REFUSED", "nvmlInit_v2=talk")
    assert str(nvidia.read()) == recorded("vgpu")["found"]["nvml"]["text"]


def test_a_library_that_hangs_is_given_up_and_so_is_nvidia_smi(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(recorded("vgpu"))
    monkeypatch.setenv("STANDIN_REFUSED", "nvmlInit_v2=hang")
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    began = time.monotonic()
    found = nvidia.read(patience_s=0.2)
    assert time.monotonic() - began < PATIENCE_S
    assert (str(found), (tmp_path / "asked").exists()) == (recorded("vgpu")["found"]["proc"]["text"], False)
    assert found.notes[0].startswith("NVML: no answer within 0.2 s; using /proc/driver/nvidia instead; ")


def test_a_file_that_is_no_library(put: Put, tmp_path: Path) -> None:
    put(recorded("vgpu"))
    (tmp_path / "lib" / LIBRARY).unlink()
    (tmp_path / "lib" / LIBRARY).write_bytes(b"\x7fELF")
    found = nvidia.read()
    assert found.source == "nvidia-smi"
    assert found.notes[0].startswith(f"NVML: {tmp_path}/lib/{LIBRARY}: file too short; ")


def test_in_wsl2_the_library_of_the_linux_driver_is_not_asked(put: Put, tmp_path: Path) -> None:
    put(recorded("wsl2"))
    (tmp_path / "lib" / LIBRARY).write_bytes(b"")
    assert (str(nvidia.read()), nvidia.read().notes) == (recorded("wsl2")["found"]["nvml"]["text"], ())


def test_a_gpu_that_is_lost_does_not_hide_the_others(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put(recorded("desktop"))
    for refused in ("nvmlDeviceGetHandleByIndex_v2@1=15", "nvmlDeviceGetName@1=15"):
        monkeypatch.setenv("STANDIN_REFUSED", refused)
        found = nvidia.read()
        assert [gpu.name for gpu in found.gpus] == ["NVIDIA GeForce RTX 4090"]
        assert found.notes == ("GPU 1 does not answer: GPU is lost (error 15); run envkit doctor to find the cause",)


def test_mig_mode_without_a_mig_device_is_noted(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put(recorded("mig"))
    monkeypatch.setenv("STANDIN_SLICES", "")
    (note,) = nvidia.read().notes
    assert note == (
        "GPU 0 (NVIDIA A100-SXM4-40GB) is in MIG mode and has no MIG device, so CUDA programs do not see it; "
        "nvidia-smi mig -lgip lists the devices that it can have"
    )


@pytest.mark.parametrize("path", ["", "lib", "."])
def test_no_library_and_no_program_of_the_current_folder_is_used(
    path: str, put: Put, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that are empty or relative mean the current folder to the loader and to the shell."""
    put(recorded("desktop"), nvml=False)
    checkout = tmp_path / "checkout"
    (checkout / path).mkdir(parents=True)
    shutil.copy(driver, checkout / path / LIBRARY)
    program = checkout / path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{path}:{os.environ['LD_LIBRARY_PATH']}")
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    assert (nvidia.read().source, (tmp_path / "ran").exists()) == ("nvidia-smi", False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(program.parent))
    assert nvidia.read().source == "NVML"


def test_no_code_of_the_user_runs_in_the_process_that_asks(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(recorded("desktop"))
    for name in ("sitecustomize.py", "json.py", "ctypes.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert nvidia.read().source == "NVML"
    assert not (tmp_path / "ran").exists()
