"""Of a package without a wheel for the image: for which Python or torch it has one."""

import pytest
from packaging.specifiers import SpecifierSet

from envkit.lock.offers import Offer, described, is_usable, other
from envkit.lock.uv import Target
from envkit.lock.variants import Image

TARGET = Target(platform="linux-64", glibc="2.36", python="3.12")
IMAGE = Image(torch="2.6.0", cuda="12.4", cxx11_abi="false")
LINUX = "manylinux_2_17_x86_64.manylinux2014_x86_64"


def wheels(name: str, version: str, *pythons: str, platform: str = LINUX) -> list[str]:
    return [f"{name}-{version}-{python}-{python}-{platform}.whl" for python in pythons]


@pytest.mark.parametrize(
    ("name", "wanted", "files", "why", "option"),
    [
        (
            "numpy", "==1.23.5",
            wheels("numpy", "1.23.5", "cp38", "cp310", "cp311") + wheels("numpy", "2.0.0", "cp312"),
            "numpy has wheels for Python 3.8, 3.10 and 3.11, and the image has Python 3.12", "--python 3.11",
        ),
        ("new", "", wheels("new", "1", "cp313", "cp314"),
         "new has wheels for Python 3.13 and 3.14, and the image has Python 3.12", "--python 3.13"),
        ("stable", "", ["stable-1-cp313-abi3-manylinux_2_17_x86_64.whl"],
         "stable has wheels for Python 3.13, and the image has Python 3.12", "--python 3.13"),
        (
            "torch-scatter", "", wheels("torch_scatter", "2.1.2+pt25cu124", "cp312", platform="linux_x86_64"),
            "torch-scatter has wheels for torch 2.5, and the image has torch 2.6.0", "--torch 2.5",
        ),
        (
            "flash-attn", ">=2.6",
            [f"flash_attn-2.6.3+cu123torch{torch}cxx11abi{abi}-cp312-cp312-linux_x86_64.whl"
             for torch in ("2.3", "2.4") for abi in ("TRUE", "FALSE")],
            "flash-attn has wheels for torch 2.3 and 2.4, and the image has torch 2.6.0", "--torch 2.4",
        ),
        # For the torch of the image only with another Python.
        (
            "torch-sparse", "",
            wheels("torch_sparse", "0.6.18+pt26cu124", "cp311", platform="linux_x86_64")
            + wheels("torch_sparse", "0.6.18+pt25cu124", "cp312", platform="linux_x86_64"),
            "torch-sparse has wheels for Python 3.11, and the image has Python 3.12", "--python 3.11",
        ),
    ],
)  # fmt: skip
def test_the_change_with_which_a_wheel_fits_is_named(
    name: str, wanted: str, files: list[str], why: str, option: str
) -> None:
    assert other(name, SpecifierSet(wanted), files, TARGET, IMAGE) == Offer(why=why, option=option)


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ("", []),
        ("", ["own-1.tar.gz"]),
        ("", wheels("own", "1", "cp312")),  # there is one, so the conflict is about something else
        ("==2", wheels("own", "1", "cp311")),
        ("", wheels("own", "1", "cp311", platform="win_amd64")),
        ("", wheels("own", "1", "cp311", platform="manylinux_2_17_aarch64")),
        ("", wheels("own", "1+pt26cu118", "cp312", platform="linux_x86_64")),
        ("", wheels("other", "1", "cp311")),
    ],
)
def test_without_such_a_change_nothing_is_suggested(wanted: str, files: list[str]) -> None:
    assert other("own", SpecifierSet(wanted), files, TARGET, IMAGE) is None


@pytest.mark.parametrize(
    ("name", "files", "text"),
    [
        (
            "flash-attn",
            [
                f"flash_attn-2.8.3+cu12torch{torch}cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"
                for torch in ("2.8", "2.10")
            ],
            "wheels for torch 2.8 and 2.10, CUDA 12, Python 3.12",
        ),
        ("dgl", ["dgl-2.4.0+cu124-cp310-cp310-manylinux1_x86_64.whl"], "wheels for CUDA 12, Python 3.10"),
        ("own", ["own-1-py3-none-any.whl"], "wheels"),
        ("own", ["v2.8.3.tar.gz", "v2.8.3.zip", "other-1-py3-none-any.whl"], "no wheel of it"),
    ],
)
def test_what_the_files_of_a_page_are_for(name: str, files: list[str], text: str) -> None:
    assert described(name, files) == text


@pytest.mark.parametrize(
    ("wanted", "image", "usable"),
    [
        ("", Image(torch="2.6.0", cuda="12.4", cxx11_abi="false"), True),
        ("==2.8.3", Image(torch="2.6.0", cuda="12.6", cxx11_abi=None), True),  # an unknown ABI excludes nothing
        ("", Image(torch="2.6.0", cuda="12.6", cxx11_abi="true"), False),
        ("", Image(torch="2.6.0", cuda="13.0", cxx11_abi="false"), False),
        ("", Image(torch="2.6.0", cuda=None, cxx11_abi="false"), False),
        ("", Image(torch="2.7.1", cuda="12.4", cxx11_abi="false"), False),
        ("<2.8", Image(torch="2.6.0", cuda="12.4", cxx11_abi="false"), False),
    ],
)
def test_a_wheel_of_a_page_is_usable_by_torch_cuda_and_abi(wanted: str, image: Image, usable: bool) -> None:
    file = "flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64.whl"
    assert is_usable("flash-attn", SpecifierSet(wanted), [file], TARGET, image) is usable
