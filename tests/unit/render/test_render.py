import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.ground.settings import Mirrors
from envkit.plan import names
from envkit.plan.model import BuildPlan
from envkit.plan.store import plan_from_json
from envkit.render import lint
from envkit.render.dockerfile import command, parse
from envkit.render.model import SYNTAXES, Rendered
from envkit.render.render import render
from tests.support.plans import context, plan_from, shipped_plan

FREE = st.text(max_size=40).filter(lambda value: names.text(value) is None)
LABEL = st.from_regex(r"com\.example\.[a-z][a-z0-9]{0,8}", fullmatch=True)
VARIABLE = st.from_regex(r"MY_[A-Z0-9]{0,8}", fullmatch=True)


def shape(made: Rendered) -> list[tuple[str, str | None]]:
    """Keywords with the whole text of those that run something."""
    return [
        (item.keyword, item.text if item.keyword in ("RUN", "COPY", "FROM") else None)
        for item in parse(made.dockerfile).instructions
    ]


@pytest.mark.requirement("R5")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    title=FREE.filter(bool),
    env=st.dictionaries(VARIABLE, FREE, max_size=3),
    labels=st.dictionaries(LABEL, FREE, max_size=3),
    cmd=st.lists(FREE, max_size=3),
    syntax=st.sampled_from(SYNTAXES),
)
def test_no_value_becomes_an_instruction(
    title: str, env: dict[str, str], labels: dict[str, str], cmd: list[str], syntax: str
) -> None:
    plain = shipped_plan("cu126")
    plan = dataclasses.replace(
        plain,
        title=title,
        env=tuple(sorted((dict(plain.env) | env).items())),
        labels=tuple(sorted(labels.items())),
        cmd=tuple(cmd),
    )
    made = render(plan, syntax=syntax)
    assert shape(made) == shape(render(plain, syntax=syntax))
    parsed = parse(made.dockerfile)
    found_env = dict(parsed.final("ENV")[0].pairs)
    found_labels = dict(parsed.final("LABEL")[0].pairs)
    assert {name: found_env[name] for name in env} == env
    assert {name: found_labels[name] for name in labels} == labels
    assert found_labels["org.opencontainers.image.title"] == title
    assert command(parsed.final("CMD")[0].text) == cmd
    assert parsed.final("USER")[0].text == "1000:1000"


@pytest.mark.requirement("R5")
@pytest.mark.parametrize("field", ["title", "env", "labels"])
@pytest.mark.parametrize("value", ["x\nRUN touch /PWNED", "x\rUSER root", "x\u2028y", "\x1b]52;c;x\x07"])
def test_a_value_with_a_line_end_is_refused(field: str, value: str) -> None:
    changes: dict[str, Any] = {"title": value} if field == "title" else {field: (("com.example.x", value),)}
    with pytest.raises(UsageError, match="cannot be written into a Dockerfile"):
        render(dataclasses.replace(shipped_plan("cu126"), **changes))


@pytest.mark.parametrize("template", ["miniconda", "wheels"])
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_rendering_is_a_fixed_point(template: str, syntax: str) -> None:
    plan = shipped_plan("jupyter", template=template)
    first = render(plan, syntax=syntax)
    again = plan_from_json(json.loads(first.files["plan.json"]), "plan.json")
    assert again == plan
    assert render(again, syntax=syntax) == first


@pytest.mark.requirement("R6")
def test_the_run_lines_are_the_same_for_every_plan() -> None:
    def runs(plan: BuildPlan) -> list[str]:
        return [item.text for item in parse(render(plan).dockerfile).of("RUN")]

    one = plan_from("request: {cuda: 12.6}\nconda: [scipy]\npip: [einops]\napt: [git]\nworkdir: /srv/a\nuser: '7'\n")
    other = plan_from("request: {cuda: 11.8}\nconda: [pandas >=2]\npip: [lightning]\napt: [less]\nenv: {A: b}\n")
    assert runs(one) == runs(other)


def test_environment_yml_holds_what_the_plan_says() -> None:
    plan = plan_from("request: {cuda: 11.8}\nconda: [scipy >=1.11]\npip: [einops>=0.7]\n")
    made = render(plan)
    tree: Any = strictyaml.read(made.environment or "", "environment.yml")
    assert tree["channels"] == ["conda-forge"]
    assert tree["dependencies"][:2] == [f"python={plan.resolution.python}", "pip"]
    assert "scipy >=1.11" in tree["dependencies"]
    assert tree["dependencies"][-1] == {
        "pip": [
            "--index-url https://download.pytorch.org/whl/cu118",
            "--only-binary=:all:",
            "torch==2.7.1+cu118",
            "torchvision==0.22.1+cu118",
        ]
    }
    assert made.files["requirements.txt"] == b"--only-binary=:all:\neinops>=0.7\n"
    assert made.files["constraints.txt"] == b"torch==2.7.1+cu118\ntorchvision==0.22.1+cu118\n"


def test_a_conda_forge_image_needs_no_pip() -> None:
    made = context("cpu")
    assert "pip" not in (made.environment or "")
    assert "pip install" not in made.dockerfile
    with_pip = render(plan_from("request: {cpu: true}\npip: [einops]\n"))
    assert "  - pip\n" in (with_pip.environment or "")
    assert with_pip.files["constraints.txt"].startswith(b"torch==")


