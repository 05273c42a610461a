import shlex
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.facts.model import Facts
from envkit.ground.errors import ConflictError, UsageError
from envkit.resolve.model import Request, Resolution
from envkit.resolve.request import changed, parse, words

Read = Callable[[str], Request]
FORMS = "write an exact version (11.8), a prefix (2.7.*) or a specifier ('>=12.1,<13')"


@pytest.mark.parametrize("typed", ["11.8", "11.8.0", "cu118", "CU118", "cuda11.8", "CUDA 11.8", "cuda-11.8", "cuda118"])
def test_spellings_of_a_cuda_runtime(typed: str, read: Read) -> None:
    request = read(f"--cuda {shlex.quote(typed)}")
    assert request.cuda is not None
    assert request.cuda.text == "11.8"


def test_a_local_version_names_the_cuda_too(read: Read) -> None:
    request = read("--torch 2.7.1+cu126")
    assert (str(request.torch), str(request.cuda)) == ("2.7.1", "12.6")
    assert read("--torch 2.7.1+cpu").cpu


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("v2.4.0", "2.4.0"),
        ("torch==2.4", "==2.4"),
        ("torch 2.4", "2.4"),
        ("torch>=2.4,<2.6", ">=2.4,<2.6"),
        ("pytorch-2.4", "2.4"),
    ],
)
def test_spellings_of_a_torch(typed: str, text: str, read: Read) -> None:
    assert str(read(f"--torch {shlex.quote(typed)}").torch) == text


@pytest.mark.parametrize("typed", ["3.10", "py310", "py3.10", "python3.10", "cp310", "Python 3.10"])
def test_spellings_of_a_python(typed: str, read: Read) -> None:
    assert str(read(f"--python {shlex.quote(typed)}").python) == "3.10"


@pytest.mark.parametrize(
    ("typed", "platform"),
    [
        ("linux/amd64", "linux-64"), ("x86_64", "linux-64"), ("amd64", "linux-64"),
        ("linux/arm64", "linux-aarch64"), ("aarch64", "linux-aarch64"), ("ARM64", "linux-aarch64"),
    ],
)  # fmt: skip
def test_spellings_of_a_platform(typed: str, platform: str, read: Read) -> None:
    assert read(f"--platform {typed}").platform == platform


def test_the_cuda_of_nvidia_smi_is_read_as_its_driver(read: Read, answer: Callable[[str], Resolution]) -> None:
    assert read("--driver 12.2").driver == "535.54.03"
    found = answer("--driver 12.2 --torch 2.5")
    assert found.cuda == "12.1"
    assert found.reasons["driver"].startswith(
        "12.2 is the CUDA version that nvidia-smi prints for driver branch R535, 535.54.03 or newer; "
    )
    with pytest.raises(UsageError) as caught:
        read("--driver 12.7")  # no toolkit has this number
    assert "it looks like the CUDA version that nvidia-smi prints" in caught.value.message
    assert caught.value.hint == "nvidia-smi --query-gpu=driver_version --format=csv,noheader prints the driver version"


def test_the_number_in_torchs_message_is_a_cuda_version(read: Read, answer: Callable[[str], Resolution]) -> None:
    """torch: "The NVIDIA driver on your system is too old (found version 11040)"."""
    assert [read(f"--driver {number}").driver for number in (11040, 12020, 13000)] == [
        "470.42.01", "535.54.03", "580.65.06",
    ]  # fmt: skip
    found = answer("--driver 11040")
    assert found.cuda == "11.8"
    assert found.reasons["driver"].startswith("11040 is CUDA 11.4, which nvidia-smi prints for driver branch R470, ")
    cuda = read("--cuda 12080").cuda
    assert cuda is not None
    assert cuda.text == "12.8"


@pytest.mark.parametrize("driver", ["1000", "11041", "20260101", "1200.1"])
def test_a_number_that_no_driver_has_is_refused(driver: str, read: Read) -> None:
    with pytest.raises(UsageError) as caught:
        read(f"--driver {driver}")
    assert f"'{driver}' is not a driver version" in caught.value.message


@pytest.mark.parametrize("line", ["--torch 2.13.0+rocm7.2", "--gpu MI300X"])
def test_amd_is_not_supported(line: str, read: Read) -> None:
    with pytest.raises(ConflictError, match="AMD GPU"):
        read(line)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("ubuntu", "ubuntu26.04"), ("debian", "debian13"), ("centos", "centosstream10"), ("rocky", "rockylinux10"),
        ("alma", "almalinux10"), ("rhel", "ubi10"), ("rhel9", "ubi9"), ("redhat 8", "ubi8"),
        ("centos-stream9", "centosstream9"), ("centos 9", "centosstream9"), ("centos8", "centos8"),
        ("trixie", "debian13"), ("Ubuntu 20.04", "ubuntu20.04"),
    ],
)  # fmt: skip
def test_names_of_systems(typed: str, name: str, read: Read) -> None:
    assert read(f"--os {shlex.quote(typed)}").os == name


