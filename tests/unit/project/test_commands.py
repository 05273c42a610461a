"""The commands of a Dockerfile: which words become packages, and which commands are lost by name.

The inputs are after the pattern of public Dockerfiles.
"""

import re
from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.plan.requirements import Contents
from envkit.project.build_commands import NOT_RUN
from envkit.project.container_files import dockerfile


def read(tmp_path: Path, *lines: str) -> Contents:
    (tmp_path / "Dockerfile").write_text("\n".join(["FROM python:3.11", *lines]) + "\n")
    return dockerfile("Dockerfile", tmp_path)


def installed(contents: Contents) -> list[str]:
    """Everything that an image gets: packages of pip, of conda and of apt, and the torch family."""
    fields = ("conda", "apt", "torch", "torchvision", "torchaudio")
    settings = [f"{x.field} {x.value}".strip() for x in contents.settings if x.field in fields]
    return [*(package.spec for package in contents.packages), *settings]


def lost(contents: Contents) -> list[str]:
    return [row.line.text for row in contents.skipped if not row.harmless]


@pytest.mark.parametrize(
    ("line", "packages"),
    [
        ("RUN pip install einops tqdm   # the apt one is old", ["einops", "tqdm"]),
        ("RUN pip install einops #tqdm comes later", ["einops"]),
        (
            "RUN pip install einops && pip install tqdm # both; pip install more && apt-get install git",
            ["einops", "tqdm"],
        ),
        ("RUN apt-get install -y git # curl wget are in the base", ["apt git"]),
        ("RUN conda install -y scipy # numpy comes with it", ["conda scipy"]),
        ("RUN pip install \\\n  einops \\\n  # tqdm \\\n  # && pip install more\n  rich", ["einops", "rich"]),
        ("RUN pip install \\\n  einops # the rest \\\n  tqdm", ["einops"]),
        ("RUN <<EOF\npip install einops # one\n# pip install tqdm\npip install rich\nEOF", ["einops", "rich"]),
        ("RUN pip install 'einops' \"tqdm # x\" rich", ["einops", "rich"]),
        ("RUN pip install einops#egg rich", ["rich"]),
    ],
)
def test_comments_end_as_in_a_shell(tmp_path: Path, line: str, packages: list[str]) -> None:
    assert installed(read(tmp_path, line)) == packages


@pytest.mark.parametrize(
    ("run", "packages"),
    [
        (
            "pip install --progress-bar off --default-timeout 100 --upgrade-strategy eager torch==2.6.0",
            ["torch ==2.6.0"],
        ),
        (
            "uv pip install --system --index-strategy unsafe-best-match --python /opt/venv/bin/python einops",
            ["einops"],
        ),
        ("pip install --no-deps --config-settings x=y tqdm", ["tqdm"]),
        ("pip install --proxy http://proxy.example:3128 --cert ca.pem --retries 5 einops", ["einops"]),
        ("pip install --no-binary :all: --only-binary numpy einops", ["einops"]),
        ("pip install --src /src --log build.log --cache-dir /cache einops", ["einops"]),
        (
            "pip install --platform manylinux2014_x86_64 --python-version 311 --abi cp311 --implementation cp einops",
            ["einops"],
        ),
        ("pip install --root-user-action ignore --use-feature fast-deps --report out.json einops", ["einops"]),
        ("pip install -t lib --prefix /usr/local --root / einops", ["einops"]),
        ("pip install --global-option build_ext --install-option x --exists-action w einops", ["einops"]),
        ("pip install --keyring-provider disabled --trusted-host index.example einops", ["einops"]),
        ("pip --no-cache-dir --timeout 60 install einops", ["einops"]),
        ("pip install -qqU --no-cache einops", ["einops"]),
        ("pip install --extra-index https://index.example/cu118 einops", ["einops"]),
        ("pip install -ihttps://index.example/simple einops", ["einops"]),
        ("pip install einops -- --progress-bar", ["einops"]),
        ("uv pip install --link-mode copy --exclude-newer 2025-01-01 --resolution lowest einops", ["einops"]),
        ("uv pip install -p 3.11 -P tqdm --refresh-package rich --color never einops", ["einops"]),
        ("uv pip install --prerelease allow --python-platform linux --override o.txt einops", ["einops"]),
        ("uv --directory /app add --bounds major --group dev --package demo einops", ["einops"]),
        ("conda install -y -n base --solver libmamba --repodata-fn current.json scipy", ["conda scipy"]),
        ("conda create -y --name demo --subdir linux-64 scipy", ["conda scipy"]),
        ("mamba install -y -q -p /opt/conda scipy", ["conda scipy"]),
        ("micromamba install -y -r /opt/mamba -n base --log-level info scipy", ["conda scipy"]),
        ("apt-get -o Acquire::Retries=3 install -y -t bookworm-backports -qq git", ["apt git"]),
        ("apt-get install -y -q=2 --no-install-recommends git", ["apt git"]),
    ],
)
def test_values_of_options_are_no_packages(tmp_path: Path, run: str, packages: list[str]) -> None:
    assert installed(read(tmp_path, f"RUN {run}")) == packages


