"""The combinations people ask for first, against the shipped facts."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from envkit.facts.model import Facts
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.model import Conflict, Request, Resolution
from envkit.resolve.resolver import resolve

Answer = Callable[[str], Resolution]
Find = Callable[[str], Conflict]


def changes(found: Conflict) -> list[str]:
    return [way.change for way in found.suggestions]


def test_cuda_11_8_is_the_last_torch_that_had_it(answer: Answer) -> None:
    found = answer("--cuda 11.8")
    assert (found.torch, found.cuda, found.source, found.local_version) == ("2.7.1", "11.8", "pytorch", "+cu118")
    assert found.index is not None
    assert found.index.endswith("/cu118")
    assert found.reasons["torch"] == "last release with CUDA 11.8 builds"
    assert (
        found.warnings[0]
        == "torch 2.7.1 is the last release with CUDA 11.8 wheels; torch 2.8.0 has CUDA 12.6, 12.8, 12.9"
    )
    assert found.driver is not None
    assert (found.driver.native, found.driver.minimum, found.driver.mode) == ("520.61.05", "450.80.02", None)


@pytest.mark.parametrize(("torch", "pinned"), [("1.13.1", True), ("2.0.1", True), ("2.1.2", True), ("2.2.0", False)])
def test_a_torch_that_imports_pkg_resources_comes_with_a_setuptools_that_has_it(
    torch: str, pinned: bool, answer: Answer
) -> None:
    assert ("setuptools<82" in answer(f"--torch {torch} --source pypi --python 3.10").pins) is pinned


def test_no_such_build(conflict: Find) -> None:
    found = conflict("--torch 1.12.1 --cuda 12.1")
    assert found.clash == ("--torch 1.12.1", "--cuda 12.1")
    assert found.because == (
        "CUDA 12.1 is available for torch 2.1.0 to 2.5.1",
        "torch 1.12.1 is available for CUDA 10.2, 11.0, 11.1, 11.2, 11.3, 11.6",
    )
    assert changes(found) == [
        "--cuda 11.6 instead of 12.1",
        "--cuda 11.3 instead of 12.1",
        "--torch 2.1.0 instead of 1.12.1",
    ]


def test_an_architecture_that_is_gone(conflict: Find) -> None:
    found = conflict("--gpu V100 --torch 2.12 --cuda 12.8")
    # CUDA 12.8 wheels ended with torch 2.11, so the GPU is not part of the smallest clash; it narrows the ways out.
    assert found.clash == ("--torch 2.12", "--cuda 12.8")
    assert "CUDA 12.8 is available for torch 2.7.0 to 2.11.0" in found.because
    assert "CUDA 12.8 with V100 (sm_70) is available for torch 2.8.0 to 2.10.0 only" in found.because
    first = found.suggestions[0]
    assert (first.field, first.value) == ("cuda", "12.6")
    assert first.words == ("--torch", "2.12", "--cuda", "12.6", "--gpu", "V100")
    assert changes(found)[1] == "--torch 2.10 instead of 2.12"


def test_an_architecture_that_is_not_there_yet(conflict: Find) -> None:
    found = conflict("--gpu 'RTX 5090' --torch 2.4")
    assert found.clash == ("--torch 2.4", '--gpu "RTX 5090"')
    assert found.because == (
        "RTX 5090 (sm_120) is supported by torch 2.7.0 to 2.15.0",
        "torch 2.4 has compiled code for sm_37 to sm_90; none of it runs on RTX 5090 (sm_120)",
    )
    assert found.suggestions[0].gives == "torch 2.7.1, CUDA 12.8, Python 3.13"


def test_a_driver_that_is_too_old(conflict: Find) -> None:
    found = conflict("--driver 470.57.02 --cuda 12.1")
    assert found.clash == ("--cuda 12.1", "--driver 470.57.02")
    assert "CUDA 12.1 needs driver 525.60.13 or newer (530.30.02 to run natively); 470.57.02 is older" in found.because
    assert changes(found)[0] == "--cuda 11.8 instead of 12.1"
    assert changes(found)[-1] == "--driver 525.60.13 instead of 470.57.02"


def test_a_driver_that_is_just_new_enough(answer: Answer) -> None:
    found = answer("--driver 450.80.02 --cuda 11.8")
    assert found.torch == "2.7.1"
    assert found.driver is not None
    assert found.driver.mode == "minor-compatible"
    assert any("by minor-version compatibility only" in line for line in found.warnings)


def test_an_os_whose_glibc_is_too_old(conflict: Find) -> None:
    found = conflict("--os centos7 --torch 2.8")
    assert found.clash == ("--torch 2.8", "--os centos7")
    assert "among wheels, torch 2.8 needs glibc 2.28 or newer; centos7 has 2.17" in found.because
    assert changes(found) == [
        "--torch 2.6 instead of 2.8",
        "--source conda-forge instead of auto (wheels)",
        "--os rockylinux8 instead of centos7",
    ]


def test_a_cudnn_of_another_age(conflict: Find) -> None:
    found = conflict("--cudnn 8.9 --torch 2.9")
    assert found.clash == ("--torch 2.9", "--cudnn 8.9")
    assert found.because == (
        "cuDNN 8.9 is available for torch 2.1.0 to 2.3.1",
        "torch 2.9 is available for cuDNN 9.10.2.21, 9.13.0.50",
    )
    assert [(way.field, way.value) for way in found.suggestions] == [
        ("torch", "2.3"),
        ("cudnn", "9.10"),
        ("cudnn", "9.13"),
    ]


def test_one_wheel_for_an_old_and_a_new_gpu(answer: Answer) -> None:
    found = answer("--gpu V100 --gpu B200")
    assert (found.torch, found.cuda, found.source) == ("2.10.0", "12.8", "pytorch")
    assert found.gpu_archs is not None
    assert {"7.0", "10.0"} <= set(found.gpu_archs)
    assert found.gpus == ("7.0", "10.0")
    assert found.driver is not None
    # One image for both machines: it must not ask the V100's driver for what the B200's own has anyway.
    assert found.driver.minimum == "525.60.13"
    assert found.reasons["driver"].endswith("the minimum is 525.60.13; B200 (sm_100) needs 570 or newer")


def test_a_gpu_alone_brings_its_own_least_driver(answer: Answer) -> None:
    found = answer("--gpu B200 --cuda 12.8")
    assert found.driver is not None
    assert found.driver.minimum == "570"


def test_no_wheel_for_an_old_and_a_new_gpu(conflict: Find) -> None:
    found = conflict("--gpu V100 --gpu B200 --torch 2.14")
    assert found.clash == ("--torch 2.14", "--gpu V100", "--gpu B200")
    assert (
        "torch 2.14 with V100 (sm_70) has compiled code for sm_50 to sm_90; none of it runs on B200 (sm_100)"
        in found.because
    )


def test_an_unknown_list_of_gpus_warns_and_refuses_nothing(answer: Answer) -> None:
    found = answer("--gpu A100 --torch 2.10 --source conda-forge")
    assert (found.torch, found.gpu_archs) == ("2.10.0", None)
    assert any("A100 (sm_80) may not work" in text for text in found.warnings)
    # A build that is known to have the code comes first, also if it is older.
    grace = answer("--gpu GH200 --platform linux-aarch64 --cuda 12.9")
    assert grace.gpu_archs is None or "9.0" in grace.gpu_archs


def test_a_torch_the_facts_do_not_know(conflict: Find) -> None:
    found = conflict("--torch 2.99")
    assert found.clash == ("--torch 2.99",)
    assert found.because[0].startswith("torch 2.99 is not in the compatibility data of 20")
    assert found.because[1] == (
        "the nearest versions are torch 2.15.0 with CUDA 13.0, 13.2; torch 2.14.1 with CUDA 12.6, 13.0, 13.2; "
        "torch 2.14.0 with CUDA 12.6, 13.0, 13.2"
    )
    assert found.suggestions[0].value == "2.15"


def test_the_cuda_that_only_nvidia_smi_knows(conflict: Find) -> None:
    found = conflict("--cuda 12.7")
    assert found.because[0].startswith("There is no CUDA 12.7: nvidia-smi of driver 565")
    assert found.suggestions[0].value == "12.6"


def test_the_error_carries_the_commands_to_type(answer: Answer) -> None:
    with pytest.raises(Unresolvable) as caught:
        answer("--gpu 'RTX 5090' --torch 2.4")
    error = caught.value
    assert error.exit_code == 3
    assert error.message == 'no build matches --torch 2.4 and --gpu "RTX 5090"'
    assert error.hint == "envkit resolve --torch 2.7 --gpu 'RTX 5090'"
    assert error.details[0].startswith("because RTX 5090 (sm_120)")
    assert error.details[2] == (
        "try: envkit resolve --torch 2.7 --gpu 'RTX 5090'  "
        "(--torch 2.7 instead of 2.4: torch 2.7.1, CUDA 12.8, Python 3.13)"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ("2.15.0", "13.2", "3.14", "pytorch")),
        ("--cuda 12.6 --source pypi --template wheels", ("2.7.1", "12.6", "3.11", "pypi")),
        ("--template wheels", ("2.15.0", "13.2", "3.11", "pytorch")),
        ("--template wheels --os ubuntu24.04", ("2.15.0", "13.2", "3.12", "pytorch")),
        ("--os centos7 --cuda 11.8", ("2.6.0", "11.8", "3.13", "pytorch")),
        ("--cuda 12.0", ("2.5.1", "12.0", "3.12", "conda-forge")),
        ("--source conda-pytorch", ("2.5.1", "12.4", "3.12", "conda-pytorch")),
        ("--cuda 12.6", ("2.14.1", "12.6", "3.14", "pytorch")),
        ("--gpu K80", ("2.3.1", "11.8", "3.11", "pytorch")),
        ("--torch 2.7.1+cu126", ("2.7.1", "12.6", "3.13", "pytorch")),
        ("--platform linux-aarch64 --torch 2.4.1", ("2.4.1", "12.4", "3.12", "pytorch")),
    ],
)
def test_answers(line: str, expected: tuple[str, str, str, str], answer: Answer) -> None:
    found = answer(line)
    assert (found.torch, found.cuda, found.python, found.source) == expected


@pytest.mark.parametrize(
    ("driver", "torch", "cuda", "mode"),
    [
        ("595.45.04", "2.15.0", "13.2", "native"),
        ("580.95.05", "2.14.1", "13.0", "native"),  # 2.15 has CUDA 13.2 only: one series back is worth it
        ("570.26", "2.14.1", "12.6", "native"),
        ("535.104.05", "2.14.1", "12.6", "minor-compatible"),  # native would mean torch 2.7: not worth it
        ("440.33", "1.12.1", "10.2", "native"),
    ],
)
def test_a_driver_chooses(driver: str, torch: str, cuda: str, mode: str, answer: Answer) -> None:
    found = answer(f"--driver {driver}")
    assert found.driver is not None
    assert (found.torch, found.cuda, found.driver.mode) == (torch, cuda, mode)


def test_a_newer_torch_that_was_passed_over_is_named(answer: Answer) -> None:
    assert answer("--driver 580.95.05").reasons["torch"] == (
        "newest that driver 580.95.05 runs natively; torch 2.15.0 (CUDA 13.2) would run by minor-version "
        "compatibility only"
    )
    assert answer("--cuda 13.0").reasons["torch"] == (
        "newest with complete data; torch 2.15.0 for CUDA 13.0 is not fully documented"
    )


def test_every_field_of_the_json_has_a_reason(answer: Answer) -> None:
    tree = answer("--gpu A100 --driver 550.54.15").to_json()
    told = set(tree) - {"schema", "reasons", "sources", "rejected_count"}
    assert told == set(tree["reasons"])
    assert all(tree["reasons"].values())


def test_the_size_of_the_download(answer: Answer) -> None:
    found = answer("--torch 2.15.0 --source pypi").download
    assert found is not None
    assert (found.torch, found.pulled, found.total) == (539172785, 2455329619, 539172785 + 2455329619)
    assert found.why == "torch 539 MB, its requirements 2.46 GB as of the release date"


NOT_READ = "unknown: the compatibility data has no file sizes for this source"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "--torch 2.15.0 --cuda 13.2",
            f"{NOT_READ}; from the Python index, its wheel and its requirements are 2.99 GB",
        ),
        (
            "--torch 2.15.0 --cuda 13.0",
            f"{NOT_READ}; from the Python index, its CUDA 13.2 wheel and its requirements are 2.99 GB",
        ),
        ("--torch 2.0.0 --source pypi", "torch 620 MB; the size of its requirements is unknown"),
        ("--cpu", NOT_READ),
    ],
)
def test_a_size_that_is_not_known_is_said_to_be_unknown(answer: Answer, line: str, why: str) -> None:
    found = answer(line).download
    assert found is not None
    assert (found.total, found.why) == (None, why)


def test_a_limit_of_the_download_chooses_the_newest_torch_below_it(answer: Answer) -> None:
    found = answer("--max-size 3GB")
    assert (found.torch, found.source) == ("2.15.0", "pypi")
    older = answer("--max-size 2500MB")
    assert older.download is not None
    assert older.download.total is not None
    assert older.download.total <= 2_500_000_000
    assert older.torch == "2.0.1"


def test_a_cpu_build(answer: Answer) -> None:
    found = answer("--cpu")
    assert (found.cuda, found.driver, found.cudnn, found.local_version) == (None, None, None, "+cpu")
    assert found.reasons["driver"] == "none: CPU build"


@pytest.mark.parametrize("gpu", ["T4", "A100", "RTX 3090", "RTX 4090", "H100", "RTX 5090"])
@pytest.mark.parametrize("torch", ["2.7.0", "2.7.1"])
def test_torch_2_7_with_cuda_12_8_runs_on_what_its_cudnn_has_code_for(torch: str, gpu: str, answer: Answer) -> None:
    found = answer(f"--torch {torch} --cuda 12.8 --gpu '{gpu}'")
    assert (found.torch, found.cuda) == (torch, "12.8")


def test_the_native_build_is_named_where_the_answer_is_not(answer: Answer) -> None:
    assert answer("--driver 535 --gpu 'RTX 2080' --torch 2.4").cuda == "12.1"
    assert answer("--driver 535 --gpu 'RTX 2080' --torch 2.4 --cuda 12.4").reasons["cuda"] == (
        "requested; driver 535 runs torch 2.4.1 with CUDA 12.1 natively"
    )
    assert (
        answer("--driver 535.104.05")
        .reasons["cuda"]
        .endswith("; driver 535.104.05 runs torch 2.7.1 with CUDA 11.8 natively")
    )
    assert "natively" not in answer("--driver 570.26").reasons["cuda"].partition(";")[2]


def test_a_cuda_that_nvidia_smi_prints_and_no_wheel_has(conflict: Find) -> None:
    told = conflict("--cuda 12.2").because
    assert any(
        line.startswith("nvidia-smi prints CUDA 12.2 for driver branch R535, which runs wheels with CUDA 10.1")
        and "12.1 natively, and wheels with CUDA 12.4, 12.6, 12.8, 12.9 by minor-version compatibility" in line
        and line.endswith("use --driver 535.54.03 instead of --cuda")
        for line in told
    )


def test_thor_takes_the_server_wheels_for_aarch64(answer: Answer) -> None:
    found = answer("--gpu 'Jetson AGX Thor'")
    assert (found.platform, found.torch, found.cuda) == ("linux-aarch64", "2.15.0", "13.2")
    assert found.reasons["platform"] == "Jetson AGX Thor has an Arm CPU"


def test_the_pythons_of_a_set_are_those_of_all_its_wheels(answer: Answer) -> None:
    whole = answer("--torch 2.15.0 --cuda 13.0")
    assert (whole.torchaudio, whole.pythons) == ("2.11.0", ("3.11", "3.12", "3.13", "3.14"))
    newest = answer("--torch 2.15.0 --cuda 13.0 --python 3.15")
    assert (newest.torchvision, newest.torchaudio, "3.15" in (newest.pythons or ())) == ("0.29.2", None, True)
    assert newest.reasons["torchaudio"] == (
        "torchaudio 2.11.0, the release for torch 2.15.0, has no wheel for Python 3.15 on linux-64 and is left out"
    )
    assert answer("--torch 1.13.1").python == "3.10"


def test_forward_compatibility_names_its_package(answer: Answer, conflict: Find) -> None:
    line = "--torch 2.15 --gpu H100 --driver 535.104.05 --allow-forward-compat"
    found = answer(line)
    assert found.driver is not None
    assert (found.cuda, found.driver.mode, found.driver.package) == ("13.0", "forward-compatible", "cuda-compat-13-0")
    assert found.to_json()["driver"]["package"] == "cuda-compat-13-0"
    assert found.reasons["driver"].startswith(
        "535.104.05 runs it by forward compatibility with cuda-compat-13-0, on data center GPUs; "
    )
    assert (
        sum("the image needs cuda-compat-13-0, which envkit does not install" in text for text in found.warnings) == 1
    )
    assert "nv_fwd_compat" in found.sources
    assert conflict(line.replace(" --allow-forward-compat", "")).clash == ("--torch 2.15", "--driver 535.104.05")


@pytest.mark.parametrize(
    "line", ["--gpu H100 --driver 595.45.04", "--gpu H100 --driver 570.26 --torch 2.8 --cuda 12.9"]
)
def test_a_driver_that_is_new_enough_needs_no_package(line: str, answer: Answer) -> None:
    found = answer(f"{line} --allow-forward-compat").driver
    assert found is not None
    assert (found.mode != "forward-compatible", found.package, "package" in found.to_json()) == (True, None, False)


@pytest.mark.parametrize("gpus", [("GeForce RTX 3090",), ("RTX 4090",), ("A10", "RTX 4090"), ("RTX A6000",), ("A10G",)])
def test_forward_compatibility_is_for_data_center_gpus_only(gpus: tuple[str, ...], conflict: Find) -> None:
    named = " ".join(f"--gpu '{name}'" for name in gpus)
    found = conflict(f"--torch 2.15 --driver 535.104.05 {named} --allow-forward-compat")
    assert found.clash == ("--torch 2.15", "--driver 535.104.05")


def test_no_geforce_is_listed_as_a_data_center_gpu(facts: Facts) -> None:
    listed = {product for gpu in facts.gpus for product in gpu.data_center}
    assert {"A100", "H100", "Tesla T4", "L40S"} <= listed
    assert not [name for name in listed if name.startswith(("GeForce", "GTX", "RTX", "TITAN", "Quadro"))]


@pytest.mark.parametrize("typed", ["NVIDIA H100 80GB HBM3", "H100", "NVIDIA H100 PCIe", "HGX H100"])
def test_a_data_center_gpu_has_the_name_that_the_driver_prints(typed: str, answer: Answer) -> None:
    found = answer(f"--torch 2.15 --driver 535.104.05 --gpu '{typed}' --allow-forward-compat")
    assert found.driver is not None
    assert found.driver.mode == "forward-compatible"


@pytest.mark.parametrize(
    ("asked", "level", "why"),
    [
        (("", None), "supported", "Python 3.14 gets bug fixes until 2027-10-07"),
        (("--python 3.13", None), "security", "Python 3.13 gets security fixes only, until 2029-10-01"),
        (("--python 3.10", None), "ended", "Python 3.10 has had no fixes since 2026-10-01"),
        (("--torch 2.13", None), "ended", "torch 2.13.0 is older than the newest minor versions (2.14 and 2.15)"),
        (("", "2027-10-06"), "supported", "torch 2.15.0 is one of the newest minor versions (2.14 and 2.15)"),
        (("", "2027-10-07"), "security", "Python 3.14 gets security fixes only, until 2030-10-01"),
        (("", "2030-10-01"), "ended", "Python 3.14 has had no fixes since 2030-10-01"),
        (("", "1980-01-01"), "supported", "Python 3.14 gets bug fixes until 2027-10-07"),  # a clock behind the facts
    ],
)
def test_the_support_of_an_answer_is_that_of_the_day(
    asked: tuple[str, str | None], level: str, why: str, read: Callable[[str], Request], facts: Facts
) -> None:
    line, today = asked
    found = resolve(replace(read(line), today=today), facts)
    assert found.support is not None
    assert (found.support.level, found.support.day) == (level, max(today or "", facts.collected))
    assert why in found.support.why
    assert "support" not in found.to_json()


def test_supported_only_moves_on_with_the_day(read: Callable[[str], Request], facts: Facts) -> None:
    asked = read("--supported-only --python '<3.12'")
    assert resolve(asked, facts).python == "3.11"
    assert resolve(replace(asked, today="2027-09-30"), facts).python == "3.11"
    with pytest.raises(Unresolvable, match="--supported-only"):
        resolve(replace(asked, today="2027-10-01"), facts)


def test_a_python_without_a_row_is_not_known_to_be_supported(read: Callable[[str], Request], facts: Facts) -> None:
    fewer = replace(facts, pythons=tuple(row for row in facts.pythons if row.python != "3.14"))
    found = resolve(read(""), fewer)
    assert found.support is not None
    assert (found.python, found.support.level) == ("3.14", None)
    assert resolve(read("--supported-only"), fewer).python != "3.14"


def test_every_python_of_the_facts_has_a_row(facts: Facts) -> None:
    of_builds = {python for build in facts.builds for python in build.pythons or ()}
    of_systems = {python for system in facts.oses for python in system.pythons}
    assert of_builds | of_systems <= {row.python for row in facts.pythons} | {"2.7"}
