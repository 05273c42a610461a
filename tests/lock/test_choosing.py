"""Torch and Python are chosen with the packages that need them: `lock` and `build` against sources on loopback."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import pytest

from envkit import api
from envkit.engines.model import BuildOptions
from envkit.facts.load import load
from envkit.fleet.expand import expand
from envkit.fleet.matrix import Matrix
from envkit.fleet.model import BuildTask
from envkit.fleet.run import with_locks
from envkit.fleet.tasks import task_of
from envkit.ground.progress import Silent
from envkit.ground.settings import Settings
from envkit.ground.settings import load as load_settings
from envkit.lock.reading import lock_from_json
from envkit.lock.store import read_lock
from envkit.pipeline.choosing import tell_unchosen
from envkit.pipeline.locking import Locks, probe_of
from envkit.pipeline.resolving import asked
from envkit.plan.definition import load as load_definition
from envkit.plan.model import BuildPlan
from envkit.plan.store import plan_from_json
from envkit.resolve.companions import paired
from envkit.resolve.index import index
from tests.lock.commands import envkit
from tests.lock.served import Dist, Pkg, Site, put_channel, put_index, put_pages

FACTS = load(None)
NEWEST = index(FACTS).newest["pypi"]
TORCHES = ("2.4.1", "2.6.0", "2.9.0", "2.9.1", NEWEST)
CUBLAS = "nvidia-cublas-cu12"  # by which a wheel of the Python index is known to have CUDA


def torches(*, local: str = "") -> list[Dist]:
    """Return torch with its torchvision as an index has them, and what every image has."""
    rows = [Dist(CUBLAS, "12.8.4"), Dist("setuptools", "80.9.0"), Dist("numpy", "2.2.6"), Dist("numpy", "1.26.4")]
    for torch in TORCHES:
        rows.append(Dist("torch", f"{torch}{local}", (CUBLAS,)))
        vision = paired(torch, "torchvision", index(FACTS))[-1]
        rows.append(Dist("torchvision", f"{vision}{local}", (f"torch=={torch}",)))
    return rows


def define(folder: Path, *lines: str, template: str = "wheels", source: str = "pypi", request: str = "") -> None:
    text = ["schema: envkit.image/1", "title: Image", f"template: {template}"]
    text += [f"request: {{source: {source}{request}}}", *lines]
    (folder / "image.yaml").write_text("\n".join(text) + "\n")


def locked(folder: Path, env: Mapping[str, str], *arguments: str) -> tuple[str, dict[str, str], str]:
    """Lock the definition of a folder; return the Python, the versions and what was told."""
    done = envkit(folder, "lock", "image.yaml", "--base", "none", *arguments, env=env)
    assert done.returncode == 0, done.stderr
    lock = read_lock(folder / "envkit.lock")
    versions = {package.name: package.version for package in lock.conda} | {w.name: w.version for w in lock.wheels}
    return lock.python, versions, done.stderr


@pytest.fixture
def at(site: Site, tmp_path: Path) -> tuple[Site, Path]:
    return site, tmp_path


PINNED = Dist("attend", "0.3", ("torch==2.9.0",))
CAPPED = Dist("train", "2.7", ("torch>=1.10,<2.7",))


@pytest.mark.parametrize(
    ("dists", "pip", "torch", "why"),
    [
        ([PINNED], "attend==0.3", "2.9.0", "attend 0.3 requires torch==2.9.0"),
        ([CAPPED], "train==2.7", "2.6.0", "train 2.7 requires torch>=1.10,<2.7"),
        ([PINNED, Dist("serve", "1", ("attend",))], "serve", "2.9.0", "attend 0.3 requires torch==2.9.0"),
        ([CAPPED, Dist("data", "1", ("torch<2.5",))], "data, train", "2.4.1", "data 1 requires torch<2.5"),
        ([Dist("free", "1", ("torch>=2",))], "free", NEWEST, None),
        # The newest release of a package counts, not an old one without a limit.
        ([PINNED, Dist("attend", "0.1", ("torch",))], "attend", "2.9.0", "attend 0.3 requires torch==2.9.0"),
    ],
)
def test_torch_is_the_newest_that_the_packages_allow(
    dists: list[Dist], pip: str, torch: str, why: str | None, at: tuple[Site, Path]
) -> None:
    site, folder = at
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), *dists])}
    define(folder, f"pip: [{pip}]")
    _, versions, told = locked(folder, env)
    assert versions["torch"] == torch
    assert versions["torchvision"] == paired(torch, "torchvision", index(FACTS))[-1]
    notes = [line for line in told.splitlines() if line.startswith("note: torch")]
    assert notes == ([] if why is None else [f"note: torch {torch}: newest that the other packages allow: {why}"])


def test_the_candidates_of_pytorchs_own_index_are_those_of_the_facts(site: Site, tmp_path: Path) -> None:
    """The Python index needs no torch: its own index has the file, the facts have the versions."""
    put_index(site, "/whl/cu128", torches(local="+cu128"))
    others = [PINNED, Dist("numpy", "2.2.6"), Dist("setuptools", "80.9.0")]
    env = {"ENVKIT_PYTORCH_INDEX": f"{site.url}/whl", "ENVKIT_PYTHON_INDEX": put_index(site, "/simple", others)}
    define(tmp_path, "pip: [attend==0.3]", source="pytorch", request=', cuda: "12.8"')
    _, versions, _ = locked(tmp_path, env)
    assert versions["torch"] == "2.9.0+cu128"


def refused(folder: Path, env: Mapping[str, str], *arguments: str) -> str:
    """Lock a definition that has no solution; return what was told, in one line."""
    done = envkit(folder, "lock", "image.yaml", "--base", "none", *arguments, env=env)
    assert done.returncode == 3, done.stderr
    return " ".join(done.stderr.split())


def test_a_torch_of_the_request_stays_and_the_clash_names_both(site: Site, tmp_path: Path) -> None:
    """Every change that is named solves: the command is run, and the loose line is locked."""
    other = Dist("attend", "0.4", ("torch==2.9.1",))
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), PINNED, other, Dist("free", "1")])}
    define(tmp_path, "pip: [free, attend==0.3]", request=', torch: "2.9.1"')
    told = refused(tmp_path, env)
    assert "error: nothing satisfies --torch 2.9.1 and attend==0.3 because no wheels of" in told
    assert "(--torch 2.9.0 instead of 2.9.1: torch 2.9.0, CUDA 12.8, Python 3.11)" in told
    assert "try: attend instead of attend==0.3 (attend 0.4, torch 2.9.1, CUDA 12.8, Python 3.11)" in told
    assert told.endswith("hint: envkit lock image.yaml --torch 2.9.0")
    assert locked(tmp_path, env, "--torch", "2.9.0")[1]["torch"] == "2.9.0"
    define(tmp_path, "pip: [free, attend]", request=', torch: "2.9.1"')
    assert locked(tmp_path, env)[1]["attend"] == "0.4"


SOURCE_ONLY = {"meta": {"api-version": "1.1"}, "files": []}
PAGED = [
    # versions on the pages by the torch of the page, request, torch and version that are locked
    ({"2.9": "2.1+pt29cu128"}, ', torch: "2.9.1"', "2.9.1", "2.1+pt29cu128"),
    ({"2.6": "2.0"}, "", "2.6.0", "2.0"),
    ({"2.6": "2.0", "2.9": "2.1"}, "", "2.9.1", "2.1"),
    ({"2.4": "1.9", "2.6": "2.0"}, ', torch: "<2.6"', "2.4.1", "1.9"),
]


def put_source(site: Site, name: str, *versions: str) -> None:
    """A package of the index that has its source only."""
    files = [f"{name}-{version}.tar.gz" for version in versions or ("1.0",)]
    common = {"hashes": {"sha256": "0" * 64}, "size": 9, "upload-time": "2026-01-01T00:00:00Z"}
    tree = SOURCE_ONLY | {"name": name, "files": [{"filename": file, "url": file} | common for file in files]}
    site.put(f"/simple/{name}/", json.dumps(tree).encode(), "application/vnd.pypi.simple.v1+json")


def with_page(site: Site, folder: Path) -> str:
    """Facts with the page of a package's wheels."""
    page = f"{site.url}/whl/torch-{{torch}}.0+{{cu}}.html/"
    row = f"{{package: ext, deb: [], rpm: [], pages: ['{page}'], refs: [here]}}"
    text = f"schema: 1\nsources:\n  here: {{kind: internal, what: a page}}\npackage_needs:\n  - {row}\n"
    (folder / "facts.yaml").write_text(text)
    return str(folder / "facts.yaml")


