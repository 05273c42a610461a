from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envkit.doctor.images.contents import LayerSize, read_contents
from envkit.doctor.images.diagnose import diagnose_image
from envkit.doctor.images.rules import LARGE_LAYER, of_contents, of_versions
from envkit.doctor.model import Diagnosis, Severity
from envkit.facts.load import load
from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.ground.progress import Silent
from envkit.image.name import InLayout, image_name
from envkit.image.opening import open_file
from tests.support.file_images import Packed, entry, packed, write_layout
from tests.support.plans import shipped_plan

SITE = "opt/conda/lib/python3.11/site-packages"
SOUND = {"User": "1000:1000", "Env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]}


def layer(files: Mapping[str, int | bytes], *links: tuple[str, str]) -> Packed:
    """A layer of files, by size or content, and of links."""
    made = [
        (entry(name), content if isinstance(content, bytes) else b"\0" * content) for name, content in files.items()
    ]
    made += [(entry(name, tarfile.SYMTYPE, target=target), b"") for name, target in links]
    return packed(made)


def wheel(name: str, version: str) -> str:
    return f"{SITE}/{name}-{version}.dist-info/METADATA"


def diagnosed(tmp_path: Path, *layers: Packed, config: Mapping[str, Any] | None = None) -> Diagnosis:
    write_layout(tmp_path / "layout", layers, SOUND if config is None else config)
    return diagnose_image(image_name(f"oci:{tmp_path / 'layout'}"), "auto", Silent())


def ids(found: Diagnosis) -> list[str]:
    return [one.id for one in found.findings]


def test_a_sound_image_has_no_findings(tmp_path: Path) -> None:
    found = diagnosed(
        tmp_path,
        layer({wheel("torch", "2.7.1+cu126"): 1, wheel("nvidia_cudnn_cu12", "9.5.1.17"): 1}),
        layer({f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9": 10, f"{SITE}/nvidia/cudnn/lib/libcudnn_ops.so.9": 10}),
    )
    assert (ids(found), found.exit_code, found.conclusion) == ([], 0, "no problems found")
    facts = dict(found.sections[0].facts)
    assert (facts["torch"], facts["made for"], facts["user"]) == ("2.7.1+cu126", "CUDA", "1000:1000")


def test_two_cudnns_in_two_layers_are_an_error(tmp_path: Path) -> None:
    found = diagnosed(
        tmp_path,
        layer({"usr/lib/libcudnn.so.8.9.7": 10}, ("usr/lib/libcudnn.so.8", "libcudnn.so.8.9.7")),
        layer({f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9": 10, "opt/conda/pkgs/cudnn-9/lib/libcudnn.so.9": 10}),
    )  # fmt: skip
    assert (ids(found), found.exit_code) == (["two-cudnn"], 6)
    assert [one.text for one in found.findings[0].evidence] == [
        f"/{SITE}/nvidia/cudnn/lib/libcudnn.so.9", "/usr/lib/libcudnn.so.8.9.7",
    ]  # fmt: skip


@pytest.mark.parametrize("mark", ["usr/lib/.wh.libcudnn.so.8", "usr/.wh.lib", "usr/lib/.wh..wh..opq"])
def test_what_a_later_layer_removes_is_not_there(tmp_path: Path, mark: str) -> None:
    found = diagnosed(
        tmp_path,
        layer({"usr/lib/libcudnn.so.8": 10}),
        layer({mark: 0, f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9": 10}),
    )
    assert ids(found) == []


def test_credentials_stay_although_they_were_removed(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, layer({"root/.netrc": b"machine x"}), layer({"root/.wh..netrc": 0}))
    assert ids(found) == ["credentials"]
    assert found.findings[0].evidence[0].text == "/root/.netrc"
    assert "machine x" not in str(found.to_json())


def test_files_of_the_driver_do_not_belong_into_an_image(tmp_path: Path) -> None:
    found = diagnosed(
        tmp_path,
        layer({
            "usr/lib/libcuda.so.535.104.05": 1, "usr/local/cuda-12.4/compat/libcuda.so.550.54.15": 1,
            "usr/local/cuda-12.4/lib64/stubs/libcuda.so": 1,
        }),
    )  # fmt: skip
    assert ids(found) == ["libcuda-in-image", "cuda-compat"]
    assert len(found.findings[0].evidence) == 1


def test_a_cpu_build_in_a_cuda_image_is_an_error(tmp_path: Path) -> None:
    config = {**SOUND, "Env": [*SOUND["Env"], "CUDA_VERSION=12.4.1"]}
    assert ids(diagnosed(tmp_path / "a", layer({wheel("torch", "2.7.1+cpu"): 1}), config=config)) == ["cpu-build"]
    conda = "opt/conda/conda-meta/pytorch-2.5.1-cpu_mkl_py311_h0b1de8e_104.json"
    assert ids(diagnosed(tmp_path / "b", layer({conda: 1}), config=config)) == ["cpu-build"]
    assert ids(diagnosed(tmp_path / "c", layer({wheel("torch", "2.7.1+cpu"): 1}))) == []


def test_versions_that_do_not_fit_are_told_by_the_facts(tmp_path: Path) -> None:
    pair = layer(
        {wheel("torch", "2.2.1+cu121"): 1, wheel("torchvision", "0.17.1+cu118"): 1, wheel("numpy", "2.1.0"): 1}
    )
    assert ids(diagnosed(tmp_path, pair)) == ["torchvision-pair", "numpy2"]
    assert not list(of_versions({"torch": "2.7.1", "numpy": "2.1.0", "setuptools": "80.1"}, load()))
    assert [one.id for one in of_versions({"torch": "2.12.0", "setuptools": "82.0"}, load())] == ["setuptools-pin"]
    assert not list(of_versions({"torch": "2.8.0a0+git"}, load()))


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (["CUDA_VERSION=12.4.1"], ["no-visible-devices"]),
        (["CUDA_VERSION=12.4.1", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"], ["no-compute"]),
        (["NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=x", "NVIDIA_VISIBLE_DEVICES=all"], ["driver-requirement"]),
        (["NVIDIA_REQUIRE_CUDA=cuda>=12.4", "NVIDIA_VISIBLE_DEVICES=all"], ["driver-requirement"]),
        (["NVIDIA_REQUIRE_CUDA=cuda>=12.6 driver>=525.60.13", "NVIDIA_VISIBLE_DEVICES=all"], []),
        (["NVIDIA_REQUIRE_CUDA=driver>=525.60.13 cuda>=12.6", "NVIDIA_VISIBLE_DEVICES=all"], []),
        (["NVIDIA_REQUIRE_CUDA=cuda>=12.6,driver>=525.60.13", "NVIDIA_VISIBLE_DEVICES=all"], ["driver-requirement"]),
        (
            ["NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471", "NVIDIA_VISIBLE_DEVICES=all"],
            ["driver-requirement"],
        ),
        (["NVIDIA_REQUIRE_CUDA=cuda>=12.04", "NVIDIA_VISIBLE_DEVICES=all"], ["requirement-unread"]),
        (["LD_LIBRARY_PATH=/usr/local/cuda/lib64:/x/stubs"], ["cuda-stubs", "ld-library-path"]),
        (["LD_PRELOAD=/x.so"], ["env-shadows"]),
        (["NVIDIA_DISABLE_REQUIRE=1"], ["driver-check-disabled"]),
        ([], []),
    ],
)
def test_variables_that_mislead_are_found(tmp_path: Path, env: list[str], expected: list[str]) -> None:
    found = diagnosed(tmp_path, layer({"etc/os-release": 1}), config={"User": "1000:1000", "Env": env})
    assert ids(found) == expected


def test_the_requirement_of_a_plan_of_this_envkit_starts_by_compatibility(tmp_path: Path) -> None:
    """The variable has alternatives; its first one alone was read, and said what is not so."""
    env = [f"{name}={value}" for name, value in shipped_plan("cu126").env]
    assert any(" driver>=" in one for one in env)
    found = diagnosed(tmp_path, layer({"etc/os-release": 1}), config={"User": "1000:1000", "Env": env})
    assert "driver-requirement" not in ids(found)


def test_a_requirement_names_its_lowest_cuda_and_the_brands(tmp_path: Path) -> None:
    env = ["NVIDIA_REQUIRE_CUDA=cuda>=12.8 cuda>=12.4,brand=tesla", "NVIDIA_VISIBLE_DEVICES=all"]
    found = diagnosed(tmp_path, layer({"etc/os-release": 1}), config={"User": "1000:1000", "Env": env})
    (title,) = (one.title for one in found.findings if one.id == "driver-requirement")
    assert title.startswith("the container starts only where the driver runs CUDA 12.8 natively, or on data center")


def test_root_and_conda_defaults_are_warned_of(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, layer({"opt/conda/.condarc": b"channels: [defaults]\n"}), config={})
    assert ids(found) == ["runs-as-root", "anaconda-defaults"]
    assert {one.severity for one in found.findings} == {Severity.WARN}
    assert found.exit_code == 0


def test_size_is_explained(tmp_path: Path) -> None:
    folder = tmp_path / "layout"
    big = {"opt/conda/pkgs/a-1.conda": 30_000_000, "root/.cache/pip/x": 30_000_000}
    twice = {
        f"{SITE}/nvidia/cublas/lib/libcublasLt.so.12": 60_000_000,
        "usr/local/cuda-12.4/lib64/libcublasLt.so.12.4": 60_000_000,
    }
    write_layout(folder, [layer({**big, **twice})])
    contents = read_contents(open_file(InLayout(path=folder), Silent()), Silent())
    contents.layers.append(LayerSize(diff_id="sha256:" + "a" * 64, tar=1, blob=LARGE_LAYER + 1))
    found = list(of_contents(contents, cuda=False))
    assert [one.id for one in found] == ["cuda-twice", "caches-left", "large-layer"]
    assert found[0].title == "CUDA is in the image twice, which takes 60.0 MB"
    assert found[1].title == "leftover caches take 60.0 MB"


@pytest.mark.parametrize("name", ["", " "])
def test_a_name_that_is_none_asks_no_engine(name: str) -> None:
    with pytest.raises(UsageError, match="--image is empty"):
        diagnose_image(image_name(name), "auto", Silent())


def test_images_that_are_not_there_or_damaged_are_errors(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no image"):
        diagnose_image(image_name(f"docker-archive:{tmp_path / 'nothing.tar'}"), "auto", Silent())
    made = layer({"x": 1})
    write_layout(tmp_path, [made], {})
    (tmp_path / "blobs" / "sha256" / hashlib.sha256(made.data).hexdigest()).write_bytes(b"\0" * len(made.data))
    with pytest.raises(IntegrityError):
        diagnose_image(image_name(f"oci:{tmp_path}"), "auto", Silent())
