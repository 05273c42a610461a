from collections.abc import Callable

import pytest

from envkit.facts.model import Build, Facts
from envkit.ground.versions import parse_constraint
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.model import Conflict, Request
from envkit.resolve.resolver import resolve
from tests.unit.resolve.rows import build, facts, gpu

Find = Callable[[str], Conflict]
LATEST = "PyTorch publishes fixes only for the latest"
TOO_OLD = f"torch 2.7.1 is older than the newest minor versions (2.14 and 2.15), and {LATEST}"
JETSON = (
    "no build for linux-64 has code for Jetson Orin (sm_87), and a Jetson module runs only code built for it. "
    "Jetson Orin takes the torch that NVIDIA builds for JetPack "
    '("Installing PyTorch for Jetson Platform" in its documentation).'
)


@pytest.mark.parametrize(
    ("line", "clash", "sentence"),
    [
        (
            "--template wheels --python 3.12",
            ("--python 3.12", "--template wheels"),
            "Debian 12 (the default OS) has Python 3.11",
        ),
        (
            "--template wheels --os rockylinux9 --python 3.13",
            ("--python 3.13", "--os rockylinux9", "--template wheels"),
            "Rocky Linux 9 has Python 3.9, 3.11, 3.12",
        ),
        (
            "--source conda-pytorch --with torchvision==0.8.2",
            ("--with torchvision==0.8.2",),
            "torchvision==0.8.2 is not in the compatibility data of 2026-11-20; available: 0.9.0 to 0.29.2",
        ),
        (
            "--template wheels --cuda 12.0",
            ("--cuda 12.0", "--template wheels"),
            "CUDA 12.0 is available from conda-forge only, not as a wheel",
        ),
        (
            "--torch 2.15 --max-size 2GB",
            ("--torch 2.15", "--max-size 2GB"),
            "torch 2.15 needs a download of at least 2.99 GB; the size of 2 other builds is unknown",
        ),
        (
            "--max-size 100MB",
            ("--max-size 100MB",),
            "the smallest build needs a download of at least 750 MB; the size of 112 other builds is unknown",
        ),
        (
            "--cuda 11.8 --max-size 4GB",
            ("--cuda 11.8", "--max-size 4GB"),
            "the download size of CUDA 11.8 is unknown, so it cannot be compared with the limit",
        ),
        (
            "--torch 2.7 --supported-only",
            ("--torch 2.7", "--supported-only"),
            TOO_OLD,
        ),
        (
            "--python 3.10 --supported-only",
            ("--python 3.10", "--supported-only"),
            "Python 3.10 has had no fixes since 2026-10-01",
        ),
        (
            "--python 3.10 --supported-only",
            ("--python 3.10", "--supported-only"),
            "a supported version is available for Python 3.11, 3.12, 3.13, 3.14, 3.15",
        ),
        (
            "--template wheels --os ubuntu22.04 --supported-only",
            ("--os ubuntu22.04", "--template wheels", "--supported-only"),
            "Ubuntu 22.04 LTS has Python 3.10",
        ),
        (
            "--torch 2.15 --gpu 'RTX 4090' --driver 535.104.05 --allow-forward-compat",
            ("--torch 2.15", "--driver 535.104.05"),
            "forward compatibility is for data center GPUs only, and RTX 4090 (sm_89) is not in NVIDIA's list of them",
        ),
        (
            "--torch 2.15 --gpu sm_90 --driver 535.104.05 --allow-forward-compat",
            ("--torch 2.15", "--driver 535.104.05"),
            "forward compatibility is for data center GPUs only, so --gpu must be a product such as A100, not sm_90",
        ),
        (
            "--torch 2.15 --driver 535.104.05 --allow-forward-compat",
            ("--torch 2.15", "--driver 535.104.05"),
            "forward compatibility is for data center GPUs only, so give the GPU with --gpu",
        ),
        (
            "--torch 2.15 --gpu H100 --driver 525.60.13 --allow-forward-compat",
            ("--torch 2.15", "--driver 525.60.13"),
            "cuda-compat-13-0 supports driver branches R535, R550, R565, R570, R575; driver 525.60.13 belongs to R525",
        ),
        (
            "--torch 2.15 --cuda 13.2 --gpu H100 --driver 535.104.05 --allow-forward-compat",
            ("--cuda 13.2", "--driver 535.104.05"),
            "no driver branch is listed for cuda-compat-13-2",
        ),
        (
            "--gpu V100 --driver 595.45.04",
            ("--gpu V100", "--driver 595.45.04"),
            "driver branch R580 is the last that supports V100 (sm_70); driver 595.45.04 is newer",
        ),
        (
            "--gpu B200 --driver 560.28.03",
            ("--gpu B200", "--driver 560.28.03"),
            "B200 (sm_100) needs driver branch R570 or newer; driver 560.28.03 is older",
        ),
        (
            "--gpu 'Jetson Orin'",
            ('--gpu "Jetson Orin"',),
            JETSON,
        ),
        (
            "--torch 2.15 --gpu V100",
            ("--torch 2.15", "--gpu V100"),
            "torch 2.15 comes with CUDA 13 only, which has no code for Volta (sm_70)",
        ),
        (
            "--gpu K40",
            ("--gpu K40",),
            "compiled code exists for sm_37 to sm_120; none of it runs on K40 (sm_35)",
        ),
        ("--driver 300.1", ("--driver 300.1",), "no CUDA build runs on driver 300.1; the oldest needs 418.39"),
        (
            "--python 2.7",
            ("--python 2.7",),
            "no build is available for Python 2.7; available: 3.6, 3.7, 3.8, 3.9, 3.10, 3.11, 3.12, 3.13, 3.14, 3.15",
        ),
        (
            "--torch 2.15 --python 3.10",
            ("--torch 2.15", "--python 3.10"),
            "torch 2.15 is available for Python 3.11, 3.12, 3.13, 3.14, 3.15",
        ),
        (
            "--source conda-pytorch --platform linux-aarch64",
            ("--platform linux-aarch64", "--source conda-pytorch"),
            "source conda-pytorch is available for linux-64",
        ),
        (
            "--driver 470.57.02 --torch 2.12",
            ("--torch 2.12", "--driver 470.57.02"),
            "torch 2.12 needs driver 525.60.13 or newer (560.28.03 to run natively); 470.57.02 is older",
        ),
    ],
)
def test_the_smallest_clash_and_why(line: str, clash: tuple[str, ...], sentence: str, conflict: Find) -> None:
    found = conflict(line)
    assert found.clash == clash
    assert sentence in found.because
    assert len(found.suggestions) <= 3