@pytest.mark.parametrize(
    ("run", "fields"),
    [
        ("uv pip install torch --index https://index.example/whl/cpu", [("cpu", "true")]),
        ("uv pip install torch --default-index=https://index.example/whl/cu124", [("cuda", "12.4")]),
        ("uv pip install torch --torch-backend cu124", [("cuda", "12.4")]),
        ("uv pip install torch --torch-backend=cpu", [("cpu", "true")]),
        ("uv add torch --index pytorch=https://index.example/whl/cu121", [("cuda", "12.1")]),
        ("UV_TORCH_BACKEND=cu118 uv pip install torch", [("cuda", "11.8")]),
        ("PIP_EXTRA_INDEX_URL=https://index.example/whl/cpu pip install torch", [("cpu", "true")]),
        ("pip install torch --extra-index https://index.example/whl/cu118", [("cuda", "11.8")]),
    ],
)
def test_every_form_of_an_index_selects_the_device(tmp_path: Path, run: str, fields: list[tuple[str, str]]) -> None:
    contents = read(tmp_path, f"RUN {run}")
    assert [(x.field, x.value) for x in contents.settings if x.field in ("cuda", "cpu")] == fields


@pytest.mark.parametrize(
    ("run", "named", "why"),
    [
        ("pip install --frobnicate yes einops", "pip install --frobnicate yes einops", "--frobnicate"),
        ("pip install -z einops", "pip install -z einops", "-z"),
        ("pip install $PACKAGES einops", "pip install $PACKAGES einops", "$PACKAGES"),
        ('pip install "${EXTRA}" einops', 'pip install "${EXTRA}" einops', "${EXTRA}"),
        ("pip install $(cat list) einops", "pip install $(cat list) einops", "$(cat list)"),
        ("pip install `ls dist` einops", "pip install `ls dist` einops", "`ls dist`"),
        ("pip install -i $INDEX einops", "pip install -i $INDEX einops", "$INDEX"),
        (
            "pip install -r <(grep -v torch requirements.txt)",
            "-r <(grep -v torch requirements.txt)",
            "only during the build",
        ),
        ("pip install --dry-run einops", "pip install --dry-run einops", "--dry-run"),
        ("pip install -r", "pip install -r", "has no value"),
        ("uv add --frob x einops", "uv add --frob x einops", "--frob"),
        ("conda install --frob x scipy", "conda install --frob x scipy", "--frob"),
        ("micromamba install --category a b scipy", "micromamba install --category a b scipy", "--category"),
        (
            "mamba install --channel-priority strict scipy",
            "mamba install --channel-priority strict scipy",
            "--channel-priority",
        ),
        ("apt-get install --frob x git", "apt-get install --frob x git", "--frob"),
        ("echo einops | xargs pip install", "xargs pip install", "shell commands"),
        ("xargs -a list -n 1 pip install", "xargs -a list -n 1 pip install", "shell commands"),
        ("echo pip install einops", "echo pip install einops", "shell commands"),
        ("retry pip install einops", "retry pip install einops", "shell commands"),
        ("false || pip install einops", "pip install einops", "only if the command before it fails"),
        ("[ -f x ] && pip install einops", "pip install einops", "the test before it"),
        ("grep -q x y && pip install einops && pip install rich", "pip install rich", "the test before it"),
        ('if [ "$X" = true ]; then pip install einops; fi', "pip install einops", "depends on an if"),
        ("if ! pip install einops; then exit 1; fi", "pip install einops", "depends on an if"),
        ("for p in einops rich; do pip install $p; done", "pip install $p", "$p"),
        ("for i in 1 2 3; do pip install einops && break; done", "pip install einops", "in a loop"),
        ("while read p; do pip install einops; done < list", "pip install einops", "in a loop"),
        ("case $(uname -m) in x86_64) pip install einops ;; esac", "pip install einops", "depends on a case"),
        ("get() { pip install einops; }; get", "get() { pip install einops; }; get", "cannot read a function"),
        ("if true; then bash -c 'pip install einops'; fi", "pip install einops", "depends on an if"),
        ("exit 0; pip install einops", "pip install einops", "exit ends"),
        ("pip install 'einops", "pip install 'einops", "cannot read a ' without its end"),
        ("python - <<EOF\nimport os\nos.system('x; pip install einops')\nEOF", "python - <<EOF", "shell commands"),
        ("cat <<EOF > setup.sh\npip install einops\nEOF", "cat <<EOF > setup.sh", "shell commands"),
        ("<<EOF\n#!/usr/bin/env python\npip install einops\nEOF", "<<EOF", "shell commands"),
        ('["echo", "pip", "install", "einops"]', "echo pip install einops", "shell commands"),
    ],
)
def test_what_cannot_be_decided_is_lost_by_name(tmp_path: Path, run: str, named: str, why: str) -> None:
    contents = read(tmp_path, f"RUN {run}")
    assert installed(contents) == []
    assert [why in row.why for row in contents.skipped if row.line.text == named and not row.harmless] == [True]
    assert all(re.match("Dockerfile:2", row.line.where) for row in contents.skipped)