@pytest.mark.parametrize(("pages", "request_", "torch", "version"), PAGED)
def test_a_known_page_of_wheels_is_used_before_a_build_from_source(
    pages: dict[str, str], request_: str, torch: str, version: str, at: tuple[Site, Path]
) -> None:
    """As those of PyG, OpenMMLab and DGL: a page for each torch and CUDA."""
    site, tmp_path = at
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", torches())}
    put_source(site, "ext")
    cudas = {"2.4": "cu121", "2.6": "cu124", "2.9": "cu128"}
    for minor, there in pages.items():
        put_pages(site, f"/whl/torch-{minor}.0+{cudas[minor]}.html", [Dist("ext", there)], hashes=True)
    define(tmp_path, "pip: [ext]", request=request_)
    _, versions, told = locked(tmp_path, env, "--facts", with_page(site, tmp_path))
    assert (versions["torch"], versions["ext"]) == (torch, version)
    wheel = next(wheel for wheel in read_lock(tmp_path / "envkit.lock").wheels if wheel.name == "ext")
    assert unquote(wheel.url).startswith(f"{site.url}/whl/torch-{torch[:3]}.0+")
    page = f"(on {site.url}/whl/torch-{torch[:3]}.0+{cudas[torch[:3]]}.html/)"
    assert (f"note: torch {torch}: newest with a prebuilt wheel of ext {page}" in told) == (
        torch != "2.9.1" or not request_
    )


