"""uv and pip read what `envkit resolve --format` prints, against indexes on loopback."""

import io
import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.ground.settings import Mirrors
from envkit.lock import uv
from envkit.plan import install
from envkit.render import lint
from envkit.render.render import render
from envkit.resolve.model import Resolution
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve
from tests.lock.served import Dist, Site, put_index, put_pages
from tests.support.plans import facts, shipped_plan

# Driver and GPU of three machines, none of them this one.
MACHINES = [("450.80.02", "V100"), ("535.104.05", "A100"), ("570.86.15", "RTX 5090")]


def served(site: Site, driver: str, gpu: str) -> tuple[Resolution, str]:
    """The resolution for a machine with its index on loopback, and another index as the default one."""
    fields = {"driver": driver, "gpu": (gpu,), "source": "pytorch", "python": "3.11"}
    found = resolve(parse(fields, facts()), facts())
    local = found.local_version or ""
    names = {"torch": found.torch, "torchvision": found.torchvision, "torchaudio": found.torchaudio}
    own = [Dist(name, f"{version}{local}", ("sympy",)) for name, version in names.items() if version]
    others = [Dist("torch", "9.9"), Dist("sympy", "1.14"), Dist("numpy", "1.26"), Dist("setuptools", "81")]
    default = put_index(site, "/simple", others)
    return replace(found, index=put_index(site, "/whl", own)), default


