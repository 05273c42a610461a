"""What a source says of itself, read from its archive; hostile ones end with an error, and nothing is unpacked."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from envkit.ground.errors import ConflictError, IntegrityError
from envkit.source import look as looking
from envkit.source.look import Project, look
from tests.support.sources import FASTSUM, SETUPTOOLS, sdist, tar

TORCH = "from setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\n"


def _look(folder: Path, data: bytes, *, commit: bool = False) -> Project:
    path = folder / "source"
    path.write_bytes(data)
    return look(path, "fastsum", commit=commit)


def test_an_sdist_says_its_backend_and_requirements(tmp_path: Path) -> None:
    assert _look(tmp_path, sdist(FASTSUM)) == Project(
        folder="fastsum-1.2",
        requires=("setuptools",),
        backend="setuptools.build_meta",
        backend_path=(),
        torch=False,
        cuda=False,
    )


def test_without_a_build_system_it_is_setuptools(tmp_path: Path) -> None:
    found = _look(tmp_path, sdist({"setup.py": "from setuptools import setup\nsetup()\n"}))
    assert (found.requires, found.backend) == (("setuptools>=40.8.0",), "setuptools.build_meta:__legacy__")


def test_a_backend_in_the_source_itself(tmp_path: Path) -> None:
    text = '[build-system]\nrequires = []\nbuild-backend = "own:hooks"\nbackend-path = ["tools"]\n'
    found = _look(tmp_path, sdist({"pyproject.toml": text}))
    assert (found.backend, found.backend_path, found.requires) == ("own:hooks", ("tools",), ())


def test_a_setup_that_imports_torch_with_cuda_sources(tmp_path: Path) -> None:
    found = _look(tmp_path, sdist({"setup.py": TORCH, "csrc/kernel.cu": ""}))
    assert (found.torch, found.cuda) == (True, True)


def test_torch_among_the_requirements_is_the_plans(tmp_path: Path) -> None:
    text = SETUPTOOLS.replace('["setuptools"]', '["setuptools", "torch>=2"]')
    found = _look(tmp_path, sdist({"pyproject.toml": text}))
    assert (found.torch, found.requires) == (True, ("setuptools",))


def test_a_commit_with_submodules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match="has submodules") as caught:
        _look(tmp_path, tar({".gitmodules": "", **FASTSUM}), commit=True)
    assert "allow_source: [fastsum]" in (caught.value.hint or "")


def test_an_sdist_may_have_been_a_repository_with_submodules(tmp_path: Path) -> None:
    assert _look(tmp_path, sdist({".gitmodules": "", **FASTSUM})).folder == "fastsum-1.2"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[build-system\n", "pyproject.toml of fastsum: "),
        ("build-system = 1\n", "build-system is invalid"),
        ('[build-system]\nrequires = "setuptools"\n', "build-system is invalid"),
        ('[build-system]\nrequires = []\nbuild-backend = "os; import x"\n', "build-system is invalid"),
        ("#" * ((1 << 20) + 1), "pyproject.toml of fastsum is too large: 1048577 bytes"),
    ],
)
def test_a_broken_pyproject_is_an_error(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=why):
        _look(tmp_path, sdist({"pyproject.toml": text}))


@pytest.mark.parametrize("required", ["x @ https://files.example.com/x.whl", "--option", "x @ file:///etc"])
def test_a_requirement_that_is_no_name_is_refused(required: str, tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match="the build of fastsum requires "):
        _look(tmp_path, sdist({"pyproject.toml": SETUPTOOLS.replace('"setuptools"]', f'"{required}"]')}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive at all",
        sdist(FASTSUM)[:200],
        gzip.compress(b"no tar"),
        sdist(FASTSUM)[:-8] + b"\0" * 8,
        tar({"a/setup.py": "", "b/setup.py": ""}, "."),
    ],
    ids=["empty", "text", "cut", "no tar", "wrong checksum", "two folders"],
)  # fmt: skip
def test_what_is_no_sdist_is_an_error(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError):
        _look(tmp_path, data)


def test_an_archive_that_would_fill_the_disk_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "_MOST_UNPACKED", 4096)
    with pytest.raises(IntegrityError, match="more than"):
        _look(tmp_path, sdist({"large": b"\0" * 8192}))


def test_a_link_out_of_the_archive_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text(SETUPTOOLS)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("fastsum-1.2/pyproject.toml")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    assert _look(tmp_path, buffer.getvalue()).backend == "setuptools.build_meta:__legacy__"