def test_pages_that_have_no_wheel_are_named_before_a_build_from_source(site: Site, tmp_path: Path) -> None:
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", torches())}
    put_source(site, "ext")
    define(tmp_path, "pip: [ext]", request=', torch: "2.9.1"')
    told = refused(tmp_path, env, "--facts", with_page(site, tmp_path))
    assert re.search(rf"read \d+ pages with wheels of ext, such as {site.url}/whl/torch-\S+\.html/: none exists", told)
    assert "allow_source: [ext]" in told


@pytest.mark.parametrize(
    ("pip", "allowed", "torch"),
    [
        ("ext", "ext", NEWEST),
        ("uses", "ext", "2.6.0"),
        ("'ext>=0.5', uses", "ext==1.0", "2.6.0"),
        ("'ext[more]', attend", "Ext", "2.9.0"),
        ("uses", f"ext @ git+https://code.example.com/ext@{'a' * 40}", "2.6.0"),
    ],
)
def test_torch_is_chosen_with_the_packages_that_need_no_build(
    pip: str, allowed: str, torch: str, at: tuple[Site, Path]
) -> None:
    """A package that is built from source has no wheel yet; it is built for the torch that is chosen."""
    site, folder = at
    uses = Dist("uses", "1", ("ext", "torch<2.7"))
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), PINNED, uses])}
    put_source(site, "ext")
    define(folder, f"pip: [{pip}]", f"allow_source: ['{allowed}']")
    whole = asked(str(folder / "image.yaml"), {}, FACTS, pytest.fail)
    plan = whole.plan()
    probe = probe_of(settings_of(env, folder), plan)
    assert probe.newest(plan, whole.candidates(plan)[0]).torch == torch


def test_a_source_is_allowed_on_the_command_line(site: Site, tmp_path: Path) -> None:
    """The option adds to the definition's entries, is in the lock's request, and a lock without it is stale."""
    rows = [*torches(), Dist("ext", "1.0"), Dist("own", "1.0"), Dist("own", "2.0")]
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", rows)}
    define(tmp_path, "allow_source: [own]", request=', torch: "2.9.1"')
    _, versions, told = locked(tmp_path, env, "--allow-source", "ext", "--allow-source", "own<2")
    assert (versions["ext"], versions["own"]) == ("1.0", "1.0")
    assert "note: ext has a wheel, so it is not built from source" in told
    assert dict(read_lock(tmp_path / "envkit.lock").request)["allow_source"] == ("ext", "own<2")
    check = ("lock", "image.yaml", "--base", "none", "--check")
    stale = envkit(tmp_path, *check, env=env)
    assert (stale.returncode, "allow_source" in stale.stderr) == (4, True)
    assert envkit(tmp_path, *check, "--allow-source", "own<2", "--allow-source", "ext", env=env).returncode == 4
    assert envkit(tmp_path, *check, "--allow-source", "ext", "--allow-source", "own<2", env=env).returncode == 0


