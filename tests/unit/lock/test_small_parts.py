"""Dates, changes, stand-ins, platforms, apt's stanzas, and the solvers' own words."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from envkit.ground.errors import ConflictError, EnvironmentProblem, EnvkitError, TimeLimitError, UsageError
from envkit.lock import apt, child, index_locations, stubs, uv
from envkit.lock import conda as conda_solve
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import moves_between
from envkit.lock.values import parse_moment
from tests.unit.lock.samples import conda, lock, wheel


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-06-01", "2026-06-01T23:59:59Z"),
        ("2026-06-01T12:00:00Z", "2026-06-01T12:00:00Z"),
        ("2026-06-01T12:00:00+02:00", "2026-06-01T10:00:00Z"),
    ],
)
def test_a_day_means_its_end_in_utc(text: str, found: str) -> None:
    assert parse_moment(text, "--as-of") == found


@pytest.mark.parametrize("text", ["", "yesterday", "2026-06", "2026-13-01", "2026-06-01T12:00:00", "20260601"])
def test_what_is_no_point_in_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a date") as caught:
        parse_moment(text, "--as-of")
    assert caught.value.hint == "--as-of 2026-06-01, or 2026-06-01T12:00:00Z"


def test_changes_name_what_came_went_and_moved() -> None:
    new = lock(conda=(conda("numpy", "2.5.0"), conda("python", "3.11.7", build="h0_0")), wheels=(wheel("torch"),))
    assert tuple(map(str, moves_between(lock(), new))) == (
        "- filelock 4.2.11",
        "numpy 2.4.6 py311_0 -> 2.5.0 py311_0",
        "- pip 26.3 py_0",
        "torch 2.7.1+cu126 -> 1.0",
    )
    assert moves_between(None, new) == ()
    assert moves_between(new, new) == ()


def test_python_packages_of_conda_are_known_by_their_distributions() -> None:
    packages = [
        conda("pytorch", "2.13.0", depends=("python 3.11.*",)),
        conda("typing_extensions", "4.16.0", depends=("python >=3.9",)),
        conda("pythonx", "1", depends=("python-dateutil",)),
        conda("zlib", "1.3", depends=("__glibc >=2.17",)),
    ]
    assert stubs.of_conda(packages) == {"torch": "2.13.0", "typing-extensions": "4.16.0"}


def test_a_stand_in_is_a_wheel_without_content(tmp_path: Path) -> None:
    assert stubs.write(tmp_path, {"a-b": "1.0+cu126", "odd": "2024_x_1"}) == {"a-b": "1.0+cu126"}
    (path,) = tmp_path.iterdir()
    assert path.name == "a_b-1.0+cu126-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        assert "Version: 1.0+cu126" in archive.read("a_b-1.0+cu126.dist-info/METADATA").decode()
        assert len(archive.namelist()) == 3


@pytest.mark.parametrize(
    ("glibc", "name"),
    [
        ("2.36", "x86_64-manylinux_2_36"),
        ("2.41", "x86_64-manylinux_2_40"),
        ("2.30", "x86_64-manylinux_2_28"),
        ("2.17", "x86_64-manylinux_2_17"),
    ],
)
def test_the_platform_is_the_newest_that_the_image_carries(glibc: str, name: str) -> None:
    assert uv.platform(uv.Target(platform="linux-64", glibc=glibc, python="3.11")) == name


def test_a_glibc_before_manylinux_is_refused() -> None:
    with pytest.raises(UsageError, match=r"glibc 2\.5 is too old: no wheels exist for it"):
        uv.platform(uv.Target(platform="linux-64", glibc="2.5", python="3.6"))


STANZAS = """Package: apt
Version: 2.6.2
Architecture: amd64
Size: 1373116
SHA256: {a}
Description: commandline package manager

Package: apt
Version: 2.6.1
Architecture: amd64
Size: 1
SHA256: {b}

