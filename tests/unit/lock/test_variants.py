"""Of wheels of one version for several torches, CUDAs and C++ ABIs, only those for the image are left."""

import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from envkit.lock.abi import Page, claim_of_page
from envkit.lock.variants import Image, constraints
from envkit.lock.wheel_choice import ranks_of

RANKS = ranks_of("linux-64", "2.36", "3.11")
OLD_ABI = Image(torch="2.4.1", cuda="12.4", cxx11_abi="false")
CP311 = "cp311-cp311-linux_x86_64"


def attention(*parts: str) -> list[str]:
    return [f"flash_attn-2.6.3+{part}-{CP311}.whl" for part in parts]


def left(files: list[str], image: Image) -> list[str]:
    """The local versions of the files that the constraints allow and that the interpreter can install."""
    lines = [Requirement(line) for line in constraints(files, image, RANKS)]
    found = []
    for file in files:
        name, version, _, tags = parse_wheel_filename(file)
        allowed = all(line.name != name or line.specifier.contains(version) for line in lines)
        if allowed and any(tag in RANKS for tag in tags):
            found.append(str(version))
    return found


@pytest.mark.parametrize(
    ("files", "image", "wanted"),
    [
        (
            attention(
                "cu118torch2.4cxx11abiFALSE", "cu123torch2.3cxx11abiFALSE", "cu123torch2.4cxx11abiFALSE",
                "cu123torch2.4cxx11abiTRUE", "cu123torch2.5cxx11abiFALSE",
            ),
            OLD_ABI,
            ["2.6.3+cu123torch2.4cxx11abifalse"],
        ),
        (
            attention("cu123torch2.4cxx11abiFALSE", "cu123torch2.4cxx11abiTRUE"),
            Image(torch="2.4.1", cuda="12.4", cxx11_abi="true"),
            ["2.6.3+cu123torch2.4cxx11abitrue"],
        ),
        (
            [f"torch_scatter-2.1.2+{one}-{CP311}.whl" for one in ("pt24cu118", "pt24cu121", "pt24cu124", "pt25cu124")],
            OLD_ABI,
            ["2.1.2+pt24cu124"],
        ),
        # Without the very CUDA, another of its major is left; which one is the solver's choice.
        (
            [f"torch_scatter-2.1.2+{local}-{CP311}.whl" for local in ("pt24cu118", "pt24cu121", "pt24cpu")],
            OLD_ABI,
            ["2.1.2+pt24cu121"],
        ),
        # The exact one is for another Python.
        (
            [f"torch_sparse-0.6.18+pt24cu121-{CP311}.whl", "torch_sparse-0.6.18+pt24cu124-cp39-cp39-linux_x86_64.whl"],
            OLD_ABI,
            ["0.6.18+pt24cu121"],
        ),
        (
            [f"torch_cluster-1.6.3+{local}-{CP311}.whl" for local in ("pt24cpu", "pt24cu121")],
            Image(torch="2.4.1", cuda=None, cxx11_abi="false"),
            ["1.6.3+pt24cpu"],
        ),
        ([f"dgl-2.4.0+{local}-{CP311}.whl" for local in ("cu118", "cu121", "cu124")], OLD_ABI, ["2.4.0+cu124"]),
        (
            [f"jaxlib-0.4.25+{local}-{CP311}.whl" for local in ("cuda11.cudnn86", "cuda12.cudnn89")],
            OLD_ABI,
            ["0.4.25+cuda12.cudnn89"],
        ),
        # What says nothing is not touched.
        ([f"mmcv-2.1.0-{CP311}.whl", f"own-1.0+ubuntu1-{CP311}.whl"], OLD_ABI, ["2.1.0", "1.0+ubuntu1"]),
        ([f"torch-2.4.1+{local}-{CP311}.whl" for local in ("cu118", "cu124")], OLD_ABI, ["2.4.1+cu118", "2.4.1+cu124"]),
    ],
)  # fmt: skip
def test_the_wheels_for_the_image_are_left(files: list[str], image: Image, wanted: list[str]) -> None:
    assert left(files, image) == wanted


def test_what_is_no_wheel_is_ignored() -> None:
    assert constraints(["torch_scatter-2.1.2.tar.gz", "a.whl", "a-b-c.whl", ""], OLD_ABI, RANKS) == []


@pytest.mark.parametrize(
    ("url", "torch", "device"),
    [
        ("https://data.example.org/whl/torch-2.6.0+cu124.html", "2.6", "12.4"),
        ("https://data.example.org/whl/torch-2.6.0%2Bcu124.html", "2.6", "12.4"),
        ("https://data.example.org/whl/torch-2.10.0+cpu.html", "2.10", "cpu"),
        ("https://wheels.example.org/mmcv/dist/cu121/torch2.1.0/index.html", "2.1", "12.1"),
        ("https://wheels.example.org/mmcv/dist/cu118/torch2.0/index.html", "2.0", "11.8"),
        ("https://wheels.example.org/wheels/torch-2.4/cu124/repo.html", "2.4", "12.4"),
        ("https://wheels.example.org/wheels/cu118/repo.html", None, "11.8"),
        ("https://wheels.example.org/whl/cu124/torch2.4/", "2.4", "12.4"),
        ("https://wheels.example.org/packaging/wheels/py310_cu121_pyt210/download.html", "2.1", "12.1"),
        ("https://wheels.example.org/packaging/wheels/py38_cu113_pyt1110/download.html", "1.11", "11.3"),
        ("https://wheels.example.org/pytorch-wheels/index.html", None, None),
        ("https://wheels.example.org/releases/expanded_assets/v2.6.3", None, None),
        ("https://accu118.example.org/documents/", None, None),
    ],
)
def test_the_address_of_a_page_says_what_its_wheels_are_for(url: str, torch: str | None, device: str | None) -> None:
    assert claim_of_page(url) == Page(torch=torch, device=device)