@pytest.mark.parametrize("command", ["lock", "build"])
def test_a_source_that_is_no_name_is_refused_by_the_option(command: str, tmp_path: Path) -> None:
    define(tmp_path)
    done = envkit(tmp_path, command, "image.yaml", "--allow-source", "git+https://code.example.com/ext")
    assert done.returncode == 2
    assert "--allow-source: 'git+https://code.example.com/ext' is not a source; write NAME" in done.stderr


def test_a_lock_that_is_missing_is_written_by_a_command_with_the_sources(tmp_path: Path) -> None:
    define(tmp_path)
    done = envkit(tmp_path, "lock", "image.yaml", "--check", "--allow-source", "ext>=1")
    assert (done.returncode, "hint: envkit lock image.yaml --allow-source 'ext>=1' -o" in done.stderr) == (4, True)


def test_a_wheel_for_another_python_is_told_before_a_build_from_source(site: Site, tmp_path: Path) -> None:
    old = Dist("arrays", "1.23.5", tag="cp311-cp311-manylinux_2_17_x86_64")
    new = Dist("arrays", "2.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), old, new])}
    define(tmp_path, "pip: [arrays==1.23.5]", request=', torch: "2.9.1"')
    told = refused(tmp_path, env, "--os", "ubuntu24.04")
    assert "nothing satisfies --os ubuntu24.04 and --template wheels and arrays==1.23.5" in told
    assert "try: arrays instead of arrays==1.23.5 (arrays 2.0, torch 2.9.1" in told
    assert told.endswith("hint: envkit lock image.yaml --os debian12")
    assert locked(tmp_path, env, "--os", "debian12")[0] == "3.11"


def test_what_no_change_solves_keeps_the_solvers_own_error(site: Site, tmp_path: Path) -> None:
    rows = [Dist("one", "1", ("torch<2.5",)), Dist("two", "1", ("torch>=2.9",))]
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), *rows])}
    define(tmp_path, "pip: [one, two]")
    told = refused(tmp_path, env)
    assert "error: nothing satisfies one and two because no wheels of" in told
    assert "try:" not in told


def pythons(*names: str) -> list[Pkg]:
    rows = [Pkg("python", f"{name}.1") for name in names]
    rows += [Pkg(name, "80") for name in ("pip", "tini")]
    return [*rows, Pkg("setuptools", "80.9.0", ("python",)), Pkg("numpy", "2.2.6", ("python",))]


def test_python_is_the_newest_for_which_the_packages_have_wheels(site: Site, tmp_path: Path) -> None:
    """What pip is asked for also limits the conda package of the same name, which is solved first."""
    wheel = Dist("numpy", "1.23.5", tag="cp311-cp311-manylinux_2_17_x86_64")
    env = {
        "ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), wheel]),
        "ENVKIT_CONDA_CHANNEL_ALIAS": site.url,
    }
    old = [Pkg("numpy", "1.23.5", (f"python {name}.*",), name) for name in ("3.10", "3.11")]
    put_channel(site, "conda-forge", [*pythons("3.10", "3.11", "3.12", "3.13", "3.14"), *old])
    define(tmp_path, "pip: [numpy==1.23.5]", template="miniconda")
    python, versions, _ = locked(tmp_path, env)
    assert (python, versions["python"], versions["torch"]) == ("3.11", "3.11.1", NEWEST)


def test_conda_packages_limit_the_torch_of_conda_forge(site: Site, tmp_path: Path) -> None:
    builds = [row for row in FACTS.builds if (row.source, row.platform) == ("conda-forge", "linux-64") and row.cuda]
    rows = [
        Pkg("pytorch", row.torch, ("python",), f"cuda{(row.cuda or '').replace('.', '')}_{number}")
        for number, row in enumerate(builds)
    ]
    rows += [Pkg("cuda-version", cuda) for cuda in {row.cuda for row in builds if row.cuda}]
    rows += [Pkg("torchvision", row.torchvision, ("python",)) for row in builds if row.torchvision]
    older = sorted({row.torch for row in builds}, key=lambda text: tuple(map(int, text.split("."))))[-3]
    rows += [Pkg("ext", "1", (f"pytorch {older}.*",))]
    put_channel(site, "conda-forge", [*pythons("3.11", "3.12", "3.13", "3.14"), *rows])
    define(tmp_path, "conda: [ext]", template="miniconda", source="conda-forge")
    _, versions, _ = locked(tmp_path, {"ENVKIT_CONDA_CHANNEL_ALIAS": site.url})
    assert versions["pytorch"] == older


