"""What a lock becomes in a build context."""

from dataclasses import replace

import pytest

from envkit.ground.errors import UsageError
from envkit.ground.settings import Mirrors
from envkit.lock.model import DebPackage, LockedBase
from envkit.lock.store import digest_of
from envkit.render import lint, locked
from envkit.render.model import SYNTAXES, Rendered
from envkit.render.render import render
from tests.support.locks import locked_conda, locked_wheels
from tests.support.plans import shipped_plan
from tests.unit.lock.samples import conda

CPU = shipped_plan("cpu")
WHEELS = shipped_plan("cu126", template="wheels")
MIXED = shipped_plan("cu126", template="miniconda")
WITH_PIP = (conda("pip", "26.3", build="py_0", subdir="noarch", noarch="python"), conda("python", "3.11.7"))


def errors(made: Rendered) -> set[str]:
    return {item.rule for item in lint.check(made) if item.severity == "error"}


def changed(made: Rendered, name: str, old: str, new: str) -> Rendered:
    text = made.files[name].decode()
    assert old in text
    return replace(made, files=made.files | {name: text.replace(old, new).encode()})


def test_mirrors_take_the_place_of_public_addresses_in_every_list() -> None:
    mirrors = Mirrors(
        conda_channel_alias="https://conda.example.com/channels",
        pytorch_index="https://wheels.example.com/whl",
        python_index="https://index.example.com/simple",
    )
    found = locked.files(MIXED, locked_wheels(MIXED, conda=WITH_PIP), mirrors)
    assert sorted(found) == ["explicit.txt", "requirements.txt", "torch.txt"]
    assert "https://conda.example.com/channels/conda-forge/noarch/pip-26.3-py_0.conda#sha256:" in found["explicit.txt"]
    assert found["torch.txt"].startswith("--index-url https://wheels.example.com/whl/cu126\n--only-binary=:all:\n")
    assert found["requirements.txt"].splitlines() == [
        "--index-url https://index.example.com/simple",
        "--only-binary=:all:",
        f"einops==0.9.0 --hash=sha256:{'4' * 64}",
    ]
    assert "anaconda.org" not in "".join(found.values())
    assert "pytorch.org" not in "".join(found.values())


def test_a_login_in_a_mirror_never_reaches_a_list() -> None:
    mirrors = Mirrors(conda_channel_alias="https://me:secret@conda.example.com/channels")
    with pytest.raises(UsageError, match="the URL contains a login"):
        locked.files(CPU, locked_conda(CPU), mirrors)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_conda_and_pip_install_the_lists_and_nothing_is_solved(syntax: str) -> None:
    lock = locked_wheels(MIXED, conda=WITH_PIP)
    made = render(MIXED, lock=lock, syntax=syntax)
    assert errors(made) == set()
    text = made.dockerfile
    assert "conda create -y -q -p /opt/env --file explicit.txt;" in text
    assert "conda env create" not in text
    assert text.count("--require-hashes --no-deps") == text.count("pip install") == 2
    assert text.index("COPY torch.txt ./") < text.index("COPY requirements.txt ./")
    assert f'"envkit.lock"="{digest_of(lock)}"' in text
    assert made.environment is None
    assert "constraints.txt" not in made.files


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_no_installer_gets_into_an_environment_of_wheels(syntax: str) -> None:
    made = render(WHEELS, lock=locked_wheels(WHEELS), syntax=syntax)
    assert errors(made) == set()
    assert '"$ENVKIT_PYTHON" -m venv --without-pip /opt/env' in made.dockerfile
    assert f'ENVKIT_PIP="/build/pip/lib/python{WHEELS.resolution.python}/site-packages"' in made.dockerfile
    assert made.dockerfile.count("--ignore-installed") == 2


def test_without_a_lock_nothing_of_it_is_there() -> None:
    made = render(CPU)
    assert not made.locked
    assert "explicit.txt" not in made.files
    assert "envkit.lock" not in made.dockerfile


def test_system_packages_have_the_versions_of_a_bootstrapped_base() -> None:
    rows = (DebPackage(name="tini", version="0.19.0-1+b3", arch="amd64", sha256=None, size=1),)
    base = LockedBase(kind="bootstrap", reference="bootstrap:debian/bookworm", suite="bookworm", packages=rows)
    lock = replace(locked_wheels(WHEELS), base=base)
    assert locked.system(WHEELS, lock) == ["python3", "tini=0.19.0-1+b3"]
    assert locked.system(WHEELS, locked_wheels(WHEELS)) == list(WHEELS.system)
    assert locked.system(WHEELS, None) == list(WHEELS.system)


