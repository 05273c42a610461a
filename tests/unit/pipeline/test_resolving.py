"""Packages that flags add to what a user asks for."""

from pathlib import Path

import pytest

from envkit.facts.load import load
from envkit.ground.errors import UsageError
from envkit.pipeline.resolving import asked

FACTS = load()


def plan_pip(definition: Path, *packages: str) -> tuple[tuple[str, ...], str | None]:
    """Return the packages of the plan's pip, and its torchaudio."""
    plan = asked(str(definition), {"with": packages, "gpu": ()}, FACTS, lambda _: None).plan()
    return plan.pip, plan.resolution.torchaudio


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(
        "schema: envkit.image/1\ntitle: A training\nrequest: {torch: '2.6.0', cuda: '12.6'}\npip: [einops==0.6]\n"
    )
    return path


def test_a_package_of_the_index_is_added(definition: Path) -> None:
    assert plan_pip(definition, "flash-attn") == (("einops==0.6", "flash-attn"), None)


def test_a_package_of_the_definition_is_replaced(definition: Path) -> None:
    assert plan_pip(definition, "Einops>=0.7")[0] == ("Einops>=0.7",)


def test_a_companion_is_chosen_with_torch(definition: Path) -> None:
    assert plan_pip(definition, "torchaudio", "torchao") == (("einops==0.6", "torchao"), "2.6.0")


@pytest.mark.parametrize("slip", ["torchvison", "torch-vision", "torch-audio", "pytorch-vision"])
def test_a_slip_of_a_companion_is_no_package_of_the_index(definition: Path, slip: str) -> None:
    with pytest.raises(UsageError, match="is not a package that is chosen with torch"):
        plan_pip(definition, slip)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a b", "is not a requirement; write a name and a version"),
        ("torch==2.4", "is chosen by the resolver; constrain torch under request"),
        ("./local.whl", "is not a requirement; write a name and a version"),
        ("-r more.txt", "is not a requirement; write a name and a version"),
        ("einops @ git+https://example.com/e", "is a git URL; list it under allow_source"),
    ],
)
def test_what_is_no_requirement_is_refused(definition: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"--with: '{text}' {why}".replace("+", r"\+")):
        plan_pip(definition, text)