AUDIO = Dist("torchaudio", "2.11.0")  # by the facts, of CUDA 13.0 on the Python index, as torch 2.14.1 is
SOUND = Dist("sound", "1", ("torchaudio",))


@pytest.mark.parametrize(
    ("dists", "pip", "torch"),
    [
        ([SOUND, AUDIO], "sound", "2.14.1"),
        ([SOUND, AUDIO, Dist("speech", "2", ("sound", "torch>=2"))], "speech", "2.14.1"),
        ([Dist("sound", "1", ("torchaudio>=2.5", "torch<2.15")), AUDIO], "sound", "2.14.1"),
        ([SOUND, Dist("torchaudio", "2.9.1", ("torch==2.9.1",))], "sound", "2.9.1"),
        ([SOUND, Dist("torchaudio", "2.99.0")], "sound", NEWEST),  # the facts do not know it
    ],
)
def test_torch_works_beside_the_companions_that_packages_require(
    dists: list[Dist], pip: str, torch: str, at: tuple[Site, Path]
) -> None:
    site, folder = at
    newer = [Dist("torch", "2.14.1", (CUBLAS,)), Dist("torchvision", "0.29.1", ("torch==2.14.1",))]
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), *newer, *dists])}
    define(folder, f"pip: [{pip}]", "companions: [numpy]")
    _, versions, told = locked(folder, env)
    assert versions["torch"] == torch
    why = "torchaudio 2.11.0, which other packages require, is compiled for CUDA 13.0, and this torch is for CUDA 13.2"
    assert (f"note: torch {NEWEST} is not taken: {why}" in told) == (AUDIO in dists and "torch<2.15" not in str(dists))


def test_a_companion_of_the_one_torch_of_a_request_is_checked_in_the_lock(site: Site, tmp_path: Path) -> None:
    """With one candidate the packages are not asked first; the lock has torchaudio of another CUDA."""
    newer = [Dist("torch", "2.14.1", (CUBLAS,)), Dist("torchvision", "0.29.1", ("torch==2.14.1",))]
    rows = [*torches(), *newer, SOUND, AUDIO]
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", rows)}
    define(tmp_path, "pip: [sound]", "companions: [numpy]", request=f', torch: "{NEWEST}"')
    told = refused(tmp_path, env, "--python", "3.11")
    why = "torchaudio 2.11.0, which other packages require, is compiled for CUDA 13.0, and this torch is for CUDA 13.2"
    assert f"error: torch {NEWEST}: {why}" in told
    assert told.endswith("hint: envkit lock image.yaml --torch 2.14.1")
    assert locked(tmp_path, env, "--torch", "2.14.1")[1]["torch"] == "2.14.1"


def test_a_lock_whose_companion_has_become_unfit_is_not_kept(site: Site, tmp_path: Path) -> None:
    newer = [Dist("torch", "2.14.1", (CUBLAS,)), Dist("torchvision", "0.29.1", ("torch==2.14.1",))]
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), *newer, SOUND, AUDIO, Dist("free", "1")])}
    define(tmp_path, "pip: [free]", "companions: [numpy]")
    assert locked(tmp_path, env)[1]["torch"] == NEWEST
    define(tmp_path, "pip: [sound]", "companions: [numpy]")
    _, versions, told = locked(tmp_path, env)
    assert versions["torch"] == "2.14.1"
    assert f"note: torch {NEWEST} of the old lock is not kept: torch {NEWEST}: torchaudio 2.11.0" in told


def system_of(folder: Path) -> tuple[str, ...]:
    value = dict(read_lock(folder / "envkit.lock").request)["system"]
    assert isinstance(value, tuple)
    return value