def test_only_what_clashes_is_named(conflict: Find) -> None:
    found = conflict("--torch 2.4 --gpu 'RTX 5090' --python 3.11 --os ubuntu22.04 --driver 580.95.05 --source pytorch")
    assert found.clash == ("--torch 2.4", '--gpu "RTX 5090"')
    assert all("--python" in way.words and "--driver" in way.words for way in found.suggestions)


def test_a_default_may_be_what_to_change(conflict: Find) -> None:
    changes = [way.change for way in conflict("--template wheels --python 3.12").suggestions]
    assert changes == [
        "--python 3.11 instead of 3.12",
        "--template miniconda instead of wheels",
        "--os ubuntu24.04 instead of debian12 (the default)",
    ]


def test_a_gpu_is_given_up_last(conflict: Find) -> None:
    found = conflict("--gpu K40")
    assert [way.change for way in found.suggestions] == ["leave out --gpu K40"]
    assert conflict("--gpu V100 --driver 595.45.04").suggestions[0].field == "driver"


def test_facts_without_a_row_for_the_platform() -> None:
    with pytest.raises(Unresolvable) as caught:
        resolve(Request(), facts())
    assert caught.value.message == "no build matches the request"
    assert caught.value.conflict.because == ("the compatibility data of 2026-01-01 has no such build",)
    assert caught.value.hint == "envkit matrix list"


def test_a_driver_that_cannot_compile_the_only_ptx() -> None:
    rows = facts(build(archs=("7.0",), ptx=("7.0",)), gpus=(gpu(),))
    with pytest.raises(Unresolvable) as caught:
        resolve(Request(gpus=("A100",), driver="535.54.03"), rows)
    found = caught.value.conflict
    assert found.clash == ("--gpu A100", "--driver 535.54.03")
    assert found.because[1] == "A100 (sm_80) needs driver 560.28.03 or newer to compile its PTX; 535.54.03 is older"
    assert found.suggestions[0].change == "--driver 560.28.03 instead of 535.54.03"


def test_a_large_clash_is_found_by_taking_away() -> None:
    # Any three of the four constraints can be had together.
    typed = {"torch": "2.7.0", "cuda": "11.8", "python": "3.12", "cudnn": "9.1.0"}
    rows = facts(
        *(
            build(
                torch="2.6.0" if lacking == "torch" else "2.7.0",
                cuda="12.6" if lacking == "cuda" else "11.8",
                pythons=("3.11",) if lacking == "python" else ("3.12",),
                cudnn="9.5.1.17" if lacking == "cudnn" else "9.1.0",
                source="pytorch",
                index=lacking,
            )
            for lacking in typed
        )
    )
    request = Request(**{name: parse_constraint(text, name) for name, text in typed.items()})  # type: ignore[arg-type]
    with pytest.raises(Unresolvable) as caught:
        resolve(request, rows)
    assert len(caught.value.conflict.clash) == 4
    assert len(caught.value.conflict.suggestions) == 3


def test_of_two_large_clashes_the_smaller_one_is_named() -> None:
    """Without the source, five constraints clash; with it, four. Taking away from the end finds the five."""

    def row(*lacking: str) -> Build:
        return build(
            torch="2.6.0" if "torch" in lacking else "2.7.0",
            cuda="12.6" if "cuda" in lacking else "11.8",
            cudnn="9.5.1.17" if "cudnn" in lacking else "9.1.0",
            pythons=("3.11",) if "python" in lacking else ("3.12",),
            archs=("7.0",) if "gpu" in lacking else ("8.0",),
            source="pytorch" if "source" in lacking else "pypi",
        )

    rows = facts(row("cudnn"), row("python"), row("gpu"), row("torch", "source"), row("cuda", "source"))
    typed = {"torch": "2.7.0", "cuda": "11.8", "cudnn": "9.1.0", "python": "3.12"}
    request = Request(
        **{name: parse_constraint(text, name) for name, text in typed.items()},  # type: ignore[arg-type]
        gpus=("A100",),
        source="pypi",
    )
    with pytest.raises(Unresolvable) as caught:
        resolve(request, rows)
    assert caught.value.conflict.clash == ("--cudnn 9.1.0", "--python 3.12", "--gpu A100", "--source pypi")


