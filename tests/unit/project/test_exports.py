"""Lists of what a computer has installed: `conda env export`, `pip freeze`, from Linux, Windows and macOS."""

from pathlib import Path

import pytest

from envkit.facts.load import load as load_facts
from envkit.project.definition import Drafted, draft, load

FACTS = load_facts()
LINUX = """name: a
channels: [pytorch, nvidia, defaults]
dependencies:
  - _libgcc_mutex=0.1=main
  - blas=1.0=mkl
  - ca-certificates=2023.01.10=h06a4308_0
  - cuda-cudart=11.7.99=0
  - libcublas=11.10.3.66=0
  - numpy=1.24.3=py310h5f9d8c6_1
  - numpy-base=1.24.3=py310hb5e798b_1
  - openssl=1.1.1t=h7f8727e_0
  - python=3.10.9=h7a1cb2a_2
  - pytorch=2.0.1=py3.10_cuda11.7_cudnn8.5.0_0
  - pytorch-cuda=11.7=h778d358_5
  - pytorch-mutex=1.0=cuda
  - scipy=1.10.1=py310h5f9d8c6_1
  - torchtriton=2.0.0=py310
  - xz=5.2.10=h5eee18b_1
  - pip:
      - einops==0.6.1
prefix: /home/a/miniconda3/envs/a
"""
WINDOWS = """channels: [defaults]
dependencies:
  - bzip2=1.0.8=he774522_0
  - m2w64-gcc-libs=5.3.0=7
  - openssl=1.1.1n=h2bbff1b_0
  - python=3.9.12=h6244533_0
  - pywin32=302=py39h2bbff1b_2
  - sqlite=3.38.2=h2bbff1b_0
  - tqdm=4.64.0=py39haa95532_0
  - vc=14.2=h21ff451_1
  - vs2015_runtime=14.27.29016=h5e58377_2
  - wincertstore=0.2=py39haa95532_2
  - pip:
      - torch==1.13.1+cu117
      - pywin32==305
      - pywinpty==2.0.10
prefix: C:\\Users\\a\\anaconda3\\envs\\a
"""
MACOS = """channels: [conda-forge]
dependencies:
  - appnope=0.1.3=pyhd8ed1ab_0
  - libcxx=14.0.6=hccf4f1f_0
  - libffi=3.4.2=h0d85af4_5
  - openssl=3.0.7=hfd90126_2
  - python=3.10.8=h4f9edfa_0_cpython
  - pytorch=1.13.1=cpu_generic_py310h2bbf33f_1
  - pip:
      - pyobjc-core==9.0
      - tensorflow-metal==0.7.0
prefix: /Users/a/miniconda3/envs/a
"""


def drafted(folder: Path, text: str, name: str = "environment.yml") -> Drafted:
    (folder / name).write_text(text)
    return draft(name, folder, FACTS)


def values(made: Drafted, *fields: str) -> list[str]:
    return [one.value for one in made.taken if one.field in fields]


def lost(made: Drafted) -> list[str]:
    return [row.line.text.partition("=")[0] for row in made.skipped if not row.harmless]


def elsewhere(made: Drafted) -> list[str]:
    return [row.line.text.partition("=")[0] for row in made.skipped if row.elsewhere]


def test_an_export_keeps_what_was_asked_for(tmp_path: Path) -> None:
    made = drafted(tmp_path, LINUX)
    assert values(made, "conda", "pip") == ["numpy=1.24.3", "scipy=1.10.1", "einops==0.6.1"]
    assert made.plan is not None
    found = made.plan.resolution
    assert (found.torch, found.cuda, found.python) == ("2.0.1", "11.7", "3.10")
    assert {*lost(made)} == {
        "defaults", "_libgcc_mutex", "blas", "ca-certificates", "cuda-cudart", "libcublas", "numpy-base", "openssl",
        "pytorch-mutex", "torchtriton", "xz",
    }  # fmt: skip


def test_what_is_of_windows_is_for_another_system(tmp_path: Path) -> None:
    made = drafted(tmp_path, WINDOWS)
    assert elsewhere(made) == [
        "m2w64-gcc-libs", "pywin32", "vc", "vs2015_runtime", "wincertstore", "pywin32", "pywinpty",
    ]  # fmt: skip
    assert values(made, "conda", "pip") == ["tqdm=4.64.0"]
    assert values(made, "torch", "cuda", "python") == ["3.9", "==1.13.1", "11.7"]