@pytest.mark.parametrize(
    ("run", "packages"),
    [
        ("DEBIAN_FRONTEND=noninteractive apt-get install -y ffmpeg", ["apt ffmpeg"]),
        ("sudo -H pip3.11 install einops", ["einops"]),
        ("sudo -u root apt-get install -y git", ["apt git"]),
        ("env A=1 B=2 /usr/bin/python3.11 -I -m pip install einops", ["einops"]),
        ("conda run -n demo --no-capture-output pip install einops", ["einops"]),
        ("micromamba run -n base uv pip install einops", ["einops"]),
        ("python -m uv pip install einops", ["einops"]),
        ("(cd /srv; pip install einops); { pip install rich; }", ["einops", "rich"]),
        ("pip install einops || true", ["einops"]),
        ("false || echo no && pip install einops", ["einops"]),
        ("if true; then echo a; fi; pip install einops", ["einops"]),
        ("yes | pip install einops | tee log", ["einops"]),
        ("bash -lc 'pip install einops && pip install rich'", ["einops", "rich"]),
        ("bash -ex <<EOF\npip install einops\nEOF", ["einops"]),
        ("<<EOF\n#!/bin/bash -e\npip install einops\nEOF", ["einops"]),
        ('["pip", "install", "einops", "# rich"]', ["einops"]),
        ("apt-get install -y git nano-", ["apt git"]),
        ("pip install einops>=0.7 'rich<14'", ["einops", "rich<14"]),
        ("pip install tool-1.8.1-cp39-cp39-linux_x86_64.whl einops", ["einops"]),
        ("pip install {einops,rich} *.whl tqdm", ["tqdm"]),
        ("pip install demo==$VERSION einops", ["einops"]),
    ],
)
def test_commands_are_found_in_every_form(tmp_path: Path, run: str, packages: list[str]) -> None:
    assert installed(read(tmp_path, f"RUN {run}")) == packages


