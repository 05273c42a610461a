"""The join of release and variant rows into builds."""

from __future__ import annotations

import pytest

from envkit.facts.builds import build_rows
from envkit.facts.model import Build
from envkit.facts.snapshot import release_rows

BUILDS = {(b.torch, b.cuda, b.source, b.platform): b for b in build_rows()}


def build(torch: str, cuda: str | None, source: str = "pytorch", platform: str = "linux-64") -> Build:
    return BUILDS[torch, cuda, source, platform]


def test_a_wheel_of_the_pytorch_index() -> None:
    row = build("2.7.1", "11.8")
    assert row.index == "https://download.pytorch.org/whl/cu118"
    assert row.local_version == "+cu118"
    assert row.cudnn == "9.1.0.70"
    assert row.nccl == "2.21.5"
    assert row.triton == "3.3.1"
    assert row.archs == ("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0")
    assert row.confidence == "inferred"  # its arch list


@pytest.mark.parametrize(
    ("torch", "cuda", "source", "glibc"),
    [
        ("2.5.1", "12.4", "pytorch", "2.17"),
        ("2.6.0", "11.8", "pytorch", "2.17"),
        ("2.6.0", "12.4", "pytorch", "2.17"),
        ("2.6.0", "12.6", "pytorch", "2.28"),
        ("2.6.0", "12.4", "pypi", "2.17"),
        ("2.7.0", "11.8", "pytorch", "2.28"),
        ("2.7.0", "12.6", "pypi", "2.28"),
        ("2.6.0", "12.6", "conda-forge", "2.17"),
        ("2.10.0", "13.0", "conda-forge", "2.28"),
        ("2.5.1", "12.4", "conda-pytorch", None),
    ],
)
def test_glibc_comes_from_the_manylinux_tag(torch: str, cuda: str, source: str, glibc: str | None) -> None:
    assert build(torch, cuda, source).glibc == glibc


def test_wheels_need_glibc_2_28_from_torch_2_7_on() -> None:
    wheels = [row for row in BUILDS.values() if row.source in ("pytorch", "pypi") and row.platform == "linux-64"]
    new = {row.glibc for row in wheels if int(row.torch.split(".")[1]) >= 7 and row.torch.startswith("2.")}
    old = {row.glibc for row in wheels if row.torch.startswith("1.") or int(row.torch.split(".")[1]) < 6}
    assert new == {"2.28"}
    assert old == {"2.17"}


def test_a_plain_linux_tag_on_aarch64_proves_no_glibc() -> None:
    assert build("2.5.1", "12.4", platform="linux-aarch64").glibc is None
    assert build("2.6.0", "12.6", platform="linux-aarch64").glibc == "2.28"


def test_aarch64_has_its_own_arch_list_or_none() -> None:
    assert build("2.13.0", "13.0", platform="linux-aarch64").archs == ("8.0", "9.0", "10.0", "11.0", "12.0")
    assert build("2.13.0", "13.0").archs == ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0")
    assert build("2.7.1", "12.8", platform="linux-aarch64").archs is None
    assert build("2.7.1", "12.8", platform="linux-aarch64").ptx == ()


def test_the_python_package_index_is_cpu_on_aarch64_before_2_11() -> None:
    rows = [row for row in BUILDS.values() if row.source == "pypi" and row.platform == "linux-aarch64"]
    assert {row.torch for row in rows if row.cuda} == {
        "2.11.0",
        "2.12.0",
        "2.12.1",
        "2.13.0",
        "2.14.0",
        "2.14.1",
        "2.15.0",
    }
    assert build("2.11.0", "13.0", "pypi", "linux-aarch64").archs == ("8.0", "9.0", "10.0", "11.0", "12.0")
    cpu = build("2.10.0", None, "pypi", "linux-aarch64")
    assert (cpu.archs, cpu.cudnn, cpu.nccl, cpu.triton) == ((), None, None, None)


def test_the_default_wheel_is_the_file_of_the_pytorch_index() -> None:
    for release in release_rows():
        default = build(release.torch, release.default_cuda, "pypi")
        twin = build(release.torch, release.default_cuda)
        assert default.local_version is None
        assert default.index is None
        assert (default.archs, default.ptx, default.cudnn, default.glibc) == (
            twin.archs, twin.ptx, twin.cudnn, twin.glibc,
        )  # fmt: skip


def test_free_threaded_pythons_are_left_out() -> None:
    assert build("2.13.0", "13.0").pythons == ("3.10", "3.11", "3.12", "3.13", "3.14")
    assert all(not python.endswith("t") for row in BUILDS.values() for python in row.pythons or ())


@pytest.mark.parametrize(
    ("torch", "cuda", "platform", "triton"),
    [
        ("1.13.1", "11.7", "linux-64", None),
        ("2.7.1", "12.8", "linux-64", "3.3.1"),
        ("2.7.1", "12.8", "linux-aarch64", None),
        ("2.13.0", "13.0", "linux-aarch64", "3.7.1"),
        ("2.14.1", "13.0", "linux-64", "3.8.*"),
        ("2.7.1", None, "linux-64", None),
    ],
)
def test_triton_follows_the_marker_of_the_wheel(
    torch: str, cuda: str | None, platform: str, triton: str | None
) -> None:
    assert build(torch, cuda, platform=platform).triton == triton


def test_what_was_not_established_is_none() -> None:
    hidden = build("2.11.0", "12.9")
    assert hidden.advertised is False
    assert (hidden.pythons, hidden.archs, hidden.cudnn) == (None, None, None)
    assert build("2.15.0", "13.0").confidence == "inferred"
    assert build("2.15.0", "13.2").confidence is None
    assert build("2.11.0", "12.6").confidence == "conflict"


def test_a_wheel_for_windows_alone_is_no_build() -> None:
    assert not [row for row in BUILDS.values() if row.cuda == "13.4"]


def test_a_conda_build_has_its_own_companions() -> None:
    conda = build("2.0.0", "11.8", "conda-pytorch")
    assert (conda.torchvision, conda.torchaudio) == ("0.15.0", "2.0.0")
    assert (conda.selector, conda.channels) == ("pytorch-cuda=11.8", ("pytorch", "nvidia"))


def test_conda_builds_have_channels_and_no_index() -> None:
    forge = build("2.13.0", "12.9", "conda-forge", "linux-aarch64")
    assert forge.channels == ("conda-forge",)
    assert forge.pythons == ("3.10", "3.11", "3.12", "3.13", "3.14")
    assert forge.archs == ("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0", "10.0", "12.0")
    assert forge.index is None


def test_every_variant_becomes_a_build() -> None:
    assert len(BUILDS) == len(build_rows()) == 507
    assert sum(row.source == "conda-forge" for row in BUILDS.values()) == 145
    assert sum(row.source == "conda-pytorch" for row in BUILDS.values()) == 59