@pytest.mark.parametrize(
    ("dists", "pip", "system"),
    [
        ([Dist("opencv-python", "5", ("numpy",)), Dist("detect", "1", ("opencv-python",))], "detect", "libgl1"),
        ([Dist("lightgbm", "4"), Dist("auto", "1", ("boost",)), Dist("boost", "1", ("lightgbm",))], "auto", "libgomp1"),
        ([Dist("pyzbar", "0.1"), Dist("scan", "1", ("pyzbar",))], "scan", "libzbar0"),
        ([Dist("torchcodec", "99"), Dist("data", "1", ("torchcodec",))], "data", "ffmpeg"),
        # A program that a package runs is for the project that names the package.
        ([Dist("pydub", "0.25"), Dist("web", "1", ("pydub",))], "web", None),
        ([Dist("pydub", "0.25")], "pydub", "ffmpeg"),
    ],
)
def test_system_packages_are_those_of_all_wheels_of_the_lock(
    dists: list[Dist], pip: str, system: str | None, at: tuple[Site, Path]
) -> None:
    site, folder = at
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), *dists])}
    define(folder, f"pip: [{pip}]", request=', torch: "2.9.1"')
    _, _, told = locked(folder, env, "--python", "3.11")
    packages = system_of(folder)
    assert system in packages if system else "ffmpeg" not in packages
    assert (f"the image gets {system}" in told) == (system is not None)
    arguments = ("image.yaml", "--base", "none", "--python", "3.11")
    assert envkit(folder, "lock", *arguments, "--check", env=env).returncode == 0
    # A second lock has nothing to add, and one without the package drops what only it needed.
    assert "changed since the old lock" not in locked(folder, env, "--python", "3.11")[2]
    if system and pip != "pydub":
        define(folder, request=', torch: "2.9.1"')
        locked(folder, env, "--python", "3.11")
        assert system not in system_of(folder)


def test_a_source_is_proposed_with_the_versions_that_a_package_requires(site: Site, tmp_path: Path) -> None:
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), Dist("conf", "2", ("ext==1.*",))])}
    put_source(site, "ext", "1.0", "1.1", "2.0")
    define(tmp_path, "pip: [conf==2]", request=', torch: "2.9.1"')
    assert "allow_source: ['ext<2.dev0']" in refused(tmp_path, env)


@pytest.mark.parametrize(
    ("others", "pip", "hint"),
    [
        ([Dist("conf", "0.11")], "conf==1.3", "add --allow-source 'ext==4.*' to the command"),
        ([Dist("conf", "0.11"), Dist("conf", "1.0")], "conf>=1.3", "add --allow-source 'ext==4.*' to the command"),
        ([Dist("conf", "0.11")], "conf==1.*", "add --allow-source 'ext==4.*' to the command"),
        ([Dist("conf", "2.0")], "conf==1.3", "write conf instead of conf==1.3"),  # newer, and without a build script
    ],
)
def test_a_source_is_proposed_before_an_older_release_of_what_needs_it(
    others: list[Dist], pip: str, hint: str, site: Site, tmp_path: Path
) -> None:
    rows = [*torches(), Dist("conf", "1.3", ("ext==4.*",)), *others]
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", rows)}
    put_source(site, "ext", "3.9", "4.9", "5.0")
    define(tmp_path, f"pip: ['{pip}']", request=', torch: "2.9.1"')
    told = refused(tmp_path, env)
    assert f"try: conf instead of {pip} (conf {others[-1].version}, torch 2.9.1" in told
    assert told.count("allow_source: ['ext==4.*']") == 1
    assert f" hint: {hint}" in told


@pytest.mark.parametrize(
    ("needs", "pip", "hint"),
    [
        # by release, the oldest first
        (("sk", "louvain"), "net", "allow_source: [louvain]"),
        (("louvain", "sk"), "net>=1", "allow_source: [sk]"),
        (("sk", "louvain>=0.16"), "net", "allow_source: ['louvain==0.16']"),
        (("sk", "ext", "louvain"), "net", "allow_source: [louvain]"),
        (("sk", "louvain"), "net, other", "allow_source: [louvain]"),
        (("sk", "louvain"), "net<2", "allow_source: [sk]"),  # the line allows the older one only
    ],
)
def test_of_the_sources_of_several_releases_that_of_the_newest_is_proposed(
    needs: tuple[str, ...], pip: str, hint: str, at: tuple[Site, Path]
) -> None:
    site, folder = at
    nets = [Dist("net", f"{number}.0", (need,)) for number, need in enumerate(needs, start=1)]
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), *nets, Dist("other", "1", ("net",))])}
    for name in ("ext", "louvain", "sk"):
        put_source(site, name, "0.16")
    define(folder, f"pip: [{', '.join(map(repr, pip.split(', ')))}]", request=', torch: "2.9.1"')
    told = refused(folder, env)
    assert f" {hint} to the definition" in told.partition(" hint: ")[2]
    assert told.count("allow_source") == 1


