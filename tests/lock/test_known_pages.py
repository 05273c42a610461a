"""Prebuilt wheels of pages that only the facts know, in the form of the real ones, from the request to the build."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from envkit.facts.load import load
from envkit.lock.model import Lock
from envkit.lock.store import read_lock
from envkit.resolve.companions import paired
from envkit.resolve.index import index
from tests.lock.commands import envkit, read_layout
from tests.lock.served import Dist, Site, put_index, put_pages
from tests.lock.test_choosing import CUBLAS, define, locked, refused

FACTS = load(None)
TORCHES = ("2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", index(FACTS).newest["pypi"])


def attention(name: str, version: str, torch: str, *pythons: str, cuda: str = "12", abi: str = "TRUE") -> list[Dist]:
    """Wheels as their projects name them: `flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl`."""
    local = f"{version}+cu{cuda}torch{torch}cxx11abi{abi}"
    return [Dist(name, local, ("torch", "einops"), tag=f"{one}-{one}-linux_x86_64") for one in pythons]


def put_release(site: Site, repository: str, tag: str, dists: Iterable[Dist]) -> str:
    """A release's list of files as GitHub serves it: part of a page, paths, no hashes; the files are elsewhere."""
    rows = []
    for dist in dists:
        path = f"/{repository}/releases/download/{tag}/{dist.file}"
        stored = f"/release-assets/{hashlib.sha256(path.encode()).hexdigest()}"
        site.redirects[path] = f"{site.url}{stored}?sp=r&sig=x"
        site.put(stored, dist.data())
        href = path.replace("+", "%2B")
        text = f'<span class="text-bold">{dist.file}</span><span></span>'
        link = f'<a href="{href}" rel="nofollow" data-turbo="false">{text}</a><span>sha256:0</span>'
        rows.append(f'<li><svg viewBox="0 0 16 16"><path d="M1 1h2"></path></svg>{link}</li>')
    for form in ("zip", "tar.gz"):
        href = f"/{repository}/archive/refs/tags/{tag}.{form}"
        rows.append(f'<li class="Box-row"><a href="{href}" rel="nofollow"><span>Source code</span> ({form})</a></li>')
    page = f"/{repository}/releases/expanded_assets/{tag}"
    site.put(page, f'<div class="Box"><ul>{"".join(rows)}</ul></div>'.encode(), "text/html")
    return f"{site.url}{page}"


def served(site: Site, folder: Path, sources: dict[str, list[str]], *dists: Dist, local: str = "") -> dict[str, str]:
    """An index with torch and packages of which it has the source only; facts with the pages of these."""
    rows = [
        Dist(CUBLAS, "12.8.4"),
        Dist("numpy", "2.2.6"),
        Dist("setuptools", "80.9.0"),
        Dist("einops", "0.8.1"),
        *dists,
    ]
    for torch in TORCHES:
        rows.append(Dist("torch", f"{torch}{local}", (CUBLAS,)))
        vision = paired(torch, "torchvision", index(FACTS))[-1]
        rows.append(Dist("torchvision", f"{vision}{local}", (f"torch=={torch}",)))
    env = {"ENVKIT_PYTHON_INDEX": put_index(site, "/simple", rows)}
    text = ["schema: 1", "sources:", "  here: {kind: internal, what: a page}", "package_needs:"]
    for name, versions in sources.items():
        files = [f"{name.replace('-', '_')}-{version}.tar.gz" for version in versions]
        common: dict[str, object] = {"hashes": {"sha256": "0" * 64}, "size": 9, "upload-time": "2026-01-01T00:00:00Z"}
        listed = [{"filename": file, "url": file} | common for file in files]
        tree = {"meta": {"api-version": "1.1"}, "name": name, "files": listed}
        site.put(f"/simple/{name}/", json.dumps(tree).encode(), "application/vnd.pypi.simple.v1+json")
        page = f"{site.url}/team/{name}/releases/expanded_assets/v{{version}}"
        text.append(f"  - {{package: {name}, deb: [], rpm: [], pages: ['{page}'], refs: [here]}}")
    (folder / "facts.yaml").write_text("\n".join(text) + "\n")
    return env | {"ENVKIT_FACTS": str(folder / "facts.yaml")}


