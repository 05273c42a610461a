"""What `envkit resolve` prints for other tools: every format names the resolved build, and says where it is."""

from __future__ import annotations

import json
import shlex
import tomllib
from dataclasses import replace

import pytest
import yaml
from packaging.requirements import Requirement

from envkit.ground.errors import UsageError
from envkit.plan import install
from envkit.resolve.model import Resolution
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve
from tests.support.plans import facts

INDEX = "https://download.pytorch.org/whl/cu118"


def resolution(**fields: str) -> Resolution:
    return resolve(parse(fields, facts()), facts())


CU118 = resolution(cuda="11.8")
PYPI = resolution(cuda="12.6", source="pypi")
CONDA = resolution(cuda="12.6", source="conda-forge")
OLD = resolution(torch="2.0.1", cuda="11.8", source="pytorch")
ENDED = resolution(torch="2.0.1", source="conda-pytorch")


def test_pip_names_the_variant_and_its_index() -> None:
    assert install.command(CU118) == (
        f"pip install torch==2.7.1+cu118 torchvision==0.22.1+cu118 torchaudio==2.7.1+cu118 --index-url {INDEX}"
    )


def test_pins_of_other_packages_come_from_the_default_index() -> None:
    first, _, second = install.pip(OLD).partition(" && ")
    assert "numpy<2" in shlex.split(first)
    assert "--index-url" not in first
    assert second.startswith("pip install torch==2.0.1+cu118 ")


def test_wheels_of_the_python_index_need_no_index() -> None:
    assert "index" not in install.pip(PYPI) + install.requirements(PYPI) + install.uv(PYPI) + install.pixi(PYPI)


def test_requirements_are_read_by_packaging() -> None:
    first, *rest = install.requirements(CU118).splitlines()
    assert first == f"--extra-index-url {INDEX}"
    read = {one.name: str(one.specifier) for one in map(Requirement, rest)}
    assert read == {"torch": "==2.7.1+cu118", "torchvision": "==0.22.1+cu118", "torchaudio": "==2.7.1+cu118"}


def test_uv_asks_the_variants_index_for_its_packages_alone() -> None:
    tree = tomllib.loads(install.uv(OLD))
    uv = tree["tool"]["uv"]
    (index,) = uv["index"]
    assert index == {"name": "pytorch-cu118", "url": INDEX, "explicit": True}
    assert set(uv["sources"]) == {"torch", "torchvision", "torchaudio"}
    assert "numpy<2" in tree["project"]["dependencies"]
    assert uv["environments"] == ["sys_platform == 'linux' and platform_machine == 'x86_64'"]


def test_a_conda_command_solves_on_a_machine_without_a_driver() -> None:
    words = shlex.split(install.command(CONDA))
    assert words[:3] == ["CONDA_OVERRIDE_CUDA=12.6", "conda", "create"]
    assert f"pytorch={CONDA.torch}=cuda*" in words
    assert f"python={CONDA.python}" in words
    assert words[words.index("--channel") + 1] == "conda-forge"
    assert "--override-channels" in words


@pytest.mark.parametrize("found", [CU118, PYPI, CONDA, OLD, ENDED], ids=lambda one: f"{one.source}-{one.torch}")
def test_environment_and_pixi_are_read_by_their_parsers(found: Resolution) -> None:
    environment = yaml.safe_load(install.environment(found))
    pixi = tomllib.loads(install.pixi(found))
    assert environment["channels"] == pixi["workspace"]["channels"]
    assert f"python={found.python}" in environment["dependencies"]
    assert pixi["dependencies"]["python"] == f"{found.python}.*"
    assert pixi["system-requirements"]["cuda"] == found.cuda
    torch = pixi["dependencies"].get("pytorch") or pixi["pypi-dependencies"]["torch"]
    assert found.torch in json.dumps(torch)
    assert found.torch in json.dumps(environment["dependencies"])


@pytest.mark.parametrize("wanted", ["torchaudio>=2.3,<3", "torchvision>=0.20,<0.23", "torchaudio"])
@pytest.mark.parametrize("cpu", [{"cpu": True}, {"cuda": "12.6"}])
def test_a_range_of_a_companion_is_in_every_form_of_conda(wanted: str, cpu: dict[str, str | bool]) -> None:
    found = resolve(parse({**cpu, "source": "conda-forge", "with": [wanted]}, facts()), facts())
    name, _, span = wanted.partition(">")
    assert name in tomllib.loads(install.pixi(found))["dependencies"]
    assert span in str(tomllib.loads(install.pixi(found))["dependencies"][name])
    assert name not in install.unnamed_companions(found)
    assert all(name in install.text_of(found, form) for form in install.CONDA_FORMATS)


def test_a_cpu_build_asks_for_no_cuda() -> None:
    found = resolve(parse({"cpu": True, "source": "conda-forge"}, facts()), facts())
    texts = [install.text_of(found, form) for form in ("conda", "pixi", "environment", "dockerfile")]
    assert all("cuda" not in text.lower() for text in texts)


@pytest.mark.parametrize(("form", "found", "source"), [("conda", CU118, "conda-forge"), ("uv", CONDA, "pytorch")])
def test_a_format_of_the_other_kind_of_package_is_refused(form: str, found: Resolution, source: str) -> None:
    with pytest.raises(UsageError, match=f"--format {form} cannot install") as caught:
        install.text_of(found, form)
    assert f"--source {source}" in (caught.value.hint or "")


@pytest.mark.parametrize("form", sorted(install.FORMATS))
def test_every_format_ends_with_one_newline_and_names_torch(form: str) -> None:
    found = CONDA if form in install.CONDA_FORMATS else replace(CU118, python="3.11")
    text = install.text_of(found, form)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert found.torch in text
