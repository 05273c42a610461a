"""What a container gets of the host's GPUs, from a CDI specification or from the loader's cache."""

import re
from collections.abc import Mapping, Sequence

import pytest

from envkit.ground import strictyaml
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.run.rootless.gpu_devices import (
    DriverFiles,
    GpuEdits,
    check_present,
    driver_libraries,
    from_cdi,
    from_loader,
    gpu_minors,
    loader_links,
    mig_nodes,
)

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


UUIDS = {"GPU-1": 1}
SPECIFICATION = "/etc/cdi/nvidia.yaml"


def loader(
    gpus: str,
    *,
    listing: str = LISTING,
    dev: tuple[str, ...] = DEV,
    minors: Mapping[str, int] = UUIDS,
    slices: Mapping[int, Sequence[str]] | None = None,
) -> GpuEdits:
    driver = DriverFiles(minors=minors, slices=slices or {})
    return from_loader(
        listing, dev, gpus, machine="x86_64", driver=driver, folder="/usr/lib64", tool="/usr/bin/nvidia-smi"
    )


def cdi(gpus: str, text: str = CDI) -> GpuEdits:
    return from_cdi(strictyaml.read(text, "nvidia.yaml"), gpus, minors=UUIDS, path=SPECIFICATION)


def test_a_cdi_specification_is_followed() -> None:
    edits = cdi("all")
    assert edits.devices == (
        ("/dev/nvidia0", "/dev/nvidia0"), ("/dev/nvidia1", "/dev/nvidia1"), ("/dev/nvidiactl", "/dev/nvidiactl"),
    )  # fmt: skip
    assert ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi") in edits.mounts
    assert edits.libraries == ("/usr/lib64/libcuda.so.550.54.14",)
    assert edits.links == {"/usr/lib64/libcuda.so": "libcuda.so.1"}
    assert edits.env == {"EXTRA": "a=b"}


def test_single_gpus_can_be_asked_for() -> None:
    edits = cdi("1")
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
        cdi("all", text)


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"there is no GPU 7 in /etc/cdi/nvidia\.yaml") as caught:
        cdi("0,7")
    assert caught.value.hint == "--gpus all, or any of 0, 1, all"
    with pytest.raises(UsageError, match="there is no GPU GPU-9 here"):
        loader("GPU-9")


def test_a_uuid_that_a_specification_does_not_list_is_looked_up() -> None:
    assert cdi("GPU-1") == cdi("1")
    with pytest.raises(UsageError, match="there is no GPU GPU-9 in /etc/cdi/nvidia") as caught:
        cdi("0,GPU-9")
    assert "--device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["MIG-a1b2", "0:1"])
def test_a_mig_device_needs_a_specification(name: str) -> None:
    with pytest.raises(
        EnvironmentProblem, match=f"the MIG device {name} can be given to a container only by"
    ) as caught:
        loader(name)
    assert "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml" in str(caught.value.hint)


def test_without_the_drivers_folder_a_uuid_is_not_said_to_be_missing() -> None:
    with pytest.raises(EnvironmentProblem, match="which GPU GPU-9 is cannot be found out: /proc/driver/nvidia/gpus"):
        loader("GPU-9", minors={})
    assert loader("1", minors={}) == loader("1")


def test_the_mig_devices_of_a_gpu_are_given_with_it() -> None:
    slices = mig_nodes({0: ["DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n", ""], 1: ["x"]})
    assert slices == {0: ("/dev/nvidia-caps/nvidia-cap30",), 1: ()}
    assert [path for path, _ in loader("0", slices=slices).devices if "caps" in path] == list(slices[0])
    assert [path for path, _ in loader("1", slices=slices).devices if "caps" in path] == []


def test_a_gpu_that_is_named_twice_is_given_once() -> None:
    assert loader("1,1,GPU-1") == loader("1")


@pytest.mark.parametrize(
    ("missing", "said", "hint"),
    [
        ("/dev/nvidia-uvm", "/dev/nvidia-uvm is missing, and CUDA does not start", "nvidia-modprobe -u"),
        ("/dev/nvidiactl", "/dev/nvidiactl is missing, and CUDA does not start", "nvidia-modprobe -c 0"),
        ("/dev/nvidia1", "/dev/nvidia1 is missing", "nvidia-modprobe -c 0"),
    ],
)
def test_a_missing_device_file_is_named(missing: str, said: str, hint: str) -> None:
    with pytest.raises(EnvironmentProblem, match=said) as caught:
        check_present(loader("all", dev=tuple(name for name in DEV if f"/dev/{name}" != missing or name == "nvidia1")),
                      lambda path: path != missing, None)  # fmt: skip
    assert str(caught.value.hint).startswith(hint)


@pytest.mark.parametrize("missing", ["/dev/other1", "/usr/lib64/libcuda.so.550.54.14"])
def test_a_specification_that_is_older_than_the_machine_is_named(missing: str) -> None:
    with pytest.raises(EnvironmentProblem, match=f"{SPECIFICATION} lists {missing}, which this machine") as caught:
        check_present(cdi("all" if "lib" in missing else "1"), lambda path: path != missing, SPECIFICATION)
    assert caught.value.hint == f"nvidia-ctk cdi generate --output={SPECIFICATION}   # as root"


def test_a_library_that_not_every_program_needs_may_be_missing() -> None:
    check_present(cdi("all"), lambda path: "nvidia-smi" not in path, SPECIFICATION)


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