def lock_of(folder: Path) -> Lock:
    return read_lock(folder / "envkit.lock")


@pytest.fixture
def at(site: Site, tmp_path: Path) -> tuple[Site, Path]:
    return site, tmp_path


FLASH = {"flash-attn": ["2.7.4.post1", "2.8.2", "2.8.3"]}


def put_flash(site: Site) -> None:
    """Three releases of flash-attn: what each was built for is what the real ones have, with fewer files."""
    old = [row for abi in ("FALSE", "TRUE") for row in attention("flash_attn", "2.7.4.post1", "2.6", "cp311", abi=abi)]
    put_release(site, "team/flash-attn", "v2.7.4.post1", old)
    new = [
        row
        for torch, abis in (("2.6", ("FALSE", "TRUE")), ("2.7", ("FALSE", "TRUE")), ("2.8", ("FALSE", "TRUE")))
        for abi in abis
        for row in attention("flash_attn", "2.8.3", torch, "cp310", "cp311", "cp312", abi=abi)
    ]
    put_release(site, "team/flash-attn", "v2.8.3", new)  # 2.8.2 has no page


@pytest.mark.parametrize(
    ("pip", "request_", "torch", "version"),
    [
        # Public requirements files: LLaVA, Open-R1, VILA, Janus and Qwen-VL name flash-attn in these ways.
        ("flash-attn", "", "2.8.0", "2.8.3+cu12torch2.8cxx11abitrue"),
        ("flash_attn==2.8.3", "", "2.8.0", "2.8.3+cu12torch2.8cxx11abitrue"),
        ("'flash-attn>=2.3,<2.8', einops", "", "2.6.0", "2.7.4.post1+cu12torch2.6cxx11abifalse"),
        ("flash-attn==2.7.4.post1", "", "2.6.0", "2.7.4.post1+cu12torch2.6cxx11abifalse"),
        ("flash-attn", ', torch: "2.7.*"', "2.7.1", "2.8.3+cu12torch2.7cxx11abitrue"),
        ("flash-attn", ', torch: "2.6.0"', "2.6.0", "2.8.3+cu12torch2.6cxx11abifalse"),
    ],
)
def test_torch_is_the_newest_for_which_a_release_has_a_wheel(
    pip: str, request_: str, torch: str, version: str, at: tuple[Site, Path]
) -> None:
    site, tmp_path = at
    env = served(site, tmp_path, FLASH)
    put_flash(site)
    define(tmp_path, f"pip: [{pip}]", request=request_)
    _, versions, told = locked(tmp_path, env)
    assert (versions["torch"], versions["flash-attn"]) == (torch, version)
    found = next(wheel for wheel in lock_of(tmp_path).wheels if wheel.name == "flash-attn")
    release = version.partition("+")[0]
    dist = next(
        row for abi in ("FALSE", "TRUE") for row in attention("flash_attn", release, torch[:3], "cp311", abi=abi)
        if row.version.lower() == version
    )  # fmt: skip
    assert found.sha256 == hashlib.sha256(dist.data()).hexdigest()
    assert (found.size, found.source) == (len(dist.data()), "page")
    assert found.url == f"{site.url}/team/flash-attn/releases/download/v{release}/{dist.file.replace('+', '%2B')}"
    page = f"{site.url}/team/flash-attn/releases/expanded_assets/v{release}"
    reason = f"note: torch {torch}: newest with a prebuilt wheel of flash-attn (on {page})"
    assert (reason in told) == (not request_)


def test_the_wheel_of_a_page_is_installed_and_exported_by_its_url(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path, FLASH) | {"XDG_STATE_HOME": str(tmp_path / "state")}
    put_flash(site)
    define(tmp_path, "pip: [flash-attn]")
    locked(tmp_path, env)
    base = ("--base", "none")
    assert envkit(tmp_path, "lock", "image.yaml", *base, "--check", env=env).returncode == 0
    done = envkit(
        tmp_path, "build", "image.yaml", *base, "--engine", "embedded", "--no-verify", "--output", "oci:out", env=env
    )
    assert done.returncode == 0, done.stderr
    _, files = read_layout(tmp_path / "out")
    assert any("flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE.dist-info/METADATA" in path for path in files)
    url = f"{site.url}/team/flash-attn/releases/download/v2.8.3/flash_attn-2.8.3%2Bcu12torch2.8cxx11abiTRUE-cp311"
    exported = envkit(tmp_path, "lock", "--export", "requirements.txt", env=env).stdout
    assert f"flash-attn @ {url}-cp311-linux_x86_64.whl --hash=sha256:" in exported
    rendered = envkit(tmp_path, "render", "image.yaml", "--locked", "envkit.lock", "--out", "context", env=env)
    assert rendered.returncode == 0, rendered.stderr
    texts = [path.read_text() for path in (tmp_path / "context").rglob("*") if path.is_file()]
    assert any(f"flash-attn @ {url}" in text for text in texts)


