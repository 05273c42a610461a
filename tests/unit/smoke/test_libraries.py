from __future__ import annotations

from importlib import import_module
from typing import Any

libraries: Any = import_module("envkit.smoke.libraries")


MAPS = """\
55d0-55d1 r--p 00000000 08:01 10 /opt/env/bin/python3.12
7f00-7f01 r-xp 00000000 08:01 11 /opt/env/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9
7f01-7f02 r--p 00001000 08:01 11 /opt/env/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9
7f02-7f03 r-xp 00000000 08:01 12 /usr/local/cuda/lib64/libcudnn.so.9 (deleted)
7f03-7f04 r-xp 00000000 08:01 13 /opt/env/lib/python3.8/site-packages/torch/lib/libcudart-80664282.so.10.2
7f04-7f05 r-xp 00000000 08:01 14 /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
7f05-7f06 rw-p 00000000 00:00 0
7f06-7f07 r-xp 00000000 08:01 15 /opt/my env/lib/libgomp-24e2ab19.so.1.0.0
7f07-7f08 rw-s 00000000 00:01 16 /dev/shm/torch_12_34
7fff-8000 r-xp 00000000 00:00 0 [vdso]
"""


def test_each_library_is_found_once_per_path_without_its_hash() -> None:
    found = libraries.loaded(MAPS)
    assert found["libcudart.so.10.2"] == ["/opt/env/lib/python3.8/site-packages/torch/lib/libcudart-80664282.so.10.2"]
    assert found["libcudnn.so.9"] == [
        "/opt/env/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
        "/usr/local/cuda/lib64/libcudnn.so.9",
    ]
    assert found["libgomp.so.1.0.0"] == ["/opt/my env/lib/libgomp-24e2ab19.so.1.0.0"]
    assert sorted(found) == ["libcuda.so.580.95.05", "libcudart.so.10.2", "libcudnn.so.9", "libgomp.so.1.0.0"]


def test_nothing_is_loaded_in_an_empty_map() -> None:
    assert libraries.loaded("") == {}


def test_families_are_told_by_the_beginning_of_the_name() -> None:
    found = {"libcudnn_ops.so.9": ["/a"], "libcrypt.so.1": ["/b"], "libnccl.so.2": ["/c"]}
    assert list(libraries.of_families(found, libraries.CUDA_FAMILIES)) == ["libcudnn_ops.so.9", "libnccl.so.2"]


def test_two_openmp_runtimes_are_two() -> None:
    loaded: dict[str, list[str]] = {"libgomp.so.1": [], "libgomp.so.1.0.0": [], "libiomp5.so": [], "libompstuff.so": []}
    assert libraries.openmp_runtimes(loaded) == ["libgomp", "libiomp5"]


TRACED = """\
5500-5501 r-xp 00000000 08:01 9 /tmp/prooted-7-abc (deleted)
5600-5601 r-xp 00000000 08:01 1 /var/tmp/envkit-0/runs/1/merged/opt/env/bin/python3.11
7f00-7f01 r-xp 00000000 08:01 2 /var/tmp/envkit-0/runs/1/merged/opt/env/lib/libcudnn.so.9
7f02-7f03 r-xp 00000000 08:01 3 /usr/lib/x86_64-linux-gnu/libcuda.so.1
"""


def test_a_root_that_the_kernel_does_not_know_is_taken_off() -> None:
    program = "/opt/env/bin/python3.11"
    root = libraries.root_of(TRACED, program)
    assert root == "/var/tmp/envkit-0/runs/1/merged"
    assert libraries.loaded(TRACED, root) == {
        "libcudnn.so.9": ["/opt/env/lib/libcudnn.so.9"],
        "libcuda.so.1": ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"],
    }


def test_a_root_that_the_kernel_knows_stays() -> None:
    both = TRACED + "5600-5601 r-xp 00000000 08:01 1 /opt/env/bin/python3.11\n"
    assert libraries.root_of(both, "/opt/env/bin/python3.11") == ""
    assert libraries.root_of(TRACED, "/opt/other/bin/python3.11") == ""