Package: ca-certificates
Version: 20250419~deb12u2
Architecture: all
Size: 2
""".format(a="a" * 64, b="b" * 64)


def test_apts_stanzas_become_rows_of_the_chosen_versions() -> None:
    rows = apt.parse(STANZAS, {("apt", "2.6.2"), ("ca-certificates", "20250419~deb12u2")})
    assert [(row.name, row.version, row.arch, row.size) for row in rows] == [
        ("apt", "2.6.2", "amd64", 1373116),
        ("ca-certificates", "20250419~deb12u2", "all", 2),
    ]
    assert (rows[0].sha256, rows[1].sha256) == ("a" * 64, None)


def test_a_package_that_apt_chose_and_does_not_describe_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match="apt has no metadata for dpkg 1"):
        apt.parse(STANZAS, {("dpkg", "1")})


@pytest.mark.parametrize(
    ("fault", "said", "kind", "message"),
    [
        ("missing", ("No module named 'rattler'",), EnvironmentProblem, "py-rattler is not installed"),
        ("spec", ("invalid version",), UsageError, "conda: invalid version"),
        ("solver", ("no candidates",), ConflictError, "no conda packages of conda-forge satisfy the plan"),
        ("solver", ("Timeout reached",), TimeLimitError, "found no solution within 300 s"),
        ("cache", ("No space left",), EnvironmentProblem, "solving the conda packages: No space left"),
        ("fetch", ("502",), EnvironmentProblem, "no answer from https://c.example.com \\(conda-forge\\): 502"),
        (
            "fetch",
            ("Request failed", "  Caused by: client error (Connect)", "  Caused by: no route to host"),
            EnvironmentProblem,
            "^no answer from https://c.example.com \\(conda-forge\\): no route to host$",
        ),
        ("other", (), EnvironmentProblem, "no answer from https://c.example.com \\(conda-forge\\): other"),
    ],
)
def test_each_failure_of_the_conda_solver_has_its_kind(
    fault: str, said: tuple[str, ...], kind: type[EnvkitError], message: str
) -> None:
    error = conda_solve.solver_error(fault, said, alias="https://c.example.com", channels="conda-forge")
    with pytest.raises(kind, match=message):
        raise error
    assert error.hint
    assert not error.details or fault == "solver"


def test_a_solvers_words_are_bounded_and_show_no_login() -> None:
    indexes = IndexLocations(conda_alias="https://me:secret@c.example.com/t/tok-1/x")
    said = "\n".join(["a https://me:secret@c.example.com/t/tok-1/x/conda-forge/repodata.json b", "", *["line"] * 60])
    lines = conda_solve.message_lines(said, indexes)
    assert len(lines) == 31
    assert lines[-1] == "... 31 more lines"
    assert "secret" not in lines[0]
    assert "tok-1" not in lines[0]


@pytest.mark.parametrize(
    ("environ", "files", "found"),
    [
        ({}, {}, None),
        ({"UV_DEFAULT_INDEX": "a", "UV_INDEX_URL": "b", "PIP_INDEX_URL": "c"}, {}, "a"),
        ({"UV_INDEX_URL": "b", "PIP_INDEX_URL": "c"}, {}, "b"),
        ({"PIP_INDEX_URL": "c"}, {"etc": "[global]\nindex-url = e\n"}, "c"),
        ({}, {"etc": "[global]\nindex-url = e\n"}, "e"),
        ({}, {"etc": "[global]\nindex-url = e\n[install]\nindex-url = i\n"}, "i"),
        ({}, {"etc": "[global]\nindex-url = e\n", "home/.config/pip/pip.conf": "[global]\nindex-url = h\n"}, "h"),
        ({}, {"etc": "[global]\nextra-index-url = e\nfind-links = /x\n"}, None),
        ({}, {"etc": "not a configuration\n"}, None),
        ({"PIP_CONFIG_FILE": "/dev/null"}, {"etc": "[global]\nindex-url = e\n"}, None),
    ],
)
def test_the_clients_own_index_is_asked(
    environ: dict[str, str], files: dict[str, str], found: str | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    home = {"HOME": str(tmp_path / "home")}
    assert index_locations.python_index(home | environ, system=tmp_path / "etc") == found


def test_uv_gets_a_passing_cache_where_its_own_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passing = tmp_path / "passing"
    assert uv.cache({"HOME": str(tmp_path)}, passing) == {}
    assert uv.cache({"HOME": "/proc", "XDG_CACHE_HOME": str(tmp_path)}, passing) == {}
    assert uv.cache({"UV_CACHE_DIR": "/no/such/folder"}, passing) == {}
    assert uv.cache({}, passing) == {"UV_CACHE_DIR": str(passing / "cache")}
    monkeypatch.setattr(os, "access", lambda place, _mode: place != tmp_path)  # root may write anywhere
    assert uv.cache({"HOME": str(tmp_path / "closed")}, passing) == {"UV_CACHE_DIR": str(passing / "cache")}


def test_what_apt_leaves_when_it_is_ended_goes_with_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, str]] = []

    def run(argv: list[str], *, env: dict[str, str], **_rest: object) -> subprocess.CompletedProcess[bytes]:
        heard.append(env)
        return subprocess.CompletedProcess(argv, 0, b"", b"")

    monkeypatch.setattr(child, "run", run)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert apt.packages("bookworm", "linux-64", "https://mirror.example.com/debian") == ()
    assert Path(heard[0]["TMPDIR"]).name.startswith("envkit-")
    assert not Path(heard[0]["TMPDIR"]).exists()
