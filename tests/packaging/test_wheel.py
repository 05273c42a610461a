"""The wheel, a wheel built from the sdist and the editable install all find templates, images, docs and facts."""

import hashlib
import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from envkit import __version__
from envkit.export.model import install_script
from envkit.ground import paths
from envkit.ground.naming import DISTRIBUTION, FILE_STEM
from envkit.ground.requirement import parse
from tests.lock.served import Dist
from tests.support.installs import by_name
from tests.support.programs import program

ROOT = Path(__file__).parents[2]


def build(kind: str, source: Path, out: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    (made,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_of_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sdist = build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(unpacked)], check=True)
    (source,) = unpacked.iterdir()
    return build("wheel", source, tmp_path_factory.mktemp("wheel-of-sdist"))


def test_a_wheel_from_the_sdist_is_the_same_wheel(wheel: Path, wheel_of_sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(wheel_of_sdist) as two:
        assert sorted(one.namelist()) == sorted(two.namelist())
        for name in one.namelist():
            assert one.read(name) == two.read(name), name


def test_the_wheel_has_the_name_of_the_distribution_and_installs_nothing_by_its_name(wheel: Path) -> None:
    assert wheel.name == f"{FILE_STEM}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{FILE_STEM}-{__version__}.dist-info/METADATA").decode()
        texts = {name: archive.read(name).decode(errors="replace") for name in archive.namelist()}
    assert f"\nName: {DISTRIBUTION}\n" in metadata
    assert "\nProject-URL:" not in metadata
    # The names of extras are in the metadata alone.
    assert {name: lines for name, text in texts.items() if (lines := by_name(text))} == {}


def test_the_installed_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # The dependencies come from the running environment: the point is where envkit finds its own files.
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    Path(site, "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    outside = tmp_path / "outside"
    outside.mkdir()

    def envkit(*arguments: str) -> str:
        command = [str(python), "-c", "import sys; from envkit.__main__ import main; main()", *arguments]
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            cwd=outside,
            env={"HOME": str(outside), "PATH": "/usr/bin:/bin"},
        )
        return done.stdout

    where = subprocess.run(
        [python, "-c", "import envkit; print(envkit.__file__)"], check=True, capture_output=True, text=True, cwd=outside
    ).stdout
    assert where.startswith(site)
    assert json.loads(envkit("resolve", "--cuda", "11.8", "--json"))["torch"] == "2.7.1"
    assert "FROM" in envkit("render", "--only", "dockerfile")
    assert "cu118" in envkit("render", "cu118", "--only", "environment")
    assert envkit("help", "images").startswith("# Image definitions\n")


def test_the_script_of_exported_jobs_installs_this_file_and_no_other(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"

    def install(requirement: str) -> subprocess.CompletedProcess[str]:
        # Neither an index nor dependencies: what is installed is this one file.
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
        script = "\n".join(install_script(str(python)))
        return subprocess.run(
            ["sh", "-ec", script], env=env | {"REQUIREMENT": requirement}, capture_output=True, text=True, check=False
        )

    def of(file: Path) -> str:
        return parse(f"{file} --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}").text

    program = tmp_path / "venv" / "bin" / "envkit"
    wrong = install(f"{of(wheel)[:-6]}000000")
    assert "DO NOT MATCH THE HASHES" in wrong.stderr
    # Another project's wheel below the name of this one, which pip notices by the metadata.
    foreign = tmp_path / "envkit_gpu-9.0-py3-none-any.whl"
    foreign.write_bytes(Dist("stranger", "9.0").data())
    assert install(of(foreign)).returncode != 0
    assert (wrong.returncode != 0, program.exists()) == (True, False)
    done = install(of(wheel))
    assert (done.returncode, program.exists()) == (0, True), done.stderr


def test_man_finds_the_pages_of_an_installed_wheel(wheel: Path, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    man = program(pytestconfig, "man", "man-db")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--ignore-installed",
    ]
    subprocess.run([*install, "--prefix", tmp_path, wheel], check=True, capture_output=True)
    kept = {path.name for path in (ROOT / "man").iterdir()}
    assert {path.name for path in (tmp_path / "share/man/man1").iterdir()} == kept
    # As in a shell that has the folder of the programs in PATH.
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    shown = subprocess.run(
        [man, "--warnings", "envkit-build"], env=environment, check=True, capture_output=True, text=True
    )
    assert shown.stderr == ""
    assert "envkit-build - build an image and verify it" in shown.stdout
    assert "\n   Lock\n       --locked FILE\n" in shown.stdout


def test_the_editable_install_reads_the_checkout() -> None:
    assert paths.data_folder("templates") == ROOT / "templates"
    assert paths.data_folder("images") == ROOT / "images"
    assert paths.data_folder("docs") == ROOT / "docs"
