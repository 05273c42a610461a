from dataclasses import replace
from typing import Any

import pytest

from envkit.facts.load import load
from envkit.ground.errors import LockError
from envkit.lock import request
from envkit.lock.model import Lock, RequestValue
from envkit.plan.model import BuildPlan
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan
from tests.unit.lock.samples import lock

FACTS = load(None)
CPU = shipped_plan("cpu")
CU126 = shipped_plan("cu126")
WHEELS = shipped_plan("cu126", template="wheels")
JUPYTER = shipped_plan("jupyter", template="wheels")


def asked(plan: BuildPlan) -> tuple[tuple[str, RequestValue], ...]:
    return request.request_of(plan, glibc="2.36", base=plan.base)


def of(plan: BuildPlan, **more: Any) -> Lock:
    """A lock of the plan that has all it asks for."""
    return replace(lock_for(plan), **more)


def test_torch_of_conda_is_one_solve() -> None:
    specs = request.conda_specs(CPU)
    assert specs[0] == "python=3.11"
    assert "pip" not in specs
    assert any(spec.startswith("pytorch=") and spec.endswith("=cpu*") for spec in specs)
    assert request.torch_wheels(CPU) == ()


def test_wheels_in_a_conda_prefix_need_pip_and_leave_torch_out_of_conda() -> None:
    specs = request.conda_specs(CU126)
    assert specs[:2] == ("python=3.11", "pip")
    assert not any("torch" in spec for spec in specs)
    assert request.torch_wheels(CU126)[0].startswith("torch==")
    assert request.torch_wheels(CU126)[0].endswith("+cu126")


def test_the_wheels_template_has_no_conda_specs() -> None:
    assert request.conda_specs(WHEELS) == ()
    assert dict(asked(WHEELS))["virtual"] == ()
    assert dict(asked(JUPYTER))["pip"] != ()


def test_the_machine_is_the_images_and_not_this_host() -> None:
    assert request.virtual_packages(CU126, "2.36") == (
        "__archspec=1=x86_64",
        "__cuda=12.6=0",
        "__glibc=2.36=0",
        "__linux=5.10=0",
        "__unix=0=0",
    )
    assert not any(name.startswith("__cuda") for name in request.virtual_packages(CPU, "2.36"))


@pytest.mark.parametrize("plan", [CPU, CU126, WHEELS, JUPYTER])
def test_a_lock_of_this_request_is_not_stale(plan: BuildPlan) -> None:
    assert request.drift(of(plan), asked(plan)) == ()


def test_what_no_solver_sees_leaves_a_lock_valid() -> None:
    other = replace(CPU, labels=(("team", "x"),), env=(), facts_digest="0" * 64, title="other", user="7:7")
    assert other.digest != CPU.digest
    assert request.drift(of(CPU), asked(other)) == ()


@pytest.mark.requirement("R14")
@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (replace(CPU, conda=(*CPU.conda, "scipy")), "conda: nothing in the lock, scipy requested"),
        (replace(CPU, conda=CPU.conda[:-1]), "conda: numpy in the lock, nothing requested"),
        (replace(CPU, pip=("six",)), "pip: nothing in the lock, six requested"),
        (
            replace(CPU, channels=("other", *CPU.channels)),
            "channels: nothing in the lock, other requested",
        ),
        (
            replace(CPU, resolution=replace(CPU.resolution, python="3.12")),
            "python: 3.11 in the lock, 3.12 requested",
        ),
        (replace(CPU, system=("tini",)), "system: nothing in the lock, tini requested"),
    ],
)
def test_drift_names_the_field_and_both_values(changed: BuildPlan, line: str) -> None:
    lines = request.drift(of(CPU), asked(changed))
    assert line in lines


def test_the_order_of_channels_is_part_of_the_request() -> None:
    one, other = replace(CPU, channels=("a", "b")), replace(CPU, channels=("b", "a"))
    assert request.drift(of(one), asked(other)) == ("channels: a, b in the lock, b, a requested",)


def test_another_day_is_another_request() -> None:
    made = of(CPU, as_of="2026-01-01T00:00:00Z")
    assert request.drift(made, asked(CPU)) == ()
    assert request.drift(made, asked(CPU), as_of="2026-02-01T00:00:00Z") == (
        "as of: 2026-01-01T00:00:00Z in the lock, 2026-02-01T00:00:00Z requested",
    )


@pytest.mark.parametrize("plan", [CPU, CU126, WHEELS, JUPYTER])
def test_a_builder_compares_a_lock_with_its_plan_alone(plan: BuildPlan) -> None:
    made = replace(of(plan), request=request.request_of(plan, glibc="2.36", base="registry.example.com/base:1"))
    assert request.misfit(made, plan) == ()
    other = replace(plan, resolution=replace(plan.resolution, os="ubuntu22.04"))
    assert request.misfit(made, other) == ("os: debian12 in the lock, ubuntu22.04 requested",)
    assert request.misfit(lock(), plan) != ()


@pytest.mark.requirement("R14")
def test_a_lock_of_another_plan_is_refused() -> None:
    fitting = of(CPU)
    request.require_fit(fitting, CPU)
    with pytest.raises(LockError, match="the lock is stale: conda: nothing in the lock, scipy requested") as caught:
        request.require_fit(fitting, replace(CPU, conda=(*CPU.conda, "scipy")))
    assert caught.value.exit_code == 4
    assert caught.value.hint == "envkit lock writes a new one"