def test_two_packages_need_a_torch_for_which_both_have_wheels(site: Site, tmp_path: Path) -> None:
    """As mamba-ssm and causal-conv1d: one is built for newer torches than the other."""
    sources = {"causal-conv1d": ["1.5.2", "1.7.0"], "mamba-ssm": ["2.2.5"]}
    env = served(site, tmp_path, sources)
    conv = [row for torch in ("2.7", "2.8", "2.9") for row in attention("causal_conv1d", "1.7.0", torch, "cp311")]
    put_release(site, "team/causal-conv1d", "v1.7.0", conv)
    put_release(site, "team/mamba-ssm", "v2.2.5", attention("mamba_ssm", "2.2.5", "2.7", "cp311"))
    define(tmp_path, "pip: [mamba-ssm, causal-conv1d]")
    _, versions, told = locked(tmp_path, env)
    assert versions["torch"] == "2.7.1"
    assert versions["causal-conv1d"] == "1.7.0+cu12torch2.7cxx11abitrue"
    assert "newest with a prebuilt wheel of " in told


def test_a_package_that_others_require_comes_from_its_page(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path, FLASH, Dist("train", "1", ("flash-attn==2.8.3", "torch>=2")))
    put_flash(site)
    define(tmp_path, "pip: [train]")
    _, versions, _ = locked(tmp_path, env)
    assert (versions["torch"], versions["flash-attn"]) == ("2.8.0", "2.8.3+cu12torch2.8cxx11abitrue")


def test_other_requirements_may_allow_only_an_older_torch_with_another_wheel(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path, FLASH, Dist("attend", "1", ("torch==2.7.1",)))
    put_flash(site)
    define(tmp_path, "pip: [flash-attn, attend]")
    _, versions, told = locked(tmp_path, env)
    assert (versions["torch"], versions["flash-attn"]) == ("2.7.1", "2.8.3+cu12torch2.7cxx11abitrue")
    assert "note: torch 2.7.1: newest that the other packages allow: attend 1 requires torch==2.7.1" in told


def test_another_python_is_taken_where_only_it_has_a_wheel(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path, FLASH)
    put_release(site, "team/flash-attn", "v2.8.3", attention("flash_attn", "2.8.3", "2.8", "cp310"))
    define(tmp_path, "pip: [flash-attn]", request=", os: ubuntu22.04")
    python, versions, _ = locked(tmp_path, env)
    assert (python, versions["torch"]) == ("3.10", "2.8.0")


def test_a_torch_without_a_wheel_is_refused_with_the_torch_that_has_one(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path, FLASH)
    put_flash(site)
    define(tmp_path, "pip: [flash-attn]", request=', torch: "2.9.1"')
    told = refused(tmp_path, env)
    assert "has no wheel of flash-attn, only its source" in told
    assert (
        f"read 3 pages with wheels of flash-attn, such as {site.url}/team/flash-attn/releases/expanded_assets/" in told
    )
    assert "wheels for torch 2.6, 2.7 and 2.8, CUDA 12, Python 3.10, 3.11 and 3.12" in told
    assert "or add --allow-source flash-attn to the command" in told
    assert told.endswith("hint: envkit lock image.yaml --torch 2.8.0")
    assert locked(tmp_path, env, "--torch", "2.8.0")[1]["flash-attn"] == "2.8.3+cu12torch2.8cxx11abitrue"


def test_pages_that_are_not_there_are_named_with_the_pythons_that_were_tried(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path, {"flash-attn": ["2.8.3"]})
    define(tmp_path, "pip: [flash-attn]", template="wheels", request=', torch: "2.8.0"')
    told = refused(tmp_path, env)
    page = f"{site.url}/team/flash-attn/releases/expanded_assets/v2.8.3"
    assert f"read 1 page with wheels of flash-attn, such as {page}: none exists" in told
    assert "--allow-source flash-attn" in told


