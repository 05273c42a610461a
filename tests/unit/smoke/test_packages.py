"""A package's modules and libraries, from the lists of files that real wheels have."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

packages: Any = import_module("envkit.smoke.packages")
elf: Any = import_module("envkit.smoke.elf")


def package(name: str, *files: str, root: str = "/nowhere", requires: tuple[str, ...] = ()) -> Any:
    return packages.Package(name, "1.0", root, lambda: list(files), requires=requires)


@pytest.mark.parametrize(
    ("name", "files", "modules"),
    [
        ("Pillow", ["PIL/__init__.py", "PIL/Image.py", "pillow.libs/libjpeg-1a2b3c4d.so.62"], ["PIL"]),
        ("scikit-learn", ["sklearn/__init__.py", "scikit_learn.libs/libgomp-1a2b3c4d.so.1.0.0"], ["sklearn"]),
        ("opencv-python", ["cv2/__init__.py", "cv2/cv2.abi3.so", "../../../bin/x.py"], ["cv2"]),
        ("PyYAML", ["yaml/__init__.py", "_yaml/__init__.py"], ["yaml"]),
        ("six", ["six.py", "six-1.17.0.dist-info/METADATA"], ["six"]),
        ("google-cloud-storage", ["google/cloud/storage/__init__.py", "google/cloud/_storage_v2/__init__.py"],
         ["google.cloud.storage"]),
        ("protobuf", ["google/protobuf/__init__.py", "google/_upb/_message.abi3.so"], ["google.protobuf"]),
        ("nvidia-cublas-cu12", ["nvidia/cublas/lib/libcublas.so.12"], []),
        ("nvidia-dali-cuda120", ["nvidia/dali/__init__.py", "nvidia/dali/libdali.so"], ["nvidia.dali"]),
        ("torch", ["torch/__init__.py", "functorch/__init__.py", "torchgen/__init__.py", "torch/lib/libtorch.so"],
         ["torch", "functorch", "torchgen"]),
        ("setuptools", ["pkg_resources/__init__.py", "setuptools/__init__.py", "_distutils_hack/__init__.py"],
         ["setuptools", "pkg_resources"]),
        ("types-requests", ["requests-stubs/__init__.pyi"], []),
        ("thop", ["thop/__init__.py", "tests/__init__.py", "docs/conf.py"], ["thop"]),
        ("cffi", ["_cffi_backend.cpython-312-x86_64-linux-gnu.so", "cffi/__init__.py"], ["cffi"]),
        ("only-private", ["_hidden/__init__.py"], ["_hidden"]),
        ("namespace-modules", ["company/tools/one.py", "company/tools/deep/two.py"], ["company.tools.one"]),
        ("tini", ["bin/tini"], []),
        ("scripts-only", ["../../../bin/tool", "tool-1.0.data/scripts/tool.py"], []),
    ],
)  # fmt: skip
def test_the_modules_of_a_package(
    monkeypatch: pytest.MonkeyPatch, name: str, files: list[str], modules: list[str]
) -> None:
    suffixes = [".cpython-312-x86_64-linux-gnu.so", ".abi3.so", ".so", ".py", ".pyc"]
    monkeypatch.setattr(packages.machinery, "all_suffixes", lambda: suffixes)
    assert package(name, *files).modules() == modules


def test_the_need_of_torch_is_followed_through_other_packages_and_not_through_extras() -> None:
    table = {
        "timm": package("timm", requires=("torch", "torchvision")),
        "open-clip-torch": package("open_clip_torch", requires=("timm>=1.0; python_version > '3.8'", "ftfy")),
        "ftfy": package("ftfy", requires=("wcwidth", "ftfy")),
        "datasets": package("datasets", requires=('torch>=2.0; extra == "torch"', 'x;extra=="torch"')),
    }
    answers = {
        name: packages.requires_torch(name, table) for name in ("Open_CLIP.torch", "timm", "ftfy", "datasets", "no")
    }
    assert answers == {"Open_CLIP.torch": True, "timm": True, "ftfy": False, "datasets": False, "no": False}


def test_a_conda_package_lists_its_files_for_its_python_or_for_every(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.sys, "version_info", (3, 12, 1, "final", 0))
    meta = tmp_path / "conda-meta"
    meta.mkdir()
    files = {
        "pytorch-2.5.1-cuda126_py312h0_0": ["lib/python3.12/site-packages/torch/__init__.py", "lib/libtorch.so"],
        "einops-0.8.0-pyhd8ed1ab_0": ["site-packages/einops/__init__.py"],
        "tini-0.19.0-h166bdaf_1": ["bin/tini"],
        "broken-1-0": None,
    }
    for name, listed in files.items():
        (meta / f"{name}.json").write_text("{" if listed is None else json.dumps({"files": listed}))
    (meta / "history").write_text("")
    found = packages.of_conda(str(tmp_path))
    assert {name: (item.version, item.modules()) for name, item in found.items()} == {
        "pytorch": ("2.5.1", ["torch"]),
        "einops": ("0.8.0", ["einops"]),
        "tini": ("0.19.0", []),
        "broken": ("1", []),
    }


def test_a_missing_library_is_one_that_no_folder_and_no_package_has(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(elf.planted("libGL.so.1"))
    (tmp_path / "b.so").write_bytes(elf.planted("libxcb.so.1"))
    (tmp_path / "c.so").write_bytes(b"\x7fELF\x02\x01")
    (tmp_path / "d.so.1").write_text("no library")
    found = package("opencv-python", "a.so", "b.so", "c.so", "d.so.1", "gone.so", root=str(tmp_path))
    assert packages.missing(found, {"libxcb.so.1"}) == {"libGL.so.1": "a.so"}
    assert packages.missing(found, set()) == {"libGL.so.1": "a.so", "libxcb.so.1": "b.so"}


def test_a_library_that_a_module_needs_is_told_from_one_of_a_plug_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        packages.machinery, "EXTENSION_SUFFIXES", [".cpython-312-x86_64-linux-gnu.so", ".abi3.so", ".so"]
    )
    for name in ("a-plugin.so", "Widgets.abi3.so", "libplugin.so"):
        (tmp_path / name).write_bytes(elf.planted("libGL.so.1"))
    found = package("qt", "a-plugin.so", "libplugin.so", "Widgets.abi3.so", root=str(tmp_path))
    assert packages.missing(found, set()) == {"libGL.so.1": "Widgets.abi3.so"}
    assert [packages.is_module(name) for name in ("Widgets.abi3.so", "libplugin.so")] == [True, False]


@pytest.mark.parametrize("size", [0, 10, 64, 200, 260, 300])
def test_a_library_that_is_cut_off_needs_nothing(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.so").write_bytes(elf.planted("libGL.so.1")[:size])
    assert [name for name in elf.needed(str(tmp_path / "a.so")) if name not in "libGL.so.1"] == []


def test_a_folder_and_a_pipe_are_no_libraries(tmp_path: Path) -> None:
    assert elf.needed(str(tmp_path)) == []
    assert elf.needed(str(tmp_path / "absent")) == []


@pytest.mark.parametrize(
    ("soname", "needs"),
    [
        ("libcublas.so.12", {"libcublas": {"12": "a.so"}}),
        ("libcublasLt.so.13", {"libcublasLt": {"13": "a.so"}}),
        ("libcudart.so.11.0", {"libcudart": {"11.0": "a.so"}}),
        ("libnvrtc.so.11.2", {"libnvrtc": {"11.2": "a.so"}}),
        ("libcudnn_ops.so.9", {"libcudnn_ops": {"9": "a.so"}}),
        ("libcudart.3eda8113.so.13", {}),  # a copy that a wheel contains
        ("libcuda.so.1", {}),  # the driver's
        ("libcurl.so.4", {}),
        ("libcudart.so", {}),
    ],
)
def test_the_libraries_of_cuda_that_a_package_needs(tmp_path: Path, soname: str, needs: dict[str, Any]) -> None:
    (tmp_path / "a.so").write_bytes(elf.planted(soname))
    assert packages.cuda_needs(package("demo", "a.so", root=str(tmp_path))) == needs


def test_the_libraries_of_cuda_that_an_image_has() -> None:
    names = {"libcublas.so.12", "libcublas.so.12.6.4.1", "libcudart-80664282.so.10.2", "libcudart.so", "libc.so.6"}
    assert packages.cuda_versions(names) == {"libcublas": ["12", "12.6.4.1"], "libcudart": ["10.2"]}