def test_constraints_hold_in_every_pip_install_without_a_lock() -> None:
    plan = plan_from('template: wheels\npip: [transformers]\nconstraints: ["numpy<2", "pillow<11"]\n')
    made = render(plan)
    assert made.files["constraints.txt"].splitlines()[-2:] == [b"numpy<2", b"pillow<11"]
    assert b"-c constraints.txt" in made.files["torch.txt"].splitlines()
    assert "pip install --no-cache-dir --only-binary=:all: -c constraints.txt -r requirements.txt" in made.dockerfile
    assert b"numpy<2" in made.files["torch.txt"].splitlines()
    alone = render(plan_from('constraints: ["pillow<11"]\n'))
    assert b"-c constraints.txt" in alone.files["environment.yml"]
    assert "constraints.txt" in alone.files
    assert "requirements.txt" not in alone.files
    by_conda = render(plan_from('constraints: ["pillow<11"]\nrequest: {cpu: true}\n'))
    assert "constraints.txt" not in by_conda.files  # pip installs nothing there


def test_mirrors_replace_every_source() -> None:
    mirrors = Mirrors(
        registry="registry.example.com",
        conda_channel_alias="https://conda.example.com/c/",
        miniconda="https://mirror.example.com/m",
        pytorch_index="https://wheels.example.com/whl",
        python_index="https://index.example.com/simple",
        ca_bundle="/etc/ca.pem",
    )
    plan = plan_from("request: {cuda: 11.8}\npip: [einops]\n")
    made = render(plan, mirrors=mirrors)
    text = "\n".join(data.decode() for name, data in made.files.items() if name not in ("plan.json", "Dockerfile"))
    assert "repo.anaconda.com" not in text
    assert "download.pytorch.org" not in text
    assert made.final_image == "registry.example.com/library/debian:bookworm-slim"
    assert "--index-url https://wheels.example.com/whl/cu118" in text
    assert "--index-url https://index.example.com/simple" in made.files["requirements.txt"].decode()
    assert 'channel_alias: "https://conda.example.com/c"' in text
    assert 'url = "https://mirror.example.com/m/Miniconda3' in text


def test_a_ca_bundle_stays_in_the_build_stage() -> None:
    made = render(shipped_plan("cu126"), mirrors=Mirrors(ca_bundle="/etc/ca.pem"), syntax="buildkit")
    parsed = parse(made.dockerfile)
    copies = [item for item in parsed.of("COPY") if "ca-bundle.pem" in item.text]
    assert copies
    assert {item.stage for item in copies} == {0}
    assert not [item for item in parsed.final("ENV") if "ca-bundle" in item.text]
    assert b"!ca-bundle.pem\n" in made.files[".dockerignore"]
    assert "ca-bundle.pem" not in made.files
    assert not parsed.of("ADD")
    assert b"ssl_verify: /build/ca-bundle.pem\n" in made.files["condarc"]


def test_a_miniconda_image_takes_the_installers_place() -> None:
    made = render(
        shipped_plan("cu126"), mirrors=Mirrors(miniconda_image="registry.example.com/continuumio/miniconda3:1")
    )
    assert made.build_image == "registry.example.com/continuumio/miniconda3:1"
    assert not {name for name in made.files if name.startswith("miniconda.")}
    assert "curl" not in made.dockerfile
    wheels = render(
        shipped_plan("cu126", template="wheels"), mirrors=Mirrors(miniconda_image="registry.example.com/m:1")
    )
    assert wheels.build_image == "docker.io/library/debian:bookworm-slim"


def test_buildkit_adds_the_installer_by_checksum() -> None:
    plan = shipped_plan("cu126")
    assert plan.installer is not None
    add = parse(render(plan, syntax="buildkit").dockerfile).of("ADD")[0]
    assert add.flags == (f"--checksum=sha256:{plan.installer.sha256}",)
    assert add.text == f"{plan.installer.url} miniconda.sh"


def test_given_bases_stand_in_from() -> None:
    base, build = "sha256:" + "a" * 64, "registry.example.com/b:1@sha256:" + "b" * 64
    made = render(shipped_plan("cu126"), base=base, build_base=build)
    assert [item.text for item in parse(made.dockerfile).of("FROM")] == [f"{build} AS build", base]
    with pytest.raises(UsageError, match="base: 'x y' is not an image reference"):
        render(shipped_plan("cu126"), base="x y")


def test_nothing_else_than_what_is_needed_is_copied() -> None:
    made = context("centos7")
    copied = {name for item in parse(made.dockerfile).of("COPY") if not item.flags for name in item.text.split()[:-1]}
    assert copied == set(made.files) - {"Dockerfile", ".dockerignore"}


def test_unknown_syntaxes_and_commands_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown Dockerfile syntax 'buildx'"):
        render(shipped_plan("cu126"), syntax="buildx")
    with pytest.raises(UsageError, match="cannot be written into the first line"):
        render(shipped_plan("cu126"), command="envkit render x\nRUN id")


def test_the_first_line_names_its_maker() -> None:
    made = render(shipped_plan("cu126"), command="envkit render images/cu126.yaml")
    first = "# Generated by: envkit render images/cu126.yaml; do not edit"
    assert made.dockerfile.splitlines()[0] == first
    assert (made.environment or "").splitlines()[0] == first


def test_ssh_brings_its_server_script() -> None:
    made = render(plan_from("features: [ssh]\n"))
    assert b"PasswordAuthentication=no" in made.files["sshd.sh"]
    assert made.files["system.txt"] == b"openssh-server\n"
    assert [item for item in lint.check(made) if item.severity == "error"] == []