def test_what_is_of_macos_is_for_another_system(tmp_path: Path) -> None:
    made = drafted(tmp_path, MACOS)
    assert elsewhere(made) == ["appnope", "pyobjc-core", "tensorflow-metal"]
    assert lost(made) == ["libcxx", "libffi", "openssl"]
    assert made.plan is not None
    assert made.plan.resolution.cuda is None


def test_a_file_that_a_person_wrote_keeps_its_libraries(tmp_path: Path) -> None:
    made = drafted(
        tmp_path, "channels: [conda-forge]\ndependencies: [python=3.11, openssl=3.3, sqlite, hdf5=*=mpi_openmpi*]\n"
    )
    assert values(made, "conda") == ["openssl=3.3", "sqlite", "hdf5=*=mpi_openmpi*"]
    assert lost(made) == []


def test_many_lines_with_one_reason_are_one_note_and_one_hint(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text(LINUX.replace("numpy=", "a=1=x_0\n  - b=1=x_0\n  - c=1=x_0\n  - numpy="))
    _, notes = load(str(tmp_path / "environment.yml"), FACTS)
    hinted = [note for note in notes if "--from-history" in note]
    assert [note.partition(": ")[0] for note in hinted] == ["environment.yml:9", "environment.yml:4"]
    assert "a=1=x_0 and 4 more: its build is left out" in hinted[0]
    assert "_libgcc_mutex=0.1=main and 3 more are left out: Python requires it" in hinted[1]


@pytest.mark.parametrize(
    "line",
    [
        "certifi @ file:///croot/certifi_1671487769961/work/certifi",
        "numpy @ file:///tmp/build/80754af9/numpy_and_numpy_base_1652801679809/work",
        "attrs @ file:///home/conda/feedstock_root/build_artifacts/attrs_1640799537051/work",
        "cffi @ file:///opt/conda/conda-bld/cffi_1642701102775/work",
        "cryptography @ file:///C:/ci_311/cryptography_1679419210767/work",
    ],
)
def test_what_pip_freeze_lists_of_conda_is_lost_with_the_next_command(line: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, f"torch==2.6.0\n{line}\n", "requirements.txt")
    (row,) = made.skipped
    assert (row.line.where, row.harmless) == ("requirements.txt:2", False)
    assert "pip list --format=freeze" in row.why


@pytest.mark.parametrize(
    ("line", "torch", "cuda"),
    [
        ("https://files.example.com/whl/cu118/torch-2.0.1%2Bcu118-cp310-cp310-linux_x86_64.whl", "2.0.1", "11.8"),
        (
            "torch @ https://files.example.com/torch-2.1.0%2Bcu121-cp310-cp310-linux_x86_64.whl#sha256=00",
            "2.1.0",
            "12.1",
        ),
        ("torch @ https://files.example.com/whl/torch-2.4.0+cpu-cp311-cp311-linux_x86_64.whl", "2.4.0", None),
        ("torch @ file:///wheels/torch-2.6.0+cu124-cp312-cp312-linux_x86_64.whl", "2.6.0", "12.4"),
        ("./wheels/torch-2.6.0+cu126-cp312-cp312-manylinux_2_28_x86_64.whl", "2.6.0", "12.6"),
    ],
)
def test_a_wheel_of_torch_names_its_version_and_cuda(line: str, torch: str, cuda: str | None, tmp_path: Path) -> None:
    plan = drafted(tmp_path, f"{line}\neinops\n", "requirements.txt").plan
    assert plan is not None
    assert (plan.resolution.torch, plan.resolution.cuda) == (torch, cuda)


@pytest.mark.parametrize(
    "line",
    [
        "https://files.example.com/torch-2.1.0%2Bcu121-cp310-cp310-win_amd64.whl",
        "llama-cpp @ https://files.example.com/llama_cpp-0.2-cp310-cp310-win_amd64.whl",
        "./jaxlib-0.4.1-cp310-cp310-macosx_11_0_arm64.whl",
        "pywin32==306",
        "windows-curses",
    ],
)
def test_wheels_and_packages_of_other_systems_are_not_for_this_one(line: str, tmp_path: Path) -> None:
    made = drafted(tmp_path, f"torch==2.6.0\n{line}\n", "requirements.txt")
    assert [(row.line.text, row.elsewhere) for row in made.skipped] == [(line, True)]
