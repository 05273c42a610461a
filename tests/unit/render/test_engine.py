from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.render.engine import blocks, environment, render_template

NAMED = ("base", "system", "user", "env", "install", "smoke", "entrypoint", "final")


@pytest.mark.parametrize("template", ["miniconda", "wheels"])
def test_the_promised_blocks_are_there(template: str) -> None:
    assert set(NAMED) <= set(blocks(f"{template}.Dockerfile.j2", ()))


def test_blocks_of_an_own_template_come_in_order(tmp_path: Path) -> None:
    (tmp_path / "miniconda-mine.Dockerfile.j2").write_text(
        '{% extends "builtin/miniconda.Dockerfile.j2" %}{% block env %}{{ super() }}{% endblock %}'
    )
    assert blocks("miniconda-mine.Dockerfile.j2", (tmp_path,)) == blocks("miniconda.Dockerfile.j2", ())


def test_an_unknown_template() -> None:
    with pytest.raises(UsageError, match=r"unknown template 'nope.Dockerfile.j2'"):
        blocks("nope.Dockerfile.j2", ())


def text(source: str, folder: Path, **values: object) -> str:
    (folder / "t.j2").write_text(source)
    return render_template("t.j2", values, (folder,))


def test_blank_lines_are_tidied(tmp_path: Path) -> None:
    assert text("\n\na  \n\n\n\nb\n\n", tmp_path) == "a\n\nb\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ nope }}", "'nope' is undefined"),
        ("{% if %}", "t.j2:1:"),
        ("{% include '../../etc/passwd' %}", "unknown template"),
        ("{% include '/etc/passwd' %}", "unknown template"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ x.append(1) }}", "unsafe|not safely callable"),
        ("{{ range(10000000) | list }}", "Range too big|range"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ {} | tojson(indent='x' * 3) | quoted | int + 'a' }}", "template t.j2"),
        ("{{ 'a\nb' | quoted }}", "cannot be written into a Dockerfile"),
    ],
)
def test_faults_of_a_template_are_the_users(source: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        text(source, tmp_path, x=[1])


def test_too_much_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="produces more than"):
        text("{{ 'x' * 2000000 }}", tmp_path)


@pytest.mark.requirement("R7")
def test_the_sandbox_has_no_way_out() -> None:
    assert "open" not in environment(()).globals
    assert environment(()).is_safe_attribute("", "__class__", "") is False


def test_in_exported_files_braces_and_hashes_are_other_programs(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    loop = "{% for one in values %}\n- @{ one|yaml }\n{% endfor %}\n"
    (tmp_path / "export" / "t.j2").write_text("@# not shown #@\na: ${{ github.ref }} ${#list[@]} {{ x }}\n" + loop)
    made = render_template("export/t.j2", {"values": ["no", "b"]}, (tmp_path,))
    assert made == 'a: ${{ github.ref }} ${#list[@]} {{ x }}\n- "no"\n- b\n'