def test_a_source_that_is_allowed_is_not_searched_on_pages(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path, FLASH)
    put_flash(site)
    define(tmp_path, "pip: [flash-attn]", request=', torch: "2.9.1"')
    envkit(tmp_path, "lock", "image.yaml", "--base", "none", "--allow-source", "flash-attn", env=env)
    assert not [path for _, path in site.seen if "expanded_assets" in path]


def test_a_page_that_the_definition_names_comes_first(site: Site, tmp_path: Path) -> None:
    env = served(site, tmp_path, FLASH)
    put_flash(site)
    page = put_pages(site, "/own", attention("flash_attn", "2.8.2", "2.9", "cp311"), hashes=True)
    define(tmp_path, "pip: [flash-attn]", f"find_links: ['{page}']", request=', torch: "2.9.1"')
    assert locked(tmp_path, env)[1]["flash-attn"] == "2.8.2+cu12torch2.9cxx11abitrue"


def test_a_server_that_does_not_answer_is_asked_once(site: Site, tmp_path: Path) -> None:
    """An image locks without the pages' server: there may be a way without it, and the source is named."""
    env = served(site, tmp_path, FLASH)
    facts = (tmp_path / "facts.yaml").read_text().replace(f"{site.url}/team", "http://127.0.0.1:9/team")
    (tmp_path / "facts.yaml").write_text(facts)
    define(tmp_path, "pip: [flash-attn]", request=', torch: "2.8.0"')
    assert "--allow-source flash-attn" in refused(tmp_path, env)


def test_a_package_of_pytorchs_index_is_of_the_cuda_of_torch(site: Site, tmp_path: Path) -> None:
    """As xformers: the Python index has one CUDA, PyTorch's indexes have a file of the same name for each."""
    built = Dist("xformers", "0.0.33", ("torch==2.9.1", "numpy"), tag="cp39-abi3-manylinux_2_28_x86_64")
    older = Dist("xformers", "0.0.32", ("torch==2.8.0", "numpy"), tag="cp39-abi3-manylinux_2_28_x86_64")
    env = served(site, tmp_path, {}, built, older)
    other = Dist(built.name, built.version, built.requires, tag=built.tag, filling=9)
    family = [Dist("torch", f"{torch}+cu126", (CUBLAS,)) for torch in ("2.8.0", "2.9.1")]
    visions = [paired(torch, "torchvision", index(FACTS))[-1] for torch in ("2.8.0", "2.9.1")]
    family += [Dist("torchvision", f"{vision}+cu126") for vision in visions]
    put_index(site, "/whl/cu126", [*family, other, Dist(CUBLAS, "12.6.4"), Dist("numpy", "2.2.6")])
    text = f"""schema: 1
sources:
  here: {{kind: internal, what: an index}}
package_needs:
  - {{package: xformers, deb: [], rpm: [], pages: [], indexes: ['{site.url}/whl/{{cu}}'], refs: [here]}}
"""
    (tmp_path / "facts.yaml").write_text(text)
    env |= {"ENVKIT_FACTS": str(tmp_path / "facts.yaml"), "ENVKIT_PYTORCH_INDEX": f"{site.url}/whl"}
    define(tmp_path, "pip: [xformers]", source="pytorch", request=', cuda: "12.6"')
    _, versions, told = locked(tmp_path, env)
    assert (versions["torch"], versions["xformers"]) == ("2.9.1+cu126", "0.0.33")
    assert "xformers 0.0.33 requires torch==2.9.1" in told
    wheel = next(wheel for wheel in lock_of(tmp_path).wheels if wheel.name == "xformers")
    assert wheel.sha256 == hashlib.sha256(other.data()).hexdigest()
    assert wheel.source == "page"
    # Without one there, that of the Python index is taken.
    define(tmp_path, "pip: [xformers==0.0.32]", source="pytorch", request=', cuda: "12.6"')
    _, versions, _ = locked(tmp_path, env)
    assert (versions["torch"], versions["xformers"]) == ("2.8.0+cu126", "0.0.32")