def test_the_json_of_a_conflict(conflict: Find, facts: Facts) -> None:
    tree = conflict("--torch 1.12.1 --cuda 12.1").to_json()
    assert list(tree) == ["schema", "clash", "because", "suggestions", "sources"]
    assert tree["schema"] == "envkit.conflict/1"
    assert tree["suggestions"][0] == {
        "change": "--cuda 11.6 instead of 12.1",
        "field": "cuda",
        "value": "11.6",
        "gives": "torch 1.12.1, CUDA 11.6, Python 3.10",
        "arguments": ["--torch", "1.12.1", "--cuda", "11.6"],
    }
    assert tree["sources"]
    assert facts.collected


def test_where_no_single_change_is_enough_the_rest_that_fits_is_the_hint(answer: Callable[[str], object]) -> None:
    with pytest.raises(Unresolvable) as caught:
        answer("--torch 2.99 --python 2.7 --gpu A100 --os rockylinux9")
    error = caught.value
    assert error.conflict.suggestions == ()
    assert error.conflict.because[-1] == "no single change is enough; --python 2.7 matches no build either"
    assert error.hint == "envkit resolve --gpu A100 --os rockylinux9"
    assert answer("--gpu A100 --os rockylinux9")
    with pytest.raises(Unresolvable) as caught:
        answer("--torch 2.4 --gpu 'RTX 5090' --cudnn 9.13 --gpu K80")
    assert caught.value.conflict.because[-1].startswith("no single change is enough")


@pytest.mark.parametrize("platform", ["", " --platform linux-aarch64"])
def test_no_other_platform_is_suggested_for_a_product_with_an_arm_cpu(platform: str, conflict: Find) -> None:
    """No source lists the code of these builds, so they are suggested only because nothing else resolves."""
    found = conflict(f"--gpu GH200 --torch 2.8 --cuda 12.8{platform}")
    assert [(change.field, change.value) for change in found.suggestions] == [
        ("cuda", "12.9"), ("torch", "2.9"), ("torch", "2.7"),
    ]  # fmt: skip
    assert all(change.gives.endswith("; no source lists its GPUs") for change in found.suggestions)


def test_a_build_that_surely_runs_is_suggested_before_others(conflict: Find) -> None:
    found = conflict("--gpu GH200 --torch 2.11 --cuda 12.4")
    assert found.suggestions
    assert not [change for change in found.suggestions if "no source" in change.gives]


def test_of_other_cuda_versions_the_newest_torch_comes_first(conflict: Find) -> None:
    found = conflict("--gpu V100 --cuda 13.0")
    assert [way.value for way in found.suggestions if way.field == "cuda"] == ["12.6", "12.8", "12.9"]


def test_a_limit_is_raised_to_the_smallest_that_is_enough(conflict: Find) -> None:
    found = conflict("--torch 2.15 --max-size 2GB")
    limit = next(way for way in found.suggestions if way.field == "max_size")
    assert (limit.change, limit.value) == ("--max-size 3.0GB instead of 2GB", "3.0GB")
    assert limit.words == ("--torch", "2.15", "--max-size", "3.0GB")


def test_a_limit_that_no_size_is_known_for_is_left_out(conflict: Find) -> None:
    found = conflict("--cuda 11.8 --max-size 4GB")
    limit = next(way for way in found.suggestions if way.field == "max_size")
    assert (limit.change, limit.value) == ("leave out --max-size 4GB", None)


def test_to_give_up_support_is_a_way_out(conflict: Find) -> None:
    found = conflict("--torch 2.7 --supported-only")
    assert [way.change for way in found.suggestions] == [
        "--torch 2.14 instead of 2.7",
        "--torch 2.15 instead of 2.7",
        "leave out --supported-only",
    ]
    assert found.suggestions[0].words == ("--torch", "2.14", "--supported-only")
    assert "pytorch_patch_releases" in found.sources


def test_forward_compatibility_is_offered_where_it_is_enough(conflict: Find) -> None:
    found = conflict("--torch 2.15 --gpu H100 --driver 535.104.05")
    offered = next(way for way in found.suggestions if way.field == "allow_forward_compat")
    assert offered.change == "add --allow-forward-compat"
    assert offered.words[-3:] == ("--driver", "535.104.05", "--allow-forward-compat")
    for line in ("--torch 2.15 --gpu 'RTX 4090' --driver 535.104.05", "--torch 2.15 --gpu H100 --driver 525.60.13"):
        assert all(way.field != "allow_forward_compat" for way in conflict(line).suggestions)
