"""What a container gets of the host's GPUs, from a CDI specification or from the loader's cache."""

import re
from typing import Any

import pytest

from envkit.ground import strictyaml
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.run.rootless.gpu_devices import driver_libraries, from_cdi, from_loader, gpu_minors, loader_links

CDI = """
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: "1"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
      hostPath: /dev/other1
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  - EXTRA=a=b
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, create-symlinks, --link, libcuda.so.1::/usr/lib64/libcuda.so]
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib64]
  mounts:
  - hostPath: /usr/lib64/libcuda.so.550.54.14
    containerPath: /usr/lib64/libcuda.so.550.54.14
    options: [ro, nosuid, nodev, bind]
  - hostPath: /usr/bin/nvidia-smi
    containerPath: /usr/bin/nvidia-smi
"""
LISTING = """3 libs found in cache `/etc/ld.so.cache'
\tlibz.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libz.so.1
\tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-container.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-container.so.1
\tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /usr/local/cuda/compat/libcuda.so.1
"""
DEV = ("null", "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps")


def loader(gpus: str, *, listing: str = LISTING, dev: tuple[str, ...] = DEV) -> Any:
    return from_loader(
        listing, dev, gpus, machine="x86_64", minors={"GPU-1": 1}, folder="/usr/lib64", tool="/usr/bin/nvidia-smi"
    )


def test_a_cdi_specification_is_followed() -> None:
    edits = from_cdi(strictyaml.read(CDI, "nvidia.yaml"), "all")
    assert edits.devices == (
        ("/dev/nvidia0", "/dev/nvidia0"), ("/dev/nvidia1", "/dev/nvidia1"), ("/dev/nvidiactl", "/dev/nvidiactl"),
    )  # fmt: skip
    assert ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi") in edits.mounts
    assert edits.libraries == ("/usr/lib64/libcuda.so.550.54.14",)
    assert edits.links == {"/usr/lib64/libcuda.so": "libcuda.so.1"}
    assert edits.env == {"EXTRA": "a=b"}


def test_single_gpus_can_be_asked_for() -> None:
    edits = from_cdi(strictyaml.read(CDI, "nvidia.yaml"), "1")
    assert ("/dev/other1", "/dev/nvidia1") in edits.devices
    assert not [path for _, path in edits.devices if path == "/dev/nvidia0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CDI.replace("nvidia.com/gpu", "amd.com/gpu"), "not for nvidia.com/gpu"),
        (CDI.replace("/dev/nvidiactl", "dev/nvidiactl"), "invalid path: 'dev/nvidiactl'"),
        (CDI.replace("containerPath: /usr/bin/nvidia-smi", "containerPath: /usr/../../etc/passwd"), "invalid path"),
        ("kind: nvidia.com/gpu", "has no GPU"),
        ("[]", "not for nvidia"),
    ],
)
def test_odd_specifications_are_refused(text: str, said: str) -> None:
    with pytest.raises(EnvironmentProblem, match=said):
        from_cdi(strictyaml.read(text, "nvidia.yaml"), "all")


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="there is no GPU 7 here") as caught:
        from_cdi(strictyaml.read(CDI, "nvidia.yaml"), "0,7")
    assert caught.value.hint == "--gpus all, or any of 0, 1, all"
    with pytest.raises(UsageError, match="there is no GPU GPU-9 here"):
        loader("GPU-9")


def test_without_a_specification_the_loaders_cache_tells() -> None:
    edits = loader("all")
    assert [path for path, _ in edits.devices] == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert edits.mounts == (
        ("/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
        ("/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.1"),
        ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
    )
    assert [path for path, _ in loader("GPU-1").devices][:2] == ["/dev/nvidia1", "/dev/nvidiactl"]


def test_no_gpu_and_no_driver_are_told_apart() -> None:
    with pytest.raises(EnvironmentProblem, match="has no /dev/nvidia0") as caught:
        loader("all", dev=("null",))
    assert "nvidia-container-toolkit" in str(caught.value.hint)
    with pytest.raises(EnvironmentProblem, match=re.escape("libcuda.so.1 is not in")):
        loader("all", listing="")


def test_libraries_of_another_architecture_are_left_out() -> None:
    assert driver_libraries(LISTING, "x86_64")["libcuda.so.1"] == "/lib/x86_64-linux-gnu/libcuda.so.1"
    assert driver_libraries(LISTING, "aarch64") == {}


def test_numbers_of_gpus_come_from_the_driver() -> None:
    text = "Model: \t\t NVIDIA X\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\n"
    assert gpu_minors([text, "nothing", "GPU UUID: GPU-2\nDevice Minor: x\n"]) == {"GPU-1": 3}


def test_links_lead_the_loader_to_libraries() -> None:
    found = loader_links((("/opt/nv/libcuda.so.550", "libcuda.so.1"), ("/a/x.so", ""), ("/l/y.so", "y.so")), "/l")
    assert found == {"/l/libcuda.so.1": "/opt/nv/libcuda.so.550"}
