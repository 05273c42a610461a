"""The builder image: the plan's Python and a compiler, and nothing that only the image itself is about."""

from dataclasses import replace

import pytest

from envkit.plan.toolchain import Needs, builder_plan
from tests.support.plans import facts, plan_from

PLAIN = Needs(requires=("setuptools",), torch=False, nvcc=False)
EXTENSION = Needs(requires=("ninja", "setuptools"), torch=True, nvcc=True)


def test_the_system_python_comes_with_its_headers_and_a_compiler() -> None:
    plan = builder_plan(plan_from("template: wheels\nrequest: {cpu: true, source: pytorch}\n"), PLAIN, facts())
    assert plan.system == ("python3", "python3-dev", "build-essential")
    assert (plan.pip, plan.family, plan.conda) == (("setuptools",), (), ())


def test_python_of_conda_brings_its_own_headers() -> None:
    plan = builder_plan(plan_from("request: {cpu: true}\n"), PLAIN, facts())
    assert plan.system == ("build-essential",)


def test_an_extension_of_torch_is_built_with_the_plans_torch_in_the_devel_flavor() -> None:
    plan = plan_from('request: {cuda: "12.6", os: ubuntu22.04}\n')
    made = builder_plan(plan, EXTENSION, facts())
    assert made.family == plan.family
    assert made.flavor == "devel"
    assert made.base.startswith("docker.io/nvidia/cuda:12.6")


def test_without_cuda_nothing_needs_nvcc() -> None:
    made = builder_plan(plan_from("request: {cpu: true}\n"), EXTENSION, facts())
    assert made.flavor == "runtime"


@pytest.mark.parametrize(
    "more",
    ["labels: {com.example.team: a}\n", "pip: [einops]\n", 'user: "2000:2000"\n', "env: {A: b}\n", "features: [ssh]\n"],
)
def test_what_the_image_says_of_itself_has_no_part_in_it(more: str) -> None:
    one = builder_plan(plan_from("request: {cpu: true}\n"), PLAIN, facts())
    other = builder_plan(plan_from(f"request: {{cpu: true}}\n{more}"), PLAIN, facts())
    assert other.digest == replace(one, facts_digest=other.facts_digest).digest