CONDA = [Pkg("numpy", "1.26.4", ("python",)), Pkg("pandas", "2.3.0", ("python", "numpy >=2"), build="a"),
         Pkg("pandas", "1.5.3", ("python",), build="b"), Pkg("scipy", "1.14.0", ("python",))]  # fmt: skip


@pytest.mark.parametrize(
    ("dists", "pip", "conda", "wanted"),
    [
        ([Dist("old", "1", ("numpy<2",))], "old", "numpy", {"numpy": "1.26.4"}),
        ([Dist("old", "1", ("numpy<2",))], "old", "pandas", {"numpy": "1.26.4", "pandas": "1.5.3"}),
        ([Dist("old", "1", ("numpy>=1.21,<2", "torch"))], "old", "numpy", {"numpy": "1.26.4"}),
        (
            [Dist("old", "1", ("mid",)), Dist("mid", "3", ("numpy~=1.26",))], "old", "numpy, scipy",
            {"numpy": "1.26.4", "scipy": "1.14.0"},
        ),
        ([Dist("new", "1", ("numpy>=2",))], "new", "numpy, pandas", {"numpy": "2.2.6", "pandas": "2.3.0"}),
        (
            [Dist("a", "1", ("numpy<2",)), Dist("b", "1", ("pandas<2",))], "a, b", "numpy, pandas",
            {"numpy": "1.26.4", "pandas": "1.5.3"},
        ),
    ],
)  # fmt: skip
def test_conda_packages_are_those_that_the_wheels_need(
    dists: list[Dist], pip: str, conda: str, wanted: dict[str, str], at: tuple[Site, Path]
) -> None:
    site, folder = at
    put_channel(site, "conda-forge", [*pythons("3.11", "3.12", "3.13", "3.14"), *CONDA])
    env = {
        "ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), *dists]),
        "ENVKIT_CONDA_CHANNEL_ALIAS": site.url,
    }
    define(folder, f"pip: [{pip}]", f"conda: [{conda}]", template="miniconda", request=', torch: "2.9.1"')
    _, versions, _ = locked(folder, env)
    assert {name: versions[name] for name in wanted} == wanted
    lock = read_lock(folder / "envkit.lock")
    assert {"numpy"} <= {package.name for package in lock.conda}


def test_wheels_that_no_conda_package_fits_are_a_conflict_that_names_the_need(site: Site, tmp_path: Path) -> None:
    put_channel(site, "conda-forge", [*pythons("3.11", "3.12", "3.13", "3.14"), *CONDA])
    env = {
        "ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), Dist("older", "1", ("numpy<1.20",))]),
        "ENVKIT_CONDA_CHANNEL_ALIAS": site.url,
    }
    define(tmp_path, "pip: [older]", "conda: [numpy]", template="miniconda", request=', torch: "2.9.1"')
    assert "numpy<1.20" in refused(tmp_path, env)


def test_a_lock_decides_torch_where_the_request_leaves_it_open(site: Site, tmp_path: Path) -> None:
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), PINNED, Dist("free", "1", ("torch",))])}
    define(tmp_path, "pip: [attend==0.3]")
    locked(tmp_path, env)
    asked = len(site.seen)
    checked = envkit(tmp_path, "lock", "image.yaml", "--base", "none", "--check", env=env)
    assert (checked.returncode, checked.stderr) == (0, "envkit.lock is up to date\n")
    rendered = envkit(tmp_path, "render", "image.yaml", "--locked", "envkit.lock", "--only", "plan", env=env)
    assert json.loads(rendered.stdout)["resolution"]["torch"] == "2.9.0"
    other = envkit(tmp_path, "lock", "image.yaml", "--base", "none", "--check", "--torch", "2.9.1", env=env)
    assert other.returncode == 4
    assert len(site.seen) == asked
    # torch stays while the request allows it, and moves when it is named or everything is.
    define(tmp_path, "pip: [free]")
    assert locked(tmp_path, env)[1]["torch"] == "2.9.0"
    assert locked(tmp_path, env, "--update", "torch")[1]["torch"] == NEWEST


