"""Specs of conda packages: their forms, and those of image definitions."""

from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.plan import conda_specs
from envkit.plan.definition import parse

HEAD = "schema: envkit.image/1\ntitle: t\n"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("numpy", "numpy"),
        ("numpy=1.26", "numpy=1.26"),
        ("numpy >=1.26,<2", "numpy >=1.26,<2"),
        ("numpy=1.26.*=py311*", "numpy=1.26.*=py311*"),
        ("numpy >=1.26 py311*", "numpy >=1.26 py311*"),
        ("numpy>=1.26=py311*", "numpy >=1.26 py311*"),
        ("numpy[version='>=1.26', build=py311*]", "numpy >=1.26 py311*"),
        ("numpy[build='py311*']", "numpy=*=py311*"),
        ('numpy[version="1.26"]', "numpy ==1.26"),
        ("numpy[version=1.26.*]", "numpy=1.26.*"),
        ("conda-forge::numpy[version='>=1.26,<2']", "numpy >=1.26,<2"),
        ("numpy[channel=conda-forge]", "numpy"),
        ("numpy[]", "numpy"),
    ],
)
def test_every_form_has_a_plain_one(text: str, plain: str) -> None:
    spec = conda_specs.parse(text)
    assert spec is not None
    assert spec.text == plain
    assert conda_specs.check(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "numpy[", "numpy]", "numpy[version]", "numpy[version=]", "numpy[url=https://index.example/x.conda]",
        "numpy[version='>=1' build=x]", "numpy[version='1', version='2']", "numpy[md5=0]", "numpy[version='>=1]",
        "numpy[version='1'][build=x]", "./numpy", "https://index.example/x.conda", "numpy[version='$(x)']",
        "nvidia::numpy[version=1]", "pytorch[version=latest]", "numpy[build='a b']" + "x" * 300,
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    assert conda_specs.check(text) is not None


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        ("py3.10_cuda12.1_cudnn8.9.2_0", ("cuda", "12.1")),
        ("cuda126_py311", ("cuda", "12.6")),
        ("cuda12*", ("cuda", "12.*")),
        ("*cuda*", None),
        ("cpu_generic*", ("cpu", "true")),
        ("py311_0", None),
    ],
)
def test_build_strings_of_torch_name_the_device(build: str, wanted: tuple[str, str] | None) -> None:
    assert conda_specs.device(build) == wanted


@pytest.mark.parametrize(
    ("spec", "request_of"),
    [
        ("pytorch=2.4.*=cuda12*", {"torch": "2.4.*", "cuda": "12.*"}),
        ("pytorch>=2.7.0=cuda12*", {"torch": ">=2.7.0", "cuda": "12.*"}),
        ("pytorch[version='>=2.4', build=cpu*]", {"torch": ">=2.4", "cpu": True}),
        ("pytorch=2.4", {"torch": "2.4"}),
    ],
)
def test_a_spec_of_torch_constrains_the_request(spec: str, request_of: dict[str, object]) -> None:
    definition = parse(f'{HEAD}conda: ["{spec}", scipy]\n', where="d.yaml", folder=Path())
    assert (dict(definition.request), definition.conda) == (request_of, ("scipy",))


def test_a_spec_of_torch_that_contradicts_the_request_is_an_error() -> None:
    text = f"{HEAD}request: {{torch: 2.7.0}}\nconda: ['pytorch==2.4.0']\n"
    with pytest.raises(UsageError, match=r"conda\[0\]: 'pytorch==2.4.0' contradicts"):
        parse(text, where="d.yaml", folder=Path())
