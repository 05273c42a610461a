import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

from envkit.ground.errors import UsageError
from envkit.lock import exports
from envkit.lock.index_locations import IndexLocations
from tests.unit.lock.samples import lock

CONDA = """\
# Exported by: envkit lock --export
# platform: linux-64
@EXPLICIT
https://conda.anaconda.org/conda-forge/linux-64/numpy-2.4.6-py311_0.conda#sha256:{a}
https://conda.anaconda.org/conda-forge/noarch/pip-26.3-py_0.conda#sha256:{a}
https://conda.anaconda.org/conda-forge/linux-64/python-3.11.7-h0_0.conda#sha256:{a}
""".format(a="a" * 64)

REQUIREMENTS = """\
# Exported by: envkit lock --export
--only-binary :all:
--extra-index-url https://download.pytorch.org/whl/cu126
filelock==4.2.11 --hash=sha256:{b}
torch==2.7.1+cu126 --hash=sha256:{b}
""".format(b="b" * 64)


def test_conda_explicit_pins_every_archive_by_sha256() -> None:
    assert exports.conda_explicit(lock()) == CONDA


def test_conda_explicit_names_the_mirror_where_it_is_told_to() -> None:
    text = exports.conda_explicit(lock(), IndexLocations(conda_alias="https://mirror.example.com/conda"))
    assert "https://mirror.example.com/conda/conda-forge/noarch/pip-26.3-py_0.conda#sha256:" in text
    assert "anaconda.org" not in text


def test_requirements_carry_hashes_and_name_the_torch_index() -> None:
    assert exports.requirements(lock()) == REQUIREMENTS
    lines = [line for line in REQUIREMENTS.splitlines() if "==" in line]
    assert [Requirement(line.partition(" --hash")[0]).name for line in lines] == ["filelock", "torch"]


def test_requirements_name_the_indexes_they_are_given() -> None:
    text = exports.requirements(lock(), ("https://a.example.com/simple", "https://b.example.com/cu126"))
    assert "--index-url https://a.example.com/simple\n--extra-index-url https://b.example.com/cu126\n" in text
    assert "pytorch.org" not in text


def test_pylock_is_what_pep_751_asks_for() -> None:
    tree = tomllib.loads(exports.pylock(lock()))
    assert tree["lock-version"] == "1.0"
    assert tree["created-by"] == "envkit"
    assert tree["requires-python"] == "==3.11.*"
    assert tree["environments"] == ["sys_platform == 'linux' and platform_machine == 'x86_64'"]
    torch = tree["packages"][1]
    assert (torch["name"], torch["version"]) == ("torch", "2.7.1+cu126")
    assert torch["wheels"] == [
        {
            "name": "torch-2.7.1+cu126-py3-none-any.whl",
            "url": "https://files.example.com/packages/torch-2.7.1%2Bcu126-py3-none-any.whl",
            "size": 2000,
            "hashes": {"sha256": "b" * 64},
        }
    ]


def test_environment_yml_pins_builds_and_wheels() -> None:
    tree = yaml.safe_load(exports.environment(lock()))
    assert tree["channels"] == ["conda-forge"]
    assert tree["dependencies"] == [
        "numpy=2.4.6=py311_0",
        "pip=26.3=py_0",
        "python=3.11.7=h0_0",
        {
            "pip": [
                "--extra-index-url https://download.pytorch.org/whl/cu126",
                "filelock==4.2.11",
                "torch==2.7.1+cu126",
            ]
        },
    ]


@pytest.mark.parametrize("name", list(exports.FORMATS))
def test_a_lock_without_what_a_format_holds_says_which_format_to_take(name: str) -> None:
    with pytest.raises(UsageError, match=r"this lock has no (conda packages|wheels)") as caught:
        exports.FORMATS[name](lock(conda=(), wheels=()))
    assert str(caught.value.hint).startswith("envkit lock --export ")