@pytest.mark.parametrize(
    ("lines", "packages"),
    [
        (['ENV NOTE="see # 1; pip install evil"', "RUN echo $NOTE && pip install einops"], ["einops"]),
        (['ARG PKGS="einops rich"', "RUN pip install $PKGS"], ["einops", "rich"]),
        (["ARG V=1.0", "RUN pip install 'demo==$V' \"rich==$V\""], ["rich==1.0"]),
        (["ARG V=1.0", "RUN V=2.0; pip install demo==$V rich"], ["rich"]),
        (["ARG OPTIONS", "RUN pip install ${OPTIONS:-} einops"], ["einops"]),
        (["ARG OPTIONS='--progress-bar off'", "RUN pip install $OPTIONS einops"], ["einops"]),
        (["ARG V=2.7.0", "ARG F=cpu", 'RUN uv pip install torch=="${V}+${F}"'], ["torch ==2.7.0"]),
        (['SHELL ["python", "-c"]', "RUN pip install evil"], []),
        (['SHELL ["conda", "run", "-n", "demo", "/bin/bash", "-c"]', "RUN pip install einops"], ["einops"]),
        (["ONBUILD RUN pip install evil"], []),
    ],
)
def test_variables_are_expanded_as_a_shell_does(tmp_path: Path, lines: list[str], packages: list[str]) -> None:
    assert installed(read(tmp_path, *lines)) == packages


def test_options_that_change_what_is_installed_are_named(tmp_path: Path) -> None:
    contents = read(tmp_path, "RUN pip install --no-deps --target /opt/x --pre -q einops")
    assert lost(contents) == ["--no-deps", "--target /opt/x", "--pre"]


def test_a_requirement_without_quotes_is_a_redirection(tmp_path: Path) -> None:
    contents = read(tmp_path, "RUN pip install torch>=2.1 > /dev/null")
    assert (installed(contents), lost(contents)) == (["torch"], [">=2.1"])


def test_a_file_is_that_of_the_folder_that_cd_names(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "list.txt").write_text("einops\n")
    (tmp_path / "list.txt").write_text("another\n")
    contents = read(tmp_path, "COPY app /srv", "RUN cd /srv && pip install -r list.txt")
    assert [x.value for x in contents.of("requirements")] == ["app/list.txt"]


