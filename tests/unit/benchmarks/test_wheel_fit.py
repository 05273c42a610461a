"""Whether a wheel runs on a GPU and driver, from the facts alone; and the wheel index that is made of them."""

import pytest

from benchmarks._torch_index import Pages, files_of, plain
from benchmarks._wheel_fit import Pick, code_for, faults, picked, published
from envkit.facts.load import load

FACTS = load()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch==2.7.1+cu126", Pick("2.7.1", "+cu126")),
        ("Would install torch-2.4.1+cu124", Pick("2.4.1", "+cu124")),
        ("pip install torch==2.5.1 --index-url https://wheels.example.com/whl/cu121", Pick("2.5.1", "+cu121")),
        ("torchvision==0.20.1+cu121", None),
        ("torch==2.5.1", None),
    ],
)
def test_picked(text: str, expected: Pick | None) -> None:
    assert picked(text) == expected


@pytest.mark.parametrize(
    ("archs", "ptx", "capability", "expected"),
    [
        (("7.0", "8.0"), (), "7.5", "cubin"),  # within the major, from that minor on
        (("7.5",), (), "7.0", None),
        (("8.0",), ("8.0",), "9.0", "ptx"),
        (("8.0",), (), "9.0", None),
        (("9.0",), ("9.0",), "8.0", None),
    ],
)
def test_code_for(archs: tuple[str, ...], ptx: tuple[str, ...], capability: str, expected: str | None) -> None:
    assert code_for(archs, ptx, capability) == expected


@pytest.mark.parametrize(
    ("pick", "capability", "driver", "expected"),
    [
        (Pick("2.4.1", "+cu121"), "7.5", "535.154.05", []),
        (Pick("2.8.0", "+cu129"), "6.1", "580.65.06", ["no code for sm_61: 70 75 80 86 90 100 120"]),
        (Pick("2.8.0", "+cu128"), "8.0", "470.82.01", ["CUDA 12.8 needs driver 525.60.13"]),
        (Pick("2.4.1", "+cpu"), "8.0", "580.65.06", ["computes on the CPU"]),
    ],
)
def test_faults(pick: Pick, capability: str, driver: str, expected: list[str]) -> None:
    build = published(pick, FACTS)
    assert build is not None
    assert faults(build, capability, driver, FACTS) == expected


def test_a_wheel_that_was_never_published() -> None:
    assert published(Pick("2.4.1", "+cu129"), FACTS) is None


def test_the_index_lists_what_the_facts_list() -> None:
    pages = Pages([*files_of(FACTS), plain("numpy", "1.26.4")])
    kind, body = pages.answer("/whl/cu124/torch/") or ("", b"")
    assert kind == "text/html"
    assert b"torch-2.4.1%2Bcu124-cp311-cp311-" in body
    assert b"cu121" not in body
    assert pages.answer("/whl/cu124/numpy/") == pages.answer("/simple/numpy/")
    assert pages.answer("/simple/torch/") is None
    wheel = next(file for file in files_of(FACTS) if file.version == "2.4.1+cu124")
    assert pages.answer(wheel.path.replace("+", "%2B")) == ("application/octet-stream", wheel.data())
    assert b"Version: 2.4.1+cu124" in (pages.answer(f"{wheel.path}.metadata") or ("", b""))[1]