def test_a_system_without_a_version_is_told(answer: Callable[[str], Resolution]) -> None:
    assert answer("--os ubuntu").reasons["os"] == "newest supported ubuntu: Ubuntu 26.04 LTS"
    assert answer("--os ubuntu24.04").reasons["os"] == "requested: Ubuntu 24.04 LTS"


def test_an_unknown_version_of_a_system_has_its_neighbors(read: Read) -> None:
    with pytest.raises(UsageError) as caught:
        read("--os debian11")
    assert caught.value.message == "--os: unsupported operating system version 'debian11'"
    assert caught.value.hint == "supported: debian12, debian13"


@pytest.mark.parametrize("typed", ["debian12", "Debian12", "debian:12", "bookworm"])
def test_spellings_of_an_os(typed: str, read: Read) -> None:
    assert read(f"--os {typed}").os == "debian12"


def test_nothing_typed_asks_nothing(read: Read) -> None:
    assert read("") == Request()


def test_all_faults_come_at_once(read: Read) -> None:
    with pytest.raises(UsageError) as caught:
        read("--torch newest --cuda 12,8 --driver new --gpu zzzz --os ubunto22.04 --platform linux64 --source pipy")
    error = caught.value
    assert error.message == "--torch: 'newest' is not a version"
    assert error.details == (
        "--cuda: '12,8' is not a version (" + FORMS + ")",
        "--driver: 'new' is not a driver version (write it as 550.54.15, or auto)",
        "--gpu: unknown GPU 'zzzz' (give the compute capability, such as sm_86)",
        "--os: unknown operating system 'ubunto22.04' (did you mean ubuntu22.04?)",
        "--platform: unknown value 'linux64' (did you mean linux-64?)",
        "--source: unknown value 'pipy' (did you mean pypi?)",
    )


def test_a_python_patch_release_is_told_apart(read: Read) -> None:
    with pytest.raises(UsageError) as caught:
        read("--python 3.11.4")
    assert caught.value.hint == "write --python 3.11"


@pytest.mark.parametrize("flag", ["--cuda 12.6", "--cudnn 9.1", "--driver 550.54.15", "--gpu A100"])
def test_cpu_contradicts_everything_of_a_gpu(flag: str, read: Read) -> None:
    with pytest.raises(UsageError, match="contradict each other: a CPU build has no CUDA"):
        read(f"--cpu {flag}")


def test_errors_name_the_place_that_was_read(facts: Facts) -> None:
    with pytest.raises(UsageError, match=r"^train\.yaml: request\.cuda: '12,8' is not a version$"):
        parse({"cuda": "12,8"}, facts, name=lambda field: f"train.yaml: request.{field}")


@pytest.mark.parametrize(
    "line",
    [
        "--torch '>=2.7,<2.9' --gpu 'RTX 4090' --gpu A100 --driver 550.54.15",
        "--cuda 12.6 --python 3.11 --os rockylinux9 --platform linux-aarch64 --source conda-forge --template wheels",
        "--cpu",
    ],
)
def test_words_give_the_request_back(line: str, read: Read) -> None:
    request = read(line)
    assert read(shlex.join(words(request))) == request


def test_one_constraint_changes_and_the_others_stay(read: Read) -> None:
    request = read("--torch 2.12 --cuda 12.8 --gpu V100 --gpu A100 --source pypi")
    assert str(changed(request, "cuda", "12.6").cuda) == "12.6"
    assert changed(request, "cuda", None).cuda is None
    assert changed(request, "gpu", None, 0).gpus == ("A100",)
    assert changed(request, "source", None).source == "auto"
    assert changed(request, "os", "ubi9").os == "ubi9"
    assert changed(request, "torch", "2.10").cuda == request.cuda


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["torch", "cuda", "python", "driver", "os", "source", "platform"]), st.text()))
def test_any_text_is_a_request_or_an_error_with_a_hint(facts: Facts, fields: dict[str, str]) -> None:
    # A conflict is what envkit makes no images for, such as `--python 30t`.
    with suppress(UsageError, ConflictError):
        assert isinstance(parse(fields, facts), Request)