def test_a_file_in_a_folder_that_is_not_known_is_lost(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("another\n")
    contents = read(tmp_path, "RUN cd $HOME && pip install -r list.txt")
    assert (installed(contents), lost(contents)) == ([], ["-r list.txt"])


def test_another_escape_character_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("# escape=`\nFROM python:3.11\nRUN pip install `\n  einops\n")
    with pytest.raises(UsageError, match="Dockerfile:1: the directive escape=`"):
        dockerfile("Dockerfile", tmp_path)


@pytest.mark.parametrize(
    ("run", "taken", "never"),
    [
        ('if [ "$GPU" = true ]; then pip install einops; fi; pip install rich', ["einops", "rich"], []),
        ('if [ "$GPU" = false ]; then pip install einops; fi; pip install rich', ["rich"], ["pip install einops"]),
        (
            'if [ "$GPU" != "true" ]; then pip install einops; else pip install rich; fi',
            ["rich"],
            ["pip install einops"],
        ),
        (
            'if [ "$KIND" = a ]; then pip install a1; elif [ $KIND = b ]; then pip install b; else pip install c; fi',
            ["b"],
            ["pip install a1", "pip install c"],
        ),
        ('if [[ -n "$GPU" ]]; then pip install einops; fi', ["einops"], []),
        ("if test -z $GPU; then pip install einops; fi", [], ["pip install einops"]),
        ('if ! [ "$GPU" = true ]; then pip install einops; fi', [], ["pip install einops"]),
        ('[ "$GPU" = true ] && pip install einops', ["einops"], []),
        ('[ "$GPU" = true ] || pip install einops', [], ["pip install einops"]),
        ('[ "$GPU" = no ] && pip install einops || pip install rich', ["rich"], ["pip install einops"]),
        ('[ "$GPU" = no ] && { cd /x; pip install einops; }; pip install rich', ["rich"], ["pip install einops"]),
        ('if [ "$GPU" = no ]; then exit 0; fi; pip install rich', ["rich"], ["exit 0"]),
        ('if [ "$GPU" = no ]; then if [ -f x ]; then pip install a1; fi; fi', [], ["[ -f x ]", "pip install a1"]),
    ],
)
def test_a_test_of_known_values_is_decided(run: str, taken: list[str], never: list[str], tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.12\nARG GPU=true\nENV KIND=b\nRUN {run}\n")
    found = dockerfile("Dockerfile", tmp_path)
    assert [one.spec for one in found.packages] == taken
    assert [row.line.text for row in found.skipped if row.why == NOT_RUN] == never
    assert all(row.elsewhere for row in found.skipped if row.why == NOT_RUN)


@pytest.mark.parametrize(
    "run",
    [
        'if [ "$OTHER" = true ]; then pip install einops; fi',
        'if [ "$GPU" = true ] && [ -f x ]; then pip install einops; fi',
        "if [[ $GPU == t* ]]; then pip install einops; fi",
        'GPU=false; if [ "$GPU" = true ]; then pip install einops; fi',
        'for x in a b; do if [ "$GPU" = true ]; then pip install einops; fi; done',
        'if [ -f x ]; then pip install rich; elif [ "$GPU" = true ]; then pip install einops; fi',
        'if [ "$GPU" = true -a -f x ]; then pip install einops; fi',
    ],
)
def test_a_test_of_what_only_the_build_knows_is_not_decided(run: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.12\nARG GPU=true\nRUN {run}\n")
    found = dockerfile("Dockerfile", tmp_path)
    assert [one.spec for one in found.packages] == []
    assert "pip install einops" in [row.line.text for row in found.skipped if not row.harmless]


PYG = "https://data.example.org/whl/torch-2.6.0+cu124.html"


@pytest.mark.parametrize(
    ("run", "wanted"),
    [
        (
            "pip config set global.extra-index-url https://wheels.example.org/simple/x",
            [("indexes", "https://wheels.example.org/simple/x")],
        ),
        (f"pip3 config set install.find_links {PYG}", [("find_links", PYG)]),
        (
            "python3 -m pip config --global set global.index-url https://download.example.org/whl/cu121",
            [("cuda", "12.1")],
        ),
        (
            "pip config set global.index-url https://download.example.org/whl/cpu && pip install torch",
            [("cpu", "true"), ("torch", "")],
        ),
        ("pip config set global.break-system-packages true", []),
    ],
)
def test_settings_of_pip_are_its_options(run: str, wanted: list[tuple[str, str]], tmp_path: Path) -> None:
    found = read(tmp_path, f"RUN {run}")
    settings = [(one.field, one.value) for one in found.settings if one.field != "python"]
    assert settings == wanted
    assert [row for row in found.skipped if not row.harmless] == []


@pytest.mark.parametrize(
    "run",
    [
        "pip config set global.constraint /x/limits.txt",
        "pip config set global.index-url $URL",
        "pip config unset global.index-url",
        "[ -f x ] && pip config set global.index-url https://download.example.org/whl/cpu",
    ],
)
def test_settings_of_pip_that_cannot_be_read_are_lost_by_name(run: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"RUN {run}")
    assert [one.field for one in found.settings] == ["python"]
    assert any("pip config" in row.line.text for row in found.skipped if not row.harmless)


@pytest.mark.parametrize(
    ("copy", "wanted"),
    [
        ("pip.conf /etc/pip.conf", True),
        ("pip.conf /etc/", True),
        ("pip.conf /root/.pip/pip.conf", True),
        ("./pip.conf /root/.config/pip/", True),
        ('["pip.conf", "/home/app/.config/pip/pip.conf"]', True),
        ("pip.conf /app/pip.conf", False),
    ],
)
def test_a_copied_configuration_of_pip_has_indexes(copy: str, wanted: bool, tmp_path: Path) -> None:
    index = "https://download.example.org/whl/cu124"
    text = f"[global]\ntimeout = 60\nindex-url = {index}\n[install]\nfind-links =\n  {PYG}\n"
    (tmp_path / "pip.conf").write_text(text)
    found = read(tmp_path, f"COPY {copy}")
    settings = [(one.field, one.value) for one in found.settings if one.field not in ("python", "copy")]
    assert settings == ([("cuda", "12.4"), ("find_links", PYG)] if wanted else [])
    assert [row.line.text for row in found.skipped if not row.harmless] == []


def test_a_copied_configuration_of_pip_that_cannot_be_parsed_is_lost(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = x\n")
    found = read(tmp_path, "COPY pip.conf /etc/pip.conf")
    assert [row.why for row in found.skipped] == ["pip.conf is not a configuration of pip"]