@pytest.mark.parametrize(
    ("rule", "name", "old", "new"),
    [
        ("D4", "explicit.txt", f"#sha256:{'a' * 64}", ""),
        ("D4", "explicit.txt", f"#sha256:{'a' * 64}", "#" + "a" * 32),
        ("D4", "explicit.txt", "@EXPLICIT\n", ""),
        ("D4", "Dockerfile", "conda create -y -q -p /opt/env --file explicit.txt", "conda create -y -p /opt/env numpy"),
        ("D4", "Dockerfile", "    /opt/conda/bin/conda clean", "    conda install numpy; /opt/conda/bin/conda clean"),
        ("D5", "Dockerfile", "--require-hashes ", ""),
        ("D5", "Dockerfile", "--no-deps ", ""),
        ("D5b", "torch.txt", f" --hash=sha256:{'6' * 64}", ""),
        ("D5b", "requirements.txt", "einops==0.9.0", "einops>=0.9.0"),
        ("D16", "Dockerfile", "/opt/conda/bin/conda clean -afy; ", "true; "),
    ],
)  # fmt: skip
def test_rules_of_locked_builds_fire(rule: str, name: str, old: str, new: str) -> None:
    made = render(MIXED, lock=locked_wheels(MIXED, conda=WITH_PIP))
    assert rule not in errors(made)
    assert rule in errors(changed(made, name, old, new))


def test_a_users_template_that_passes_the_lock_by_is_refused() -> None:
    lock = locked_wheels(WHEELS)
    made = changed(render(WHEELS, lock=lock), "Dockerfile", "--require-hashes ", "")
    with pytest.raises(UsageError, match="pip install without --require-hashes in a locked build") as caught:
        lint.refuse_unsafe(made)
    assert "--no-lock" in (caught.value.hint or "")
    lint.refuse_unsafe(replace(made, locked=False))


def test_no_bundle_is_asked_for_as_none() -> None:
    plan = shipped_plan("cu126")
    assert locked.index_locations(plan, Mirrors(ca_bundle="none")).ca_bundle is None
    assert locked.index_locations(plan, Mirrors(ca_bundle="ca.pem")).ca_bundle == "ca.pem"


def test_an_index_with_a_token_in_its_path_is_refused() -> None:
    """The lock names every wheel by its URL below the index."""
    plan = shipped_plan("cu126")
    with pytest.raises(UsageError, match="has a token in its path") as caught:
        locked.index_locations(plan, Mirrors(), python_index="https://pypi.example.com/t/s3cret/simple")
    assert "s3cret" not in caught.value.message
    with pytest.raises(UsageError, match="contains a login or a token"):
        locked.index_locations(plan, Mirrors(python_index="https://pypi.example.com/t/s3cret/simple"))
    kept = locked.index_locations(plan, Mirrors(), python_index="https://me:s3cret@pypi.example.com/simple")
    assert kept.python_index == "https://me:s3cret@pypi.example.com/simple"


def test_a_flat_page_stands_beside_an_index_where_hashes_or_local_versions_decide() -> None:
    mirrors = Mirrors(
        pytorch_index="flat+https://wheels.example.com/whl", python_index="https://index.example.com/simple"
    )
    first = ["--index-url https://index.example.com/simple", "--find-links https://wheels.example.com/whl/cu126/"]
    made = render(WHEELS, lock=locked_wheels(WHEELS), mirrors=mirrors)
    assert made.files["torch.txt"].decode().splitlines()[:2] == first
    assert made.files["requirements.txt"].decode().splitlines()[0] == first[0]
    assert "--find-links" not in made.files["requirements.txt"].decode()
    unlocked = render(WHEELS, mirrors=mirrors)
    assert unlocked.files["torch.txt"].decode().splitlines()[:2] == first
    assert errors(made) == errors(unlocked) == set()
    assert errors(changed(unlocked, "torch.txt", "+cu126", "")) == {"D5b"}
    assert errors(changed(made, "torch.txt", "https://wheels.example.com/whl/cu126/", "/media/wheels")) == {"D5b"}