SEVERAL = [
    ([PINNED], "attend==0.3", "2.9.0"),
    ([CAPPED], "train==2.7", "2.6.0"),
    ([PINNED, Dist("serve", "1", ("attend",))], "serve", "2.9.0"),
    ([CAPPED, Dist("data", "1", ("torch<2.5",))], "data, train", "2.4.1"),
    ([Dist("free", "1", ("torch>=2",))], "free", NEWEST),
]


def settings_of(env: Mapping[str, str], folder: Path) -> Settings:
    return load_settings({}, env, folder)


def test_each_of_several_images_gets_the_torch_that_its_packages_allow(site: Site, tmp_path: Path) -> None:
    """`build` of several definitions: the tasks of the workers have the plans and locks that were chosen."""
    dists = {dist.name: dist for some, _, _ in SEVERAL for dist in some}
    index_url = put_index(site, "/simple", [*torches(), *dists.values()])
    for number, (_, pip, _) in enumerate(SEVERAL):
        define(tmp_path, f"pip: [{pip}]")
        (tmp_path / "image.yaml").rename(tmp_path / f"image{number}.yaml")
    images = tuple(str(tmp_path / f"image{number}.yaml") for number in range(len(SEVERAL)))
    found = expand(Matrix(where="the command line", images=images), {}, FACTS, load_definition)
    locks = Locks(settings_of({"ENVKIT_PYTHON_INDEX": index_url}, tmp_path), "embedded", Silent())
    tasks = [task_of(cell, "embedded", BuildOptions(base="none"), verify=False) for cell in found.cells]
    chosen: dict[str, BuildPlan] = {}
    made = list(with_locks(list(zip(found.cells, tasks, strict=True)), {}, locks, chosen))
    got = []
    for task in made:
        assert isinstance(task, BuildTask)
        assert task.lock is not None
        lock = lock_from_json(json.loads(task.lock), "the lock")
        plan = plan_from_json(json.loads(task.plan), "the plan")
        assert lock.plan == plan.digest
        assert {wheel.name: wheel.version for wheel in lock.wheels}["torch"] == plan.resolution.torch
        got.append(plan.resolution.torch)
    assert got == [torch for _, _, torch in SEVERAL]
    assert [chosen[cell.name].resolution.torch for cell in found.cells[:4]] == got[:4]
    assert found.cells[4].name not in chosen


@pytest.mark.parametrize(("dists", "pip", "torch"), SEVERAL)
def test_the_api_chooses_as_the_command_does(
    dists: list[Dist], pip: str, torch: str, at: tuple[Site, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, folder = at
    monkeypatch.setenv("ENVKIT_PYTHON_INDEX", put_index(site, "/simple", [*torches(), *dists]))
    define(folder, f"pip: [{pip}]")
    plan, lock = api.plan_and_lock(folder / "image.yaml", base="none")
    assert (plan.resolution.torch, lock.plan) == (torch, plan.digest)
    assert locked(folder, os.environ)[1]["torch"] == torch


def test_a_build_without_a_lock_says_that_the_packages_are_not_asked(tmp_path: Path) -> None:
    define(tmp_path, "pip: [attend==0.3]")
    told: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    whole = asked(str(tmp_path / "image.yaml"), {}, FACTS, told.append)
    tell_unchosen(whole, whole.plan(), Notes())
    why = "only a build with a lock chooses them by the requirements of attend==0.3"
    assert told == [f"--no-lock: torch {NEWEST} and Python 3.11 are those of the facts; {why}"]
    define(tmp_path)
    whole = asked(str(tmp_path / "image.yaml"), {}, FACTS, told.append)
    tell_unchosen(whole, whole.plan(), Notes())
    assert len(told) == 1


def test_upgrade_chooses_torch_again(site: Site, tmp_path: Path) -> None:
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", [*torches(), PINNED, Dist("free", "1", ("torch",))])}
    define(tmp_path, "pip: [attend==0.3]")
    locked(tmp_path, env)
    define(tmp_path, "pip: [free]")
    assert locked(tmp_path, env, "--upgrade")[1]["torch"] == NEWEST


def test_a_package_that_does_not_exist_is_named_after_one_solve(site: Site, tmp_path: Path) -> None:
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", torches())}
    define(tmp_path, "pip: [atend]")
    done = envkit(tmp_path, "lock", "image.yaml", "--base", "none", env=env)
    assert done.returncode == 3
    assert "atend was not found" in done.stderr
    assert [path for _, path in site.seen].count("/simple/atend/") == 1
