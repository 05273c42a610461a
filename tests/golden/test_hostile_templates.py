"""Templates of other hands: rendered in a process of their own, bounded in time and memory."""

import os
from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.render.render import render
from tests.support.exports import exported
from tests.support.plans import shipped_plan

EXTENDS = '{% extends "builtin/miniconda.Dockerfile.j2" %}\n'


def own(folder: Path, body: str, name: str = "miniconda-mine") -> str:
    (folder / f"{name}.Dockerfile.j2").write_text(EXTENDS + body)
    return render(shipped_plan("cu126", template=name), template_dirs=(folder,)).dockerfile


def test_a_block_is_overridden_and_extended(tmp_path: Path) -> None:
    text = own(tmp_path, "{% block env %}{{ super() }}ENV SITE={{ torch | quoted }}\n{% endblock %}")
    assert 'ENV SITE="2.' in text
    assert "COPY --from=build /opt/env /opt/env" in text


def test_a_built_in_name_is_replaced_by_the_users(tmp_path: Path) -> None:
    assert "ENV SITE" in own(tmp_path, '{% block labels %}ENV SITE="1"\n{% endblock %}', name="miniconda")


@pytest.mark.requirement("R7")
@pytest.mark.parametrize(
    "body",
    [
        "{% block env %}{{ 'x' * 10000000000 }}{% endblock %}",
        "{% block env %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endblock %}",
        "{% block env %}{{ cycler.__init__.__globals__.os.popen('touch PWNED').read() }}{% endblock %}",
        "{% block env %}{{ self.__init__.__globals__ }}{% endblock %}",
        "{% block env %}{{ ''.__class__.__base__.__subclasses__() }}{% endblock %}",
        "{% block env %}{{ nope }}{% endblock %}",
        "{% block env %}{% include '../secret' %}{% endblock %}",
        "{% block env %}{{ 2 ** 999999999 }}{% endblock %}",
        "{% block env %}{% endblok %}",
    ],
)  # fmt: skip
def test_hostile_templates_end_soon_and_do_nothing(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        own(tmp_path, body)
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("{% block base %}# syntax=registry.example.com/evil\n{{ super() }}{% endblock %}", "D3"),
        ('{% block env %}{{ super() }}ENV LD_PRELOAD="/x.so"\n{% endblock %}', "D46"),
        ("{% block system %}RUN --security=insecure set -eu; id\n{% endblock %}", "D27"),
        ('{% block env %}{{ super() }}ENV NVIDIA_DISABLE_REQUIRE="1"\n{% endblock %}', "D46"),
    ],
)
def test_protections_cannot_be_switched_off(body: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"error {rule}"):
        own(tmp_path, body)


def test_an_exported_file_from_a_users_template(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "devcontainer.json.j2").write_text('{"name": @{ title|json }}@# a comment #@\n')
    files = exported("devcontainer", ("cpu",), template_dirs=(tmp_path,))
    assert files == {".devcontainer/devcontainer.json": '{"name": "PyTorch on the CPU"}\n'}


def test_a_hostile_template_of_an_exported_file_ends_soon(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "github.yml.j2").write_text("@{ 'x' * 10000000000 }")
    with pytest.raises(UsageError, match=r"template export/github.yml.j2 exceeded the limit on memory or time"):
        exported("github", ("cpu",), template_dirs=(tmp_path,))


@pytest.mark.requirement("R7")
@pytest.mark.parametrize(("kind", "part"), [("slurm", "slurm-images.j2"), ("kubernetes", "kubernetes-macros.j2")])
def test_a_part_that_a_built_in_export_includes_is_confined(kind: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / part).write_text("@{ ('x' * 1500000000)[:3] }")
    with pytest.raises(UsageError, match="exceeded the limit on memory or time"):
        exported(kind, ("cpu",), template_dirs=(tmp_path,))


@pytest.mark.requirement("R7")
@pytest.mark.parametrize("link", ["key.j2", "sub"])
def test_a_link_out_of_the_folder_is_not_read(link: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "templates"
    outside.mkdir()
    folder.mkdir()
    (outside / "key.j2").write_text("SECRET")
    (folder / link).symlink_to(outside / ("key.j2" if link == "key.j2" else ""))
    name = "key.j2" if link == "key.j2" else "sub/key.j2"
    with pytest.raises(UsageError, match=r"is a link to a file outside") as caught:
        own(folder, f'{{% block labels %}}LABEL "x"="{{% include "{name}" %}}"\n{{% endblock %}}')
    assert "SECRET" not in str(caught.value)


def test_a_link_inside_the_folder_is_a_template(tmp_path: Path) -> None:
    (tmp_path / "real.j2").write_text("berlin")
    (tmp_path / "site.j2").symlink_to(tmp_path / "real.j2")
    text = own(tmp_path, '{% block labels %}{{ super() }}LABEL "x"="{% include "site.j2" %}"\n{% endblock %}')
    assert 'LABEL "x"="berlin"' in text


def test_a_pipe_in_the_folder_is_no_template(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.j2")
    with pytest.raises(UsageError, match=r"unknown template 'pipe.j2'"):
        own(tmp_path, '{% block labels %}{% include "pipe.j2" %}{% endblock %}')