@pytest.mark.parametrize(("driver", "gpu"), MACHINES)
def test_uv_locks_the_answer_for_another_machine(driver: str, gpu: str, site: Site, tmp_path: Path) -> None:
    found, default = served(site, driver, gpu)
    (tmp_path / "pyproject.toml").write_text(install.text_of(found, "uv"))
    env = {**os.environ, "UV_DEFAULT_INDEX": default, "UV_PYTHON": sys.executable}
    done = subprocess.run(
        [uv.binary(), "lock", "--no-config"], cwd=tmp_path, env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    locked = {one["name"]: one for one in tomllib.loads((tmp_path / "uv.lock").read_text())["package"]}
    assert locked["torch"]["version"] == f"{found.torch}{found.local_version}"
    assert locked["torch"]["source"] == {"registry": found.index}
    assert locked["sympy"]["source"] == {"registry": default}


def envkit(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    gone = {"VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"}
    env = {name: value for name, value in os.environ.items() if name not in gone} | variables
    argv = [sys.executable, "-m", "envkit", "install", *words]
    return subprocess.run(argv, env=env, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("form", ["", "flat+"])
def test_a_new_environment_gets_the_resolved_wheels(form: str, site: Site, tmp_path: Path) -> None:
    found = resolve(parse({"cpu": True, "source": "pytorch", "python": "3.11"}, facts()), facts())
    own = [Dist(name, version) for name, version in found.files.items()]
    if form:
        put_pages(site, "/whl/cpu", own, hashes=False)
    else:
        put_index(site, "/whl/cpu", own)
    default = put_index(site, "/simple", [Dist("setuptools", "81"), Dist("torch", "9.9")])
    mirrors = {"ENVKIT_PYTORCH_INDEX": f"{form}{site.url}/whl", "ENVKIT_PYTHON_INDEX": default}
    words = ("--cpu", "--source", "pytorch", "--python", "3.11", "--venv", str(tmp_path / "venv"))
    planned = envkit(*words, "--dry-run", **mirrors)
    assert planned.returncode == 0, planned.stderr
    assert not (tmp_path / "venv").exists()
    done = envkit(*words, **mirrors)
    assert done.returncode == 0, done.stderr
    assert done.stdout == planned.stdout
    listed = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv/bin/python"), "list", "--format=freeze"]
    installed = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    assert f"torch=={found.torch}+cpu" in installed
    assert "setuptools==81" in installed


def sdist(name: str, version: str, marker: Path) -> bytes:
    """A source distribution whose build backend writes the marker."""
    stem, stream = f"{name}-{version}", io.BytesIO()
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'evil'\nbackend-path = ['.']\n",
        "evil.py": f"open({str(marker)!r}, 'w').write('ran')\n",
    }
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


class TestOfACheckout:
    """The folder belongs to someone else: it chooses neither an index nor what runs."""

    # EVIL and PAGE are an index and a page of files that have setuptools as source only.
    FILES = (
        ("envkit.toml", 'python_index = "EVIL"\n'),
        ("pyproject.toml", '[tool.envkit]\npython_index = "EVIL"\n'),
        ("uv.toml", 'index-url = "EVIL"\n'),
        ("uv.toml", '[[index]]\nurl = "EVIL"\n'),
        ("uv.toml", '[[index]]\nurl = "EVIL"\ndefault = true\n'),
        ("uv.toml", 'extra-index-url = ["EVIL"]\n'),
        ("uv.toml", 'find-links = ["PAGE"]\nno-index = true\n'),
        ("uv.toml", '[pip]\nextra-index-url = ["EVIL"]\nno-binary = ["setuptools"]\n'),
        ("pyproject.toml", '[project]\nname = "x"\nversion = "1"\n[[tool.uv.index]]\nurl = "EVIL"\n'),
        ("pyproject.toml", '[project]\nname = "x"\nversion = "1"\n[tool.uv.pip]\nextra-index-url = ["EVIL"]\n'),
        ("../uv.toml", '[[index]]\nurl = "EVIL"\n'),
        ("pip.conf", "[global]\nindex-url = EVIL\n"),
    )

    @pytest.mark.parametrize(("name", "text"), FILES)
    def test_its_files_choose_no_index(
        self, name: str, text: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checkout, marker = tmp_path / "home" / "checkout", tmp_path / "marker"
        checkout.mkdir(parents=True)
        monkeypatch.chdir(checkout)
        site.put("/evil/setuptools/setuptools-99.tar.gz", sdist("setuptools", "99", marker))
        link = b'<a href="setuptools-99.tar.gz">setuptools-99.tar.gz</a>'
        site.put("/evil/setuptools/", link, "text/html")
        evil = f"{site.url}/evil"
        Path(name).write_text(text.replace("EVIL", evil).replace("PAGE", f"{evil}/setuptools/"))
        done = envkit(*WORDS, "--venv", "venv", **self.own(site))
        assert (done.returncode, marker.exists()) == (0, False), done.stderr
        assert [path for _, path in site.seen if path.startswith("/evil")] == []

    def test_source_of_the_users_own_index_needs_a_flag(self, site: Site, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        own = self.own(site)
        site.put("/simple/setuptools/setuptools-99.tar.gz", sdist("setuptools", "99", marker))
        link = b'<a href="setuptools-99.tar.gz">setuptools-99.tar.gz</a>'
        site.put("/simple/setuptools/", link, "text/html")
        done = envkit(*WORDS, "--venv", str(tmp_path / "venv"), **own)
        assert (done.returncode, marker.exists()) == (8, False)
        allowed = envkit(*WORDS, "--venv", str(tmp_path / "venv"), "--allow-source", **own)
        assert (allowed.returncode, marker.exists()) == (8, True)  # the backend builds nothing

    def own(self, site: Site) -> dict[str, str]:
        """The user's own sources."""
        found = resolve(parse({"cpu": True, "source": "pytorch", "python": "3.11"}, facts()), facts())
        torch = Dist("torch", f"{found.torch}+cpu")
        default = put_index(site, "/simple", [Dist("setuptools", "81")])
        put_index(site, "/whl/cpu", [torch])
        return {"ENVKIT_PYTORCH_INDEX": f"{site.url}/whl", "UV_DEFAULT_INDEX": default}


WORDS = ("--cpu", "--source", "pytorch", "--python", "3.11", "--torch-only")


def test_torch_alone(tmp_path: Path) -> None:
    words = ("--cpu", "--venv", str(tmp_path / "venv"), "--dry-run")
    assert "torchvision==" in envkit(*words).stdout
    alone = envkit(*words, "--torch-only").stdout
    assert " torch==" in alone
    assert "torchvision" not in alone
    assert "torchaudio" not in alone


def test_the_systems_python_is_left_alone(tmp_path: Path) -> None:
    done = envkit("--cpu")
    assert done.returncode == 2
    assert "no virtual environment is active" in done.stderr
    base = envkit("--cpu", "--venv", sys.base_prefix)
    assert base.returncode == 2
    assert "is the system's Python" in base.stderr
    empty = envkit("--cpu", "--venv", str(tmp_path))
    assert empty.returncode == 2
    assert "it has no bin/python" in empty.stderr


def test_an_index_that_fails_ends_with_uvs_words(site: Site, tmp_path: Path) -> None:
    put_index(site, "/simple", [Dist("setuptools", "81")])
    mirrors = {"ENVKIT_PYTORCH_INDEX": f"{site.url}/nowhere", "ENVKIT_PYTHON_INDEX": f"{site.url}/simple"}
    words = ("--cpu", "--source", "pytorch", "--python", "3.11", "--venv", str(tmp_path / "venv"))
    done = envkit(*words, **mirrors)
    assert done.returncode == 8
    assert "error: uv pip ended with exit code 1" in done.stderr
    assert "torch" in done.stderr


@pytest.mark.parametrize("form", ["", "flat+"])
def test_pip_reads_what_a_dockerfile_installs_from_either_form_of_mirror(form: str, site: Site, tmp_path: Path) -> None:
    plan = shipped_plan("cpu", template="wheels")
    torch = next(spec for spec in plan.family if spec.startswith("torch=="))
    pinned = [spec.partition("==") for spec in plan.family]
    own = [Dist(name, version, ("sympy",)) for name, sign, version in pinned if sign]
    others = [Dist("torch", "9.9"), Dist("sympy", "1.14"), Dist("setuptools", "81"), Dist("numpy", "2.1")]
    if form:
        put_pages(site, "/whl/cpu", own, hashes=False)
    else:
        put_index(site, "/whl/cpu", [*own, *others])
    mirrors = Mirrors(pytorch_index=f"{form}{site.url}/whl", python_index=put_index(site, "/simple", others))
    made = render(plan, mirrors=mirrors)
    assert [hit for hit in lint.check(made) if hit.severity == "error"] == []
    file = tmp_path / "torch.txt"
    file.write_bytes(made.files["torch.txt"])
    argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--isolated", "-r", str(file)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert torch.replace("==", "-") in done.stdout
    assert "sympy-1.14" in done.stdout


@pytest.mark.parametrize(("driver", "gpu"), MACHINES)
def test_pip_reads_the_requirements(driver: str, gpu: str, site: Site, tmp_path: Path) -> None:
    found, default = served(site, driver, gpu)
    file = tmp_path / "requirements.txt"
    file.write_text(install.text_of(found, "requirements"))
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--isolated",
        "--index-url",
        default,
    ]
    done = subprocess.run([*argv, "-r", str(file)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"torch-{found.torch}{found.local_version}" in done.stdout
